import numpy as np
import pytest

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.dtypes import (
    feature_dtype,
    label_of_text,
    to_labels,
)


@pytest.mark.parametrize("given", ["c16", "M8[s]", "m8[s]", "U3", "V4", "i1,i1", np.longdouble])
def test_feature_dtype__refuses_what_is_no_plain_number(given):
    with pytest.raises(DataError, match=r"X has dtype .*Write numbers as bool, integers"):
        feature_dtype(np.dtype(given), "X")


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, 2.0**53, -(2.0**53), -(2.0**64)])
def test_to_labels__refuses_floats_that_are_no_int64(bad):
    with pytest.raises(DataError, match=r"y has the label .* in row 12 \(the first is 0\)"):
        to_labels(np.array([1.0, 2.0, bad]), "y", first_row=10)


def test_to_labels__limits_of_int64_are_exact():
    limits = np.array([1 - 2.0**53, 2.0**53 - 1])
    np.testing.assert_array_equal(to_labels(limits, "y"), [1 - 2**53, 2**53 - 1])
    assert to_labels(np.array([2**63 - 1], dtype=np.uint64), "y")[0] == 2**63 - 1
    with pytest.raises(DataError, match=r"label 9223372036854775808 in row 0"):
        to_labels(np.array([2**63], dtype=np.uint64), "y")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        *[("0", 0), ("-12", -12), ("2.0", 2), ("-0.0", 0), ("1e3", 1000), ("3.", 3), (".5", 0.5)],
        *[("true", 1), ("True", 1), ("FALSE", 0), ("tRUE", "tRUE"), ("yes", "yes")],
        *[("03", "03"), ("+03", "+03"), ("-0", "-0"), ("1,5", "1,5"), (" a", " a"), ("", "")],
        *[
            ("+1", 1),
            (" 1", 1),
            ("\t-1 ", -1),
            ("+0", 0),
            ("+2.0", 2),
            ("+9007199254740993", 2**53 + 1),
        ],
        *[("9007199254740991.0", 2**53 - 1), ("9007199254740993.0", 2.0**53)],
        *[("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63))],
        *[
            ("9223372036854775808", 2.0**63),
            ("9" * 5000, np.inf),
            ("inf", np.inf),
            ("1e999", np.inf),
        ],
    ],
)
def test_label_of_text__only_what_is_written_as_a_number_is_one(text, label):
    assert label_of_text(text) == label
    assert type(label_of_text(text)) is type(label)


def test_to_labels__refuses_bytes_that_are_not_utf8():
    with pytest.raises(DataError, match=r"y has bytes other than UTF-8"):
        to_labels(np.array([b"\xff"]), "y")
