"""Input of Python users: frames of any library, and labels of any type, as numbers and text."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import unmasked
from dask_nrbfn.sources.dtypes import (
    LABEL_RULE,
    NO_LABEL,
    STRING,
    label_dtype,
    means_empty,
    to_labels,
)


def as_frame(X: Any, name: str = "X") -> nw.DataFrame[Any] | None:
    """Return a frame of pandas, polars, Arrow or another library in one form; None for the rest."""
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        # The `columns` of an Arrow table are not names.
        raise _same_name(getattr(X, "column_names", None) or X.columns, name) from error
    if not isinstance(frame, nw.DataFrame):
        return None
    if len({*map(str, frame.columns)}) < len(frame.columns):
        raise _same_name(frame.columns, name)
    return frame


def _same_name(names: Iterable[Any], name: str) -> DataError:
    twice = Counter(map(str, names)).most_common(1)[0][0]
    return DataError(f"{name} has several columns named {twice!r}.", "Rename the columns.")


def column_names(X: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a frame, also of dask; None for anything else."""
    frame = as_frame(getattr(X, "_meta", X))
    return None if frame is None else tuple(map(str, frame.columns))


def as_columns(target: Any) -> Any:
    """Return a series, also of dask, as a frame of one column."""
    return target.to_frame() if hasattr(target, "to_frame") else target


def target_names_of(target: Any) -> tuple[str, ...] | None:
    """Return the column names of a frame or series of targets; None for other arrays."""
    if hasattr(target, "to_frame") and not (isinstance(target.name, str) and target.name):
        return None
    return column_names(as_columns(target))


def has_kinds(X: Any, name: str = "X") -> bool:
    """Return whether a frame has columns that are neither numeric nor boolean by type."""
    frame = as_frame(X, name)
    types = () if frame is None else frame.schema.values()
    return not all(of.is_integer() or of.is_float() or of == nw.Boolean for of in types)


def plain_rows(X: Any, name: str = "X") -> Any:
    """Return the numbers of a frame (n, p), NaN where missing; other tables unchanged."""
    frame = as_frame(X, name)
    if frame is None:
        return unmasked(X)
    columns = [_numbers(column, name) for column in frame.iter_columns()]
    return np.column_stack(columns) if columns else np.empty(frame.shape)


def _numbers(column: nw.Series[Any], name: str) -> np.ndarray:
    """Return the numbers of a column (n,).

    Types of pandas that may lack values become float64 whatever their values, so that all parts of
    a table have one type.
    """
    values, dtype = column.to_numpy(), getattr(column.to_native(), "dtype", column.dtype)
    # Without rows, numbers as objects look like text.
    may_be_numbers = column.dtype != nw.String or isinstance(dtype, np.dtype)
    if values.dtype.kind == "O" and may_be_numbers and all(map(_is_number, values)):
        values = np.array([np.nan if _is_missing(value) else value for value in values], float)
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"Column {column.name!r} of {name} has type {dtype}, which is not a number.",
            f"Leave the column out, or encode it, as pandas.get_dummies({name}) does.",
        )
    if hasattr(dtype, "na_value"):
        return values.astype(np.float64)
    return values.astype(np.uint8) if values.dtype.kind == "b" else values


@dataclass(frozen=True)
class Labels:
    """Labels of one type, as `labels_of` returns them.

    values (n,): truth, numbers, or text as U or objects; where a label is missing, another label.
    missing (n,): which labels are missing; None: none.
    """

    values: Any
    name: str
    first_row: int
    missing: np.ndarray | None = None

    @property
    def are_boolean(self) -> bool:
        """Whether the labels are true and false."""
        return bool(self.values.dtype.kind == "b")

    def stored(self, unlabelled: int | str | float | None = None) -> np.ndarray:
        """Return int64 or StringDType (n,), with the marker of `checked_mark` where missing."""
        is_object = self.values.dtype.kind == "O"
        values = self.values.astype(STRING) if is_object else self.values
        stored = to_labels(values, self.name, first_row=self.first_row)
        if self.missing is not None:
            stored[self.missing] = str(unlabelled) if stored.dtype == STRING else NO_LABEL
        return stored


def labels_of(
    y: Any, unlabelled: int | str | float | None = None, *, name: str = "y", first_row: int = 0
) -> Labels:
    """Return labels (n,) of objects, categories, nullable types, bytes or masked arrays.

    Missing labels are an error unless `unlabelled` means empty cells. Errors give `name`, and count
    rows from `first_row`.
    """
    values, may_lack = _as_array(y), means_empty(unlabelled)
    if values.ndim != 1:
        return Labels(values, name, first_row)
    missing = np.zeros(len(values), dtype=bool)
    if values.dtype.kind == "O":
        missing = np.array([*map(_is_missing, values)], dtype=bool)
    elif values.dtype.kind == "f" and may_lack:
        missing = np.isnan(values)
    if missing.any():
        if not may_lack:
            row = first_row + int(missing.argmax())
            raise DataError(
                f"{name} has no label in row {row} (the first is 0).", "Leave the row out."
            )
        another = 0 if missing.all() else values[~missing][0]
        values = values.copy()
        values[missing] = another
    values = _of_one_type(values, name, first_row)
    return Labels(values, name, first_row, missing if missing.any() else None)


def _as_array(y: Any) -> np.ndarray:
    """Return labels as an array; as objects if numpy would change missing or mixed labels."""
    if isinstance(y, np.ma.MaskedArray) and np.ma.is_masked(y):
        values = y.data.astype(object)
        values[np.ma.getmaskarray(y)] = None
        return values
    values, dtype = np.asarray(y), getattr(y, "dtype", None)
    is_list_of_text = dtype is None and values.dtype.kind in "SU"
    return np.array(y, dtype=object) if is_list_of_text or hasattr(dtype, "na_value") else values


def _of_one_type(values: np.ndarray, name: str, first_row: int) -> np.ndarray:
    """Return bytes and objects that are numbers, truth or text as an array of that type."""
    if values.dtype.kind in "ST":
        return to_labels(values, name, first_row=first_row).astype(object)
    if values.dtype.kind != "O" or not len(values):
        return values
    labels = values.tolist()
    is_text = [isinstance(label, str) for label in labels]
    if all(is_text):
        return values
    if any(is_text):
        row = is_text.index(False)
        raise DataError(
            f"{name} has the label {labels[row]!r} among text in row {first_row + row} (the first "
            "is 0).",
            LABEL_RULE,
        )
    if all(isinstance(label, bytes) for label in labels):
        return _of_one_type(np.array(labels), name, first_row)
    if not all(map(_is_number, labels)):
        # Raises the error about objects.
        label_dtype(values.dtype, name)
    return np.array(labels)


def plain_dtype(dtype: Any) -> np.dtype:
    """Return the numpy type of a pandas type, or of its categories; object if there is none."""
    if hasattr(dtype, "categories"):
        return plain_dtype(dtype.categories.dtype)
    if isinstance(dtype, np.dtype):
        return dtype
    return np.dtype(getattr(dtype, "numpy_dtype", object))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.bool_) or _is_missing(value)


def _is_missing(value: Any) -> bool:
    # The missing values of pandas are neither true nor false, and equal nothing.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)
