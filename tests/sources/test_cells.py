import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from dask_nrbfn.numeric.schema import Column
from dask_nrbfn.sources.cells import CellError, stored_values, texts_of

TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
NUMBERS = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(5, 2)),
    *(*TEXTS, pa.dictionary(pa.int32(), pa.int64())),
]


def cells(values, dtype):
    """Return values as an Arrow array of a type, text of them where that is a type of text."""
    if pa.types.is_dictionary(dtype):
        return cells(values, dtype.value_type).dictionary_encode()
    if dtype in TEXTS:
        return pa.array([None if v is None else f" {v}" for v in values], pa.string()).cast(dtype)
    if pa.types.is_decimal(dtype):
        values = [None if v is None else decimal.Decimal(v) for v in values]
    return pa.array(values, dtype)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_stored__number_of_any_type(dtype):
    found = stored_values(cells([2, None, 0], dtype), Column("a", "number"))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [2, np.nan, 0])


@pytest.mark.parametrize("dtype", [*TEXTS, *NUMBERS])
def test_stored__category_of_any_type(dtype):
    column = Column("a", "category", ("0", "2"))
    found = stored_values(cells([2, None, 0, 7], dtype), column)
    np.testing.assert_array_equal(found, [1, np.nan, 0, -1])
    others = Column("a", "category", ("0", "2"), others=True)
    assert stored_values(cells([7], dtype), others) == [2]


@pytest.mark.parametrize("dtype", [pa.bool_(), pa.int64(), pa.float32(), *TEXTS])
def test_stored__boolean_of_any_type(dtype):
    truths = [True, None, False] if dtype == pa.bool_() or dtype in TEXTS else [1, None, 0]
    found = stored_values(cells(truths, dtype), Column("a", "boolean"))
    np.testing.assert_array_equal(found, [1, np.nan, 0])


@pytest.mark.parametrize(
    "dtype",
    [
        *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.timestamp("us", "Europe/Berlin"), *TEXTS),
    ],
)
def test_stored__date_of_any_type(dtype):
    moment = datetime.datetime(2026, 3, 29, 13, 7, 5)
    found = stored_values(cells([moment, None], dtype), Column("a", "date"))
    days = (moment - datetime.datetime(1970, 1, 1)) / datetime.timedelta(days=1)
    np.testing.assert_array_equal(found, [days, np.nan])


@pytest.mark.parametrize(
    ("array", "kind", "row"),
    [
        (pa.array(["1", "x", None]), "number", 1),
        (pa.array(["1", "", "x"]).dictionary_encode(), "number", 2),
        (pa.array([0, 1, 2]), "boolean", 2),
        (pa.array(["yes"]), "boolean", 0),
        (pa.array([None, 5]), "date", 1),
        (pa.array(["2026-02-30"]), "date", 0),
        (pa.array([0], pa.timestamp("s")), "number", 0),
    ],
)
def test_stored__cell_of_another_kind_is_named(array, kind, row):
    with pytest.raises(CellError, match=r"Column 'a' has '.*', which is n") as caught:
        stored_values(array, Column("a", kind))
    assert caught.value.row == row
    found = stored_values(array, Column("a", kind), spoiled=True)
    assert np.isinf(found[row])


def test_texts__whole_numbers_have_no_point():
    texts = ["1.0", "-2.00", "1.5", "01", "1.0.0", " a b "]
    assert texts_of(pa.array(texts)).to_pylist() == ["1", "-2", "1.5", "01", "1.0.0", "a b"]
    floats = [1.0, -0.0, 0.1, 1e15, None, np.nan]
    expected = ["1", "0", "0.1", "1000000000000000", None, None]
    assert texts_of(pa.array(floats, from_pandas=False)).to_pylist() == expected
    assert texts_of(pa.array([0.1], pa.float32())).to_pylist() == ["0.1"]
