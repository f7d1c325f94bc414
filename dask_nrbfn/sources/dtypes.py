"""The allowed types of features, targets and weights of every source, and how they are stored.

Features are numbers; true and false become 1 and 0. Numeric targets follow the same rule and become
float64. Labels are whole numbers, true and false (as 1 and 0), or text; other numbers are not
labels. A CSV file has no types: its label column is text unless all labels can be read as numbers.
"""

import re
from contextlib import suppress

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError

INT64 = np.dtype(np.int64)
FLOAT64 = np.dtype(np.float64)
STRING = np.dtypes.StringDType()
LABEL_RULE = (
    "Write labels as whole numbers within int64 (floats: below 2**53), true and false, or text; "
    "round numbers that encode classes, or give the classes names."
)
_INTEGER = re.compile(r"0|[+-]?[1-9][0-9]*")
NUMBER = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?|nan",
    re.IGNORECASE,
)
# Whole number that is stored for a missing label, if an empty cell means a missing label.
NO_LABEL = int(np.iinfo(np.int64).min)
TRUTH = {"true": 1, "True": 1, "TRUE": 1, "false": 0, "False": 0, "FALSE": 0}


def label_of_text(text: str, decimal: str = ".") -> int | float | str:
    """Return the label in a cell of text; a float result is a number that is not a label.

    decimal: the decimal mark of numbers.

    Examples
    --------
    >>> [label_of_text(text) for text in ("3", "-1.0", "true", "0.5", "03", "setosa")]
    [3, -1, 1, 0.5, '03', 'setosa']
    >>> label_of_text("3,0", decimal=","), label_of_text("3.0", decimal=",")
    (3, '3.0')
    """
    if text in TRUTH:
        return TRUTH[text]
    # Blanks and decimal marks are read as in features.
    number = text.strip(" \t").translate(str.maketrans(f".{decimal}", f"{decimal}."))
    if number == "-0" or not NUMBER.fullmatch(number):
        return text
    value = float(number)
    # Through float64, long integers would lose their last digits.
    if _INTEGER.fullmatch(number) and abs(value) <= 2.0**63 and -(2**63) <= int(number) < 2**63:
        return int(number)
    return int(value) if are_whole(np.array([value]))[0] else value


def feature_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Return the type that features of `dtype` are stored as, in the machine's byte order.

    uint8 for bool, float32 for bfloat16, otherwise `dtype` itself.

    name: name of the array, for the error.
    """
    _refuse_objects(dtype, name)
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if _is_bfloat16(dtype):
        return np.dtype(np.float32)
    if dtype.kind in "iu" or (dtype.kind == "f" and dtype.type is not np.longdouble):
        return dtype.newbyteorder("=")
    raise DataError(
        f"{name} has dtype {dtype}.",
        "Write numbers as bool, integers, float16, bfloat16, float32 or float64.",
    )


def as_features(rows: np.ndarray) -> np.ndarray:
    """Return features of a type that numpy computes with: bfloat16 as float32.

    Zarr has no bfloat16 either. The additional zero bits of float32 compress to nothing.

    >>> as_features(np.array([0x3F80, 0xC040], np.uint16).view("V2"))
    array([ 1., -3.], dtype=float32)
    """
    if not _is_bfloat16(rows.dtype):
        return rows
    return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _is_bfloat16(dtype: np.dtype) -> bool:
    # To numpy and its .npy files, types of other packages such as bfloat16 are void.
    return dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None


def sparse_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Return the type of values in CSR: float32, or float64 if float32 cannot hold all of `dtype`.

    name: the array, for the error.

    Examples
    --------
    >>> [str(sparse_dtype(np.dtype(of), "X")) for of in ("bool", "int16", "int32", "float64")]
    ['float32', 'float32', 'float64', 'float64']
    """
    return np.result_type(feature_dtype(dtype, name), np.float32)


