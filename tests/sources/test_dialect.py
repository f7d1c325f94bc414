import csv
import io

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.dialect import DELIMITERS, QUOTES, Dialect, check_dialect, sniffed

USUAL = Dialect()


def lines_of(text):
    return [*io.StringIO(text, newline="")]


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("a;b\n1,5;2\n", Dialect(delimiter=";")),
        ("a|b|c\n1|2|3\n", Dialect(delimiter="|")),
        ("a\tb\n1\t2\n", Dialect(delimiter="\t")),
        ("a, b\n1, 2\n", USUAL),
        ("'a','b'\n'1','x, y'\n", Dialect(quote="'")),
        ("a;b\n1;'x; y'\n2;'it''s'\n", Dialect(delimiter=";", quote="'")),
        ('a, b\n1, "x, y"\n2, z\n', Dialect(padded=True)),
        ("a, b\n1, 'x, y'\n", Dialect(quote="'", padded=True)),
        ("1, 'x'\n'2', 'y'\n", Dialect(quote="'", padded=True)),
    ],
)
def test_sniffed__another_way(text, way):
    assert sniffed(lines_of(text), USUAL) == way


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a;b\n1\n2\n",  # one column, whose name has a semicolon
        "a,y\n1,x;y;z\n2,u;v;w\n",
        "a;b,c;d\n1;2,3;4\n",
        "a;b|c\n1;2|3\n",  # two delimiters divide all rows: in doubt
        "a;b\n1;2;3\n",
        "a,y\n1,'tis\n2,'twas\n",
        "a,y\n1,O'Brien\n2,the Smiths'\n",
        "a,y\n1,'x'\n2,y\n",
        "a,y\n1,'x' or so\n",
        "a,y\n1,'tis\n2,'twas'\n",  # as a quote it would swallow a line
        "a,y,z\n1,'x',\"y\"\n",
        'a,y\n1,x "y"\n',
        'a,y\n1, "x" or so\n',
        'a,y\n1,"of 1, ""say"""\n',
        "a,y\n1,'" + "x" * 200_000 + "'\n",
    ],
)
def test_sniffed__in_doubt_the_usual_way(text):
    assert sniffed(lines_of(text), USUAL) == USUAL


def test_sniffed__last_row_of_a_text_that_goes_on_may_be_a_part():
    lines = lines_of('a;b\n1;2\n3;"x\n')
    assert sniffed(lines, USUAL, cut=True).delimiter == ";"
    assert sniffed(lines[:1], USUAL, cut=True) == USUAL


def test_sniffed__what_was_said_stays():
    lines = lines_of("'a';'b'\n'1';'x'\n")
    assert sniffed(lines, USUAL, delimiters=[","]) == USUAL
    assert sniffed(lines, USUAL, quotes=['"']) == Dialect(delimiter=";")


CELLS = st.text("ab1,;|\t'\" ", max_size=6)


@given(
    rows=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=2, max_size=5)
    )
)
def test_sniffed__a_table_of_commas_keeps_them(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    lines = lines_of(text.getvalue())
    assume(len(rows[0]) > 1)
    found = sniffed(lines, USUAL)
    assert found.delimiter == ","
    if found == USUAL:
        return
    # Another quote, or spaces before it, are around whole cells only.
    assert all(any(cell.strip().startswith(found.quote) for cell in row) for row in rows[1:]) or (
        found.padded
    )


@given(
    rows=st.lists(
        st.lists(st.text("ab1,;|\t' ", max_size=6), min_size=3, max_size=3), min_size=2, max_size=5
    ),
    delimiter=st.sampled_from(DELIMITERS),
    quote=st.sampled_from(QUOTES),
)
def test_sniffed__what_is_quoted_throughout_is_read_as_it_was_written(rows, delimiter, quote):
    text = io.StringIO()
    way = {"delimiter": delimiter, "quotechar": quote}
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n", **way).writerows(rows)
    found = sniffed(lines_of(text.getvalue()), USUAL)
    if found.delimiter == delimiter:
        assert (found.quote, found.padded) == (quote, False)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"delimiter": "ab"}, r"delimiter is 'ab'\. Give one character"),
        ({"delimiter": "1"}, "delimiter is '1'"),
        ({"delimiter": "."}, "delimiter is '.'"),
        ({"delimiter": ""}, "delimiter is ''"),
        ({"delimiter": "§"}, "delimiter is '§'"),
        ({"quote": "`"}, r"quote is '`'\. Give \" or '\."),
        ({"decimal": ";"}, r"decimal is ';'\. Give \. or ,\."),
        ({"decimal": ",", "delimiter": ","}, "delimiter and decimal are both ','"),
        ({"encoding": "klingon"}, r"encoding is 'klingon'\. Give one that Python knows"),
        ({"encoding": "hex"}, "encoding is 'hex'"),
    ],
)
def test_check_dialect__what_cannot_be(said, message):
    nothing = dict.fromkeys(("delimiter", "quote", "decimal", "encoding"))
    with pytest.raises(ParameterError, match=message):
        check_dialect(**nothing | said)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", ":", "~"])
def test_check_dialect__any_mark_is_a_delimiter(delimiter):
    check_dialect(delimiter=delimiter, quote='"', decimal=".", encoding="cp1252")
