"""The allowed types of features, targets, labels and weights of every source as they are stored."""

from contextlib import suppress
from decimal import Decimal

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError

INT64 = np.dtype(np.int64)
FLOAT64 = np.dtype(np.float64)
STRING = np.dtypes.StringDType()
LABEL_RULE = (
    "Write labels as whole numbers within int64 (floats: below 2**53), true and false, or text; "
    "round numbers that encode classes, or give the classes names."
)
# Whole number that is stored for a missing label, if an empty cell means a missing label.
NO_LABEL = int(np.iinfo(np.int64).min)


def feature_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Return the type that features are stored as: bool as uint8."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if _is_number(dtype):
        return dtype.newbyteorder("=")
    raise _wrong(dtype, name, "Write numbers as bool, integers, float16, float32 or float64.")


def sparse_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Return the type of values in CSR: float32, or float64 if float32 does not hold `dtype`."""
    return np.result_type(feature_dtype(dtype, name), np.float32)


def label_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Return the type that labels are stored as: int64 for numbers, StringDType for text."""
    if dtype.kind == "b" or _is_number(dtype):
        return INT64
    if dtype.kind in "US" or (dtype.kind == "T" and not hasattr(dtype, "na_object")):
        return STRING
    raise _wrong(dtype, name, LABEL_RULE)


def check_weight_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Return float64 for weights that can be stored as such; other types are an error."""
    if not _is_number(dtype):
        raise _wrong(dtype, name, "Write weights as integers or floats.")
    return FLOAT64


def _is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.type is not np.longdouble)


def _wrong(dtype: np.dtype, name: str, remedy: str) -> DataError:
    what = "holds Python objects" if dtype.kind == "O" else f"has dtype {dtype}"
    return DataError(f"{name} {what}.", remedy)


def means_empty(unlabelled: int | str | float | None) -> bool:
    """Return whether empty cells mean a missing label: they do if the marker is "" or nan."""
    return unlabelled is not None and str(unlabelled).strip().lower() in ("", "nan")


def checked_mark(
    unlabelled: int | str | float | None,
    y_dtype: np.dtype | None,
    target_names: tuple[str, ...] | None,
) -> int | str | float | None:
    """Return the marker for a missing label, of the type that labels or targets are stored as."""
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
    with suppress(ArithmeticError):
        # A float would lose the last digits of long integers.
        number = Decimal(str(unlabelled))
        if target_names is not None:
            return float(number)
        if -(2**63) <= number < 2**63 and number == int(number):
            return int(number)
    noun = "label" if target_names is None else "target"
    raise ParameterError(
        f"`unlabelled` is {unlabelled!r}, but the {noun}s are numbers.",
        f"Give the number that marks a missing {noun}.",
    )


def to_labels(values: np.ndarray, name: str, *, first_row: int = 0) -> np.ndarray:
    """Return labels (b,) as int64 or StringDType; `first_row` is the index of the first."""
    if label_dtype(values.dtype, name) == INT64:
        with np.errstate(invalid="ignore"):
            whole = values.astype(INT64)
        wrong = whole != values
        if values.dtype.kind == "f":
            # Above this bound, a float may stand for several whole numbers.
            wrong |= abs(values.astype(FLOAT64)) >= 2.0**53
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{name} has the label {values[row]} in row {first_row + row} (the first is 0).",
                LABEL_RULE,
            )
        return whole
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