def label_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Return the type that labels are stored as: int64 for bool and numbers, StringDType for text.

    name: name of the array, for the error.
    """
    _refuse_objects(dtype, name)
    if dtype.kind in "biu" or (dtype.kind == "f" and dtype.type is not np.longdouble):
        return INT64
    if dtype.kind in "US" or (dtype.kind == "T" and not hasattr(dtype, "na_object")):
        return STRING
    raise DataError(f"{name} has dtype {dtype}.", LABEL_RULE)


def means_empty(unlabelled: int | str | float | None) -> bool:
    """Return whether empty cells mean a missing label: they do if the marker is "" or nan.

    >>> [means_empty(mark) for mark in ("", "nan", np.nan, -1, None)]
    [True, True, True, False, False]
    """
    return unlabelled is not None and str(unlabelled).strip().lower() in ("", "nan")


def checked_mark(
    unlabelled: int | str | float | None,
    y_dtype: np.dtype | None,
    target_names: tuple[str, ...] | None,
) -> int | str | float | None:
    """Return the marker for a missing label, of the type that labels are stored as.

    If the marker means empty cells, the result is `NO_LABEL` for whole numbers, NaN for numeric
    targets, and the marker itself for text.

    unlabelled: the marker that a user gives.
    y_dtype: type that labels or targets are stored as.
    target_names: names of numeric targets; None for labels.
    """
    if unlabelled is None:
        return None
    if y_dtype is None:
        raise ParameterError(
            f"`unlabelled` is {unlabelled!r}, but there are no labels or targets.",
            "Leave `unlabelled` out: it applies to labels and targets only.",
        )
    if y_dtype == STRING:
        return str(unlabelled)
    if means_empty(unlabelled):
        return NO_LABEL if target_names is None else np.nan
    if target_names is not None:
        with suppress(ValueError):
            return float(unlabelled)
    elif isinstance(label := label_of_text(str(unlabelled)), int):
        return label
    noun = "label" if target_names is None else "target"
    raise ParameterError(
        f"`unlabelled` is {unlabelled!r}, but the {noun}s are numbers.",
        f"Give the number that marks a missing {noun}.",
    )


def check_weight_dtype(dtype: np.dtype, name: str) -> None:
    """Raise DataError if weights have a type that cannot be stored as float64.

    name: name of the array, for the error.
    """
    _refuse_objects(dtype, name)
    if dtype.kind not in "iuf" or dtype.type is np.longdouble:
        raise DataError(f"{name} has dtype {dtype}.", "Write weights as integers or floats.")


def to_labels(values: np.ndarray, name: str, *, first_row: int = 0) -> np.ndarray:
    """Return labels (b,) as int64 or StringDType.

    values (b,): labels of any type that `label_dtype` allows.
    name: name of the labels, for the error.
    first_row: row of the table that ``values[0]`` belongs to, for the error.
    """
    target = label_dtype(values.dtype, name)
    if target == INT64:
        wrong = ~are_whole(values)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{name} has the label {values[row]} in row {first_row + row} (the first is 0).",
                LABEL_RULE,
            )
        return values.astype(INT64)
    if values.dtype.kind == "S":
        try:
            values = np.strings.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name} has bytes other than UTF-8 at or after row {first_row} (the first is 0).",
                "Write labels as UTF-8 text.",
            ) from error
    if values.dtype.kind == "U":
        # numpy converts no other byte order to StringDType.
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
    return values.astype(STRING)


def are_whole(values: np.ndarray) -> np.ndarray:
    """Return which numbers are labels: whole, within int64, and exact if they are floats."""
    if values.dtype.kind == "f":
        # As float64, because the bound overflows float16. Above the bound, a float may stand for
        # several whole numbers.
        wide = values.astype(np.float64)
        return (wide == np.floor(wide)) & (abs(wide) < 2.0**53)
    if values.dtype.kind == "u":
        return values <= np.uint64(np.iinfo(np.int64).max)
    return np.ones(values.shape, dtype=bool)


def _refuse_objects(dtype: np.dtype, name: str) -> None:
    # numpy counts StringDType as an object type too.
    if dtype.hasobject and dtype.kind != "T":
        raise DataError(
            f"{name} holds Python objects, not numbers or text of one type.",
            "Convert the values to one type, such as X.astype(float), X.toarray() of a sparse "
            "matrix, or y.astype(str).",
        )
