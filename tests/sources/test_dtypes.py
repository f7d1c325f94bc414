import ml_dtypes
import numpy as np
import pytest

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.dtypes import (
    INT64,
    STRING,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    label_of_text,
    to_labels,
)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("?", "u1"),
        ("i1", "i1"),
        ("u2", "u2"),
        (">i4", "i4"),
        ("u8", "u8"),
        (">f2", "f2"),
        (ml_dtypes.bfloat16, "f4"),
        (">f4", "f4"),
        (">f8", "f8"),
    ],
)
def test_feature_dtype__native_and_at_least_one_byte(given, stored):
    dtype = feature_dtype(np.dtype(given), "X")
    assert dtype == np.dtype(stored)
    assert dtype.isnative


@pytest.mark.parametrize("given", ["c16", "M8[s]", "m8[s]", "U3", "V4", "i1,i1", np.longdouble])
def test_feature_dtype__refuses_what_is_no_plain_number(given):
    with pytest.raises(DataError, match=r"X has dtype .*Write numbers as bool, integers"):
        feature_dtype(np.dtype(given), "X")


@pytest.mark.parametrize("check", [feature_dtype, label_dtype, check_weight_dtype])
def test_dtype__refuses_objects(check):
    with pytest.raises(DataError, match=r"X holds Python objects, not numbers or text"):
        check(np.dtype(object), "X")


@pytest.mark.parametrize(
    "given", ["c16", "M8[s]", np.longdouble, np.dtypes.StringDType(na_object=None)]
)
def test_label_dtype__refuses_what_is_neither_number_nor_text(given):
    with pytest.raises(DataError, match=r"y has dtype .*Write labels as whole numbers"):
        label_dtype(np.dtype(given), "y")


@pytest.mark.parametrize("given", ["?", "c16", "M8[s]", "U3", STRING, np.longdouble])
def test_check_weight_dtype__refuses_what_is_no_number(given):
    with pytest.raises(DataError, match=r"w has dtype .*Write weights as integers or floats"):
        check_weight_dtype(np.dtype(given), "w")


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", ">i8", "u8", "f2", "f4", ">f8"])
def test_to_labels__numbers_become_int64(dtype):
    labels = to_labels(np.array([1, 0, 1]).astype(dtype), "y")
    assert labels.dtype == INT64
    np.testing.assert_array_equal(labels, [1, 0, 1])


@pytest.mark.parametrize(
    "values",
    [
        np.array(["a", "é", ""]),
        np.array([b"a", "é".encode(), b""]),
        np.array(["a", "é", ""], dtype=STRING),
    ],
)
def test_to_labels__text_becomes_strings(values):
    labels = to_labels(values, "y")
    assert labels.dtype == STRING
    assert labels.tolist() == ["a", "é", ""]


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, 2.0**53, -(2.0**53), -(2.0**64)])
def test_to_labels__refuses_floats_that_are_no_int64(bad):
    with pytest.raises(DataError, match=r"y has the label .* in row 12 \(the first is 0\)"):
        to_labels(np.array([1.0, 2.0, bad]), "y", first_row=10)


def test_to_labels__half_precision_infinity_is_refused():
    with pytest.raises(DataError, match=r"label inf in row 0"):
        to_labels(np.array([np.inf], dtype=np.float16), "y")


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
