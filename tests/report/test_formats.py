"""Tables of what columns are."""

from dask_nrbfn.report.formats import schema_text
from tests.schemas import FILLED


def test_schema_text__every_kind():
    assert schema_text(FILLED.to_dict()).splitlines() == [
        "  column  kind            values  missing  filled with",
        "  age     number               -   20.0 %         38.5",
        "  pay     number               -    0.5 %            7",
        "  sex     category             2   10.0 %            -",
        "  town    category  3 and others        -            -",
        "  paid    boolean              -        -            0",
        "  day     date                 -   30.0 %   2000-02-13",
        "  y       label                -        -            -",
    ]


def test_schema_text__of_many_columns_has_the_first_and_the_label():
    many = {"columns": {f"x{place}": {"kind": "number"} for place in range(100)}, "label": "y"}
    lines = schema_text(many).splitlines()
    assert len(lines) == 1 + 40 + 1 + 1
    assert lines[-2].split() == ["y", "label", "-", "-", "-"]
    assert lines[-1] == "  and 60 columns more"


def test_schema_text__shows_how_columns_are_written():
    columns = {"price": {"kind": "number", "written": "$1,234.5"}, "n": {"kind": "number"}}
    assert [line.split()[2] for line in schema_text({"columns": columns}).splitlines()[1:]] == [
        "$1,234.5",
        "-",
    ]
