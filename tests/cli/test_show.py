from dask.utils import format_bytes
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.cli.show import readable_bytes, schema_table
from tests.schemas import FILLED


@given(st.integers(0, 2**60) | st.integers(0, 60).map(lambda power: 2**power))
def test_readable_bytes__as_dask_writes_them(n_bytes):
    assert readable_bytes(n_bytes) == format_bytes(n_bytes)


def test_schema_table__every_kind():
    assert schema_table(FILLED.to_dict()).splitlines() == [
        "  column  kind            values  missing  filled with",
        "  age     number               -   20.0 %         38.5",
        "  pay     number               -    0.5 %            7",
        "  sex     category             2   10.0 %            -",
        "  town    category  3 and others        -            -",
        "  paid    boolean              -        -            0",
        "  day     date                 -   30.0 %   2000-02-13",
        "  y       label                -        -            -",
    ]


def test_schema_table__of_many_columns_has_the_first_and_the_label():
    many = {"columns": {f"x{place}": {"kind": "number"} for place in range(100)}, "label": "y"}
    lines = schema_table(many).splitlines()
    assert len(lines) == 1 + 40 + 1 + 1
    assert lines[-2].split() == ["y", "label", "-", "-", "-"]
    assert lines[-1] == "  and 60 columns more"
