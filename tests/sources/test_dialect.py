import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.dialect import (
    DELIMITERS,
    QUOTES,
    Beginning,
    Dialect,
    check_dialect,
    has_header,
)

USUAL = Dialect()


def lines_of(text):
    return [*io.StringIO(text, newline="")]


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("a;b\n1,5;2\n", Dialect(delimiter=";")),
        ("a\tb\n1\t2\n", Dialect(delimiter="\t")),
        ("a, b\n1, 2\n", USUAL),
        ("'a','b'\n'1','x, y'\n", Dialect(quote="'")),
        ('a, b\n1, "x, y"\n2, z\n', Dialect(padded=True)),
        ("a, b\n1, 'x, y'\n", Dialect(quote="'", padded=True)),
        ("A11 6 A34\nA12 48 A32\n", Dialect(delimiter=" ")),
        ("a  b\n1\t 2\n", Dialect(delimiter=" ")),
        ('18.0   8   307.0\t"a b"\n9.0    4   97.0\t"c"\n', Dialect(delimiter=" ")),
        (' "1"  "a;b"\n"2" "c, d"\n', Dialect(delimiter=" ")),
    ],
)
def test_sniffed__another_way(text, way):
    assert Beginning(lines_of(text), USUAL).sniffed() == way


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a;b\n1\n2\n",  # one column, whose name has a semicolon
        "a,y\n1,x;y;z\n2,u;v;w\n",
        "a;b|c\n1;2|3\n",  # two delimiters divide all rows: in doubt
        "a;b\n1;2;3\n",
        "a,y\n1,O'Brien\n2,the Smiths'\n",
        "a,y\n1,'tis\n2,'twas'\n",  # as a quote it would swallow a line
        "a,y,z\n1,'x',\"y\"\n",
        'a,y\n1,x "y"\n',
        'a,y\n1,"of 1, ""say"""\n',
        "a,y\n1,'" + "x" * 200_000 + "'\n",
        "full name\nJane Doe\n",  # no numbers
        "2020-01-01 10:00\n2020-01-02 11:30\n",
        "Room 5\nRoom 6 b\n",
    ],
)
def test_sniffed__in_doubt_the_usual_way(text):
    assert Beginning(lines_of(text), USUAL).sniffed() == USUAL


def test_sniffed__what_was_said_stays():
    lines = lines_of("'a';'b'\n'1';'x'\n")
    assert Beginning(lines, USUAL, delimiters=[","]).sniffed() == USUAL
    assert Beginning(lines, USUAL, quotes=['"']).sniffed() == Dialect(delimiter=";")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5.1,3.5,1.4,0.2,a\n4.9,3.0,1.4,0.2,b\n", False),
        ("A11,6,4,4,67,2\nA12,48,2,2,22,1\n", False),
        ("1.0,2.0,3.0\n4.0,5.0,6.0\n", False),
        ("x,y\n1,2\n", True),
        ("x,2.5\n1,z\n", True),  # a number above text
        ("name,2019,2020,2021\na,1,2,3\n", True),
        ("0,1,2,3\n5,5,5,5\n", True),
        ("y," + ",".join(f"{850 + j / 2}" for j in range(9)) + "\n1" + ",2" * 9 + "\n", True),
        ("'30-39',yes,3\n'40-49',no,1\n", True),
        ("", True),
    ],
)
def test_has_header__as_the_first_rows_show(text, expected):
    assert has_header(lines_of(text), USUAL) is expected


CELLS = st.text("ab1,;|\t'\" ", max_size=6)


@given(
    rows=st.integers(2, 4).flatmap(
        lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=2, max_size=5)
    )
)
def test_sniffed__a_table_of_commas_keeps_them(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    lines = lines_of(text.getvalue())
    found = Beginning(lines, USUAL).sniffed()
    assert found.delimiter == ","
    # Another quote, or spaces before it, are around whole cells only.
    quoted = [any(cell.strip().startswith(found.quote) for cell in row) for row in rows[1:]]
    assert found == USUAL or found.padded or all(quoted)


@given(data=st.data(), delimiter=st.sampled_from(DELIMITERS), quote=st.sampled_from(QUOTES))
def test_sniffed__what_is_quoted_throughout_is_read_as_it_was_written(data, delimiter, quote):
    # No other delimiter is in the text, which therefore is in no doubt.
    row = st.lists(st.text("ab1'" + delimiter, max_size=6), min_size=3, max_size=3)
    text = io.StringIO()
    way = {"delimiter": delimiter, "quotechar": quote}
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n", **way)
    writer.writerows(data.draw(st.lists(row, min_size=2, max_size=5)))
    assert Beginning(lines_of(text.getvalue()), USUAL).sniffed() == Dialect(delimiter, quote)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"delimiter": "ab"}, r"delimiter is 'ab'\. Give one character"),
        ({"delimiter": "1"}, "delimiter is '1'"),
        ({"delimiter": ""}, "delimiter is ''"),
        ({"quote": "`"}, r"quote is '`'\. Give \" or '\."),
        ({"decimal": ";"}, r"decimal is ';'\. Give \. or ,\."),
        ({"decimal": ",", "delimiter": ","}, "delimiter and decimal are both ','"),
        ({"encoding": "klingon"}, r"encoding is 'klingon'\. Give an encoding that Pyth"),
    ],
)
def test_check_dialect__what_cannot_be(said, message):
    nothing = dict.fromkeys(("delimiter", "quote", "decimal", "encoding"))
    with pytest.raises(ParameterError, match=message):
        check_dialect(**nothing | said)
