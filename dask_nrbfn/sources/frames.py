"""Input of Python users: frames, categories and objects as plain numbers and text."""

import math
from collections import Counter
from collections.abc import Iterable
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import unmasked
from dask_nrbfn.sources.dtypes import LABEL_RULE, NO_LABEL, STRING, means_empty, to_labels


def as_frame(X: Any, name: str = "X") -> nw.DataFrame[Any] | None:
    """Return a frame of pandas, polars, Arrow or another library in one form; None for the rest.

    X: A table of any library, or anything else.
    name: the table, for errors.
    """
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
    """Return the names of the columns of a frame, dask's too; None for anything else."""
    frame = as_frame(getattr(X, "_meta", X))
    return None if frame is None else tuple(map(str, frame.columns))


def as_columns(target: Any) -> Any:
    """Return a series, pandas' or dask's, as a frame of one column."""
    return target.to_frame() if hasattr(target, "to_frame") else target


def target_names_of(target: Any) -> tuple[str, ...] | None:
    """Return the column names of a frame or series of targets; None for other arrays."""
    if hasattr(target, "to_frame") and not (isinstance(target.name, str) and target.name):
        return None
    return column_names(as_columns(target))


def has_kinds(X: Any, name: str = "X") -> bool:
    """Return whether a frame has columns that are neither numeric nor boolean by type.

    X: A table of any library, or anything else.
    name: the table, for errors.
    """
    frame = as_frame(X, name)
    if frame is None:
        return False
    types = frame.schema.values()
    return not all(of.is_integer() or of.is_float() or of == nw.Boolean for of in types)


def plain_rows(X: Any, name: str = "X") -> Any:
    """Return a pandas DataFrame with all columns as numpy numbers, masked numbers as NaN.

    Categories of numbers, nullable numbers and objects that are numbers become float64, whatever
    their values, so that the parts of one table have one type. Anything else is returned as it is.
    """
    if as_frame(X, name) is None or not hasattr(X, "isetitem"):
        return unmasked(X)
    plain = X
    for place, (column_name, dtype) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        kind = plain_dtype(dtype).kind
        column = X.iloc[:, place]
        if kind not in "biuf" and not (kind == "O" and all(map(_is_number, column.tolist()))):
            categories = getattr(dtype, "categories", None)
            text = f"{dtype}" if categories is None else f"category of {categories.dtype}"
            raise DataError(
                f"Column {column_name!r} of {name} has type {text}, which is not a number.",
                f"Leave the column out, or encode it, as pandas.get_dummies({name}) does.",
            )
        if isinstance(dtype, np.dtype) and kind in "iuf":
            continue
        if plain is X:
            plain = X.copy(deep=False)
        if isinstance(dtype, np.dtype) and kind == "b":
            plain.isetitem(place, column.to_numpy(dtype=np.uint8))
        else:
            plain.isetitem(place, column.to_numpy(dtype=np.float64, na_value=np.nan))
    return plain


def plain_labels(y: Any, name: str = "y", *, first_row: int = 0) -> Any:
    """Return labels (n,) of objects, bytes, nullable types or categories as an array of one type.

    The type is bool or a number; for text it is object. Labels whose type numpy recognizes and
    scikit-learn accepts are returned unchanged.

    name: the labels, for errors.
    first_row: row index of the first label, for errors.
    y (n,).
    """
    dtype = getattr(y, "dtype", None)
    if y is None or (isinstance(dtype, np.dtype) and dtype.kind not in "OST"):
        return y
    values = np.asarray(y)
    if values.ndim != 1 or (dtype is None and values.dtype.kind not in "OSTU"):
        return y
    if values.dtype.kind == "U":
        # numpy converts all other values beside text to text.
        values = np.asarray(y, dtype=object)
    if values.dtype.kind in "ST":
        return to_labels(values, name, first_row=first_row).astype(object)
    labels = values.tolist()
    for row, label in enumerate(labels, first_row):
        if _is_missing(label):
            raise DataError(
                f"{name} has no label in row {row} (the first is 0).", "Leave the row out."
            )
    text = [isinstance(label, str) for label in labels]
    if all(text):
        return y if dtype is None else np.array(labels, dtype=object)
    if any(text):
        row = text.index(False)
        raise DataError(
            f"{name} has the label {labels[row]!r} among text in row {first_row + row} (the first "
            "is 0).",
            LABEL_RULE,
        )
    return np.array(labels) if all(map(_is_number, labels)) else y


def typed_labels(
    y: Any, name: str = "y", *, first_row: int = 0, unlabelled: int | str | float | None = None
) -> np.ndarray:
    """Return `plain_labels` as an array in which text is StringDType, ndarray (n,).

    If `unlabelled` means empty cells, missing labels become the marker of `checked_mark`.

    y, name, first_row: see `plain_labels`.
    unlabelled: the marker for a missing label.
    """
    given, none = split_gaps(y, unlabelled)
    labels = np.asarray(plain_labels(given, name, first_row=first_row))
    is_text = labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat)
    labels = np.array(labels.tolist(), dtype=STRING) if is_text else labels
    if none is not None:
        labels = to_labels(labels, name, first_row=first_row)
        labels[none] = str(unlabelled) if labels.dtype == STRING else NO_LABEL
    return labels


def split_gaps(y: Any, unlabelled: int | str | float | None) -> tuple[Any, np.ndarray | None]:
    """Return labels in which missing ones are replaced by a given label, and which are missing.

    The second is None if no label is missing, or `unlabelled` does not mean empty cells. Masked
    labels are missing.
    """
    if isinstance(y, np.ma.MaskedArray):
        mask, y = np.ma.getmaskarray(y), y.data
        if mask.any():
            y = y.astype(object)
            y[mask] = None
    if not means_empty(unlabelled) or np.ndim(y) != 1:
        return y, None
    values = np.array(y, dtype=object)
    none = np.array([_is_missing(label) for label in values], dtype=bool)
    if not none.any():
        return y, None
    values[none] = 0 if none.all() else values[~none][0]
    return values, none


def are_boolean(y: Any, unlabelled: int | str | float | None = None) -> bool:
    """Return whether labels, except missing ones that are unlabelled, are true and false.

    >>> are_boolean(np.array([True, False])), are_boolean([True, None], ""), are_boolean([1, 0])
    (True, True, False)
    """
    return np.asarray(plain_labels(split_gaps(y, unlabelled)[0])).dtype.kind == "b"


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
