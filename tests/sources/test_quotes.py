import io

from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.sources.quotes import (
    BlanksOut,
    QuoteScan,
)

QUOTE = b'"'


def commas():
    return QuoteScan(b",", QUOTE)


def naive(text):
    """Whether a quote is open at the end, and where the last one opened that begins a cell."""
    inside, opened, at_start, place = False, 0, True, 0
    while place < len(text):
        character = text[place : place + 1]
        if inside and text[place : place + 2] == b'""':
            place += 1
        elif inside and character == b'"':
            inside, at_start = False, False
        elif not inside and character == b'"' and at_start:
            inside, opened = True, place
        elif not inside:
            at_start = character in b",\r\n"
        place += 1
    return inside, opened


@given(text=st.text('"",\na', max_size=20), sizes=st.lists(st.integers(1, 6), min_size=20))
def test_quote_scan__any_division_equals_reading_character_by_character(text, sizes):
    content, scan, start = text.encode(), commas(), 0
    for size in sizes:
        scan.feed(content[start : start + size])
        start += size
    inside, opened = naive(content)
    assert scan.inside == inside
    assert not inside or scan.opened == opened


def without_blanks(text, sizes, delimiter):
    stream, blanks_out, found = io.BytesIO(text.encode()), BlanksOut(delimiter, QUOTE), b""
    for piece in (*(stream.read(size) for size in sizes), stream.read(), b""):
        # An empty piece is the end, and nothing comes after it.
        found += blanks_out.feed(piece) if piece else b""
    return (found + blanks_out.feed(b"")).decode()


@given(
    rows=st.lists(
        st.lists(st.tuples(st.text('a, \n"', max_size=5), st.integers(0, 3)), min_size=1),
        min_size=1,
        max_size=4,
    ),
    sizes=st.lists(st.integers(1, 6)),
)
def test_blanks_out__of_quotes_any_division_gives_the_text_without_the_spaces(rows, sizes):
    cells = [[('"' + text.replace('"', '""') + '"', n) for text, n in row] for row in rows]
    padded, bare = (
        "\n".join(",".join(" " * (n * kept) + cell for cell, n in row) for row in cells)
        for kept in (1, 0)
    )
    assert without_blanks(padded, sizes, b",") == bare


CELL = st.one_of(
    st.text("ab.,5'", min_size=1, max_size=4),
    st.text('a, \t\n"', max_size=5).map(lambda text: '"' + text.replace('"', '""') + '"'),
    st.just('a"b'),
)


@given(
    rows=st.lists(st.lists(CELL, min_size=1, max_size=4), min_size=1, max_size=4),
    blanks=st.lists(st.text(" \t", min_size=1, max_size=3), min_size=20, max_size=20),
    ends=st.lists(st.text(" \t", max_size=2), min_size=8, max_size=8),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    sizes=st.lists(st.integers(1, 6)),
)
def test_blanks_out__of_aligned_text_any_division_gives_one_tab_between_cells(
    rows, blanks, ends, end, sizes
):
    blanks, ends = iter(blanks), iter(ends)
    aligned = ""
    for row in rows:
        aligned += next(ends) + row[0]
        aligned += "".join(next(blanks) + cell for cell in row[1:]) + next(ends) + end
    assert without_blanks(aligned, sizes, b" ") == "".join("\t".join(row) + end for row in rows)
