import numpy as np
import pytest

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.sources import dtypes
from dask_nrbfn.sources.dtypes import INT64, NO_LABEL, checked_mark, feature_dtype, to_labels


@pytest.mark.parametrize("given", ["c16", "M8[s]", "m8[s]", "U3", "V4", "i1,i1", np.longdouble])
def test_feature_dtype__other_than_plain_numbers(given):
    with pytest.raises(DataError, match=r"X has dtype .*Write numbers as bool, integers"):
        feature_dtype(np.dtype(given), "X")


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, 2.0**53, -(2.0**53), -(2.0**64)])
def test_to_labels__floats_that_are_not_int64(bad):
    with pytest.raises(DataError, match=r"y has the label .* in row 12 \(the first is 0\)"):
        to_labels(np.array([1.0, 2.0, bad]), "y", first_row=10)


def test_to_labels__limits():
    limits = np.array([1 - 2.0**53, 2.0**53 - 1])
    np.testing.assert_array_equal(to_labels(limits, "y"), [1 - 2**53, 2**53 - 1])
    assert to_labels(np.array([2**63 - 1], dtype=np.uint64), "y")[0] == 2**63 - 1
    with pytest.raises(DataError, match=r"label 9223372036854775808 in row 0"):
        to_labels(np.array([2**63], dtype=np.uint64), "y")
    with pytest.raises(DataError, match=r"y has bytes other than UTF-8"):
        to_labels(np.array([b"\xff"]), "y")


def test_checked_mark__has_the_type_of_labels():
    whole = ("-1", -1), (-1.0, -1), ("nan", NO_LABEL), (NO_LABEL, NO_LABEL), (2**60 + 1, 2**60 + 1)
    for given, mark in whole:
        assert checked_mark(given, INT64, None) == mark
    assert checked_mark(-1, dtypes.STRING, None) == "-1"
    assert checked_mark("1e3", dtypes.FLOAT64, ("t",)) == 1000
    for given in ("0.5", "inf", "1e300", "none"):
        with pytest.raises(ParameterError, match="labels are numbers"):
            checked_mark(given, INT64, None)
