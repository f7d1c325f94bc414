"""Input of Python users: frames of any library, and labels of any type, as numbers and text."""

from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np

from dask_nrbfn.errors import DataError, plural
from dask_nrbfn.numeric.rows import is_scipy_sparse, unmasked
from dask_nrbfn.sources.dtypes import STRING, checked_mark, label_dtype, means_empty, to_labels
from dask_nrbfn.sources.source import check_found


def as_frame(X: Any, name: str = "X") -> nw.DataFrame[Any] | None:
    """Return a frame of pandas, polars, Arrow or another library in one form; None for the rest."""
    try:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        names = frame.columns if isinstance(frame, nw.DataFrame) else ()
    except nw.exceptions.DuplicateError:
        # The `columns` of an Arrow table are not names.
        names = getattr(X, "column_names", None) or X.columns
    names = [*map(str, names)]
    check_found(names, names, name, "Rename the columns.")
    return frame if isinstance(frame, nw.DataFrame) else None


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


def label_column(y: Any, name: str = "y") -> Any:
    """Return the column of a frame of one column, also of dask; labels of other types unchanged."""
    frame = as_frame(getattr(y, "_meta", y), name)
    if frame is None:
        return y
    if frame.shape[1] != 1:
        raise DataError(
            f"{name} has {plural(frame.shape[1], 'column')}.",
            f"Pass the column of the labels, such as {name}['NAME'].",
        )
    return y[y.columns[0]] if hasattr(y, "_meta") else next(frame.iter_columns()).to_native()


def in_seconds(values: Any, name: str) -> str:
    """Return the remedy that makes numbers of dates and durations in a series or array."""
    dates, durations = (f"numpy.asarray({name}, '{of}8[s]').astype(float)" for of in "Mm")
    if hasattr(values, "dt"):
        durations = f"{name}.dt.total_seconds()"
        dates = f"({name} - {name}.min()).dt.total_seconds()"
    return f"Convert dates to seconds, such as {dates}, and durations by {durations}."


def plain_rows(X: Any, name: str = "X") -> Any:
    """Return the numbers of a frame (n, p), NaN where missing; other tables unchanged."""
    frame = as_frame(X, name)
    if frame is None:
        return unmasked(X)
    columns = [_numbers(column, name) for column in frame.iter_columns()]
    return np.column_stack(columns) if columns else np.empty(frame.shape)


def has_gaps(X: Any) -> bool:
    """Return whether a number of a table is missing; no value of sparse rows is."""
    if (frame := as_frame(X)) is None:
        values = np.empty(0) if is_scipy_sparse(X) else np.asarray(unmasked(X))
        return values.dtype.kind == "f" and bool(np.isnan(values).any())
    numbers = (_numbers(column, "X") for column in frame.iter_columns())
    return any(each.dtype.kind == "f" and np.isnan(each).any() for each in numbers)


def _numbers(column: nw.Series[Any], name: str) -> np.ndarray:
    """Return the numbers of a column (n,), NaN where missing."""
    values, dtype = column.to_numpy(), getattr(column.to_native(), "dtype", column.dtype)
    if values.dtype.kind in "biuf" and not hasattr(dtype, "na_value"):
        return values.astype(np.uint8) if values.dtype.kind == "b" else values
    # Always float64, so that all parts of a table have one type whatever their values.
    import pyarrow as pa

    cells = arrow_of(column, f"Column {column.name!r} of {name}")
    of = pa.types
    are_numbers = (of.is_boolean, of.is_integer, of.is_floating, of.is_null)
    # Without rows, dask does not know what the categories are.
    is_unknown = not len(cells) and column.dtype == nw.Categorical
    if not (is_unknown or any(check(cells.type) for check in are_numbers)):
        remedy = f"Leave the column out, or encode it, as pandas.get_dummies({name}) does."
        raise DataError(
            f"Column {column.name!r} of {name} has type {dtype}, which is not a number.",
            in_seconds(column, "column") if column.dtype.is_temporal() else remedy,
        )
    return cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def arrow_of(values: Any, place: str) -> Any:
    """Return a column of a frame or array as an Arrow array, without categories and float16."""
    import pyarrow as pa

    native = nw.to_native(values, pass_through=True)
    if hasattr(native, "sparse"):
        values = np.asarray(native)
    if isinstance(values, np.ndarray):
        # Arrow has the order of bytes of the machine.
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
    try:
        is_column = isinstance(values, nw.Series)
        cells = values.to_arrow() if is_column else pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise DataError(
            f"{place} has values of several types, or of an unknown type ({error}).",
            "Convert them to one type, such as float or str.",
        ) from error
    if pa.types.is_float16(cells.type):
        return cells.cast(pa.float32())
    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells


@dataclass(frozen=True)
class Labels:
    """Labels of one type (n,): truth, numbers, or text as U or objects.

    missing (n,): which labels are missing, and have another value here; None: none.
    """

    values: Any
    name: str
    first_row: int
    missing: np.ndarray | None = None

    def stored(self, unlabelled: int | str | float | None = None) -> np.ndarray:
        """Return int64 or StringDType (n,), with the marker of `checked_mark` where missing."""
        is_object = self.values.dtype.kind == "O"
        values = self.values.astype(STRING) if is_object else self.values
        stored = to_labels(values, self.name, first_row=self.first_row)
        if self.missing is not None:
            stored[self.missing] = checked_mark(unlabelled, stored.dtype, None)
        return stored


def labels_of(
    y: Any, unlabelled: int | str | float | None = None, *, name: str = "y", first_row: int = 0
) -> Labels:
    """Return labels (n,); missing ones are an error unless `unlabelled` means empty cells."""
    y = label_column(y, name)
    values, dtype = np.asarray(y), getattr(y, "dtype", None)
    if values.ndim != 1 or not len(values):
        return Labels(values, name, first_row)
    # numpy would change missing or mixed labels.
    may_lack = hasattr(dtype, "na_value") and values.dtype.kind not in "biu"
    may_lack |= hasattr(y, "null_count") or isinstance(y, np.ma.MaskedArray)
    missing = np.zeros(len(values), bool)
    if may_lack or values.dtype.kind == "O" or (dtype is None and values.dtype.kind == "U"):
        values, missing = _of_objects(y, name)
    if values.dtype.kind == "f":
        missing = missing | np.isnan(values)
    if values.dtype.kind in "ST":
        values = to_labels(values, name, first_row=first_row).astype(object)
    if not missing.any():
        return Labels(values, name, first_row)
    if not means_empty(unlabelled):
        row = first_row + int(missing.argmax())
        raise DataError(f"{name} has no label in row {row} (the first is 0).", "Leave the row out.")
    if values.dtype.kind == "f":
        values = np.where(missing, 0, values)
    return Labels(values, name, first_row, missing)


def _of_objects(y: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (n,) of one type, with another label where missing, and which are missing."""
    import pyarrow as pa

    cells = arrow_of(y, name)
    if pa.types.is_string_view(cells.type):
        cells = cells.cast(pa.string())
    elif "binary" in str(cells.type):
        cells = cells.cast(pa.binary())
    missing, given = cells.is_null().to_numpy(zero_copy_only=False), cells.drop_null()
    is_text = cells.type in (pa.string(), pa.large_string())
    if not len(given):
        values = np.full(len(cells), "", object) if is_text else np.zeros(len(cells), np.int64)
        return values, missing
    is_binary = pa.types.is_binary(cells.type)
    if not (is_text or is_binary or pa.types.is_primitive(cells.type)):
        # Raises the error about objects.
        label_dtype(np.dtype(object), name)
    values = cells.fill_null(given[0]).to_numpy(zero_copy_only=False)
    return values.astype(np.bytes_) if is_binary else values, missing


def plain_dtype(dtype: Any) -> np.dtype:
    """Return the numpy type of a pandas type, or of its categories; object if there is none."""
    if hasattr(dtype, "categories"):
        return plain_dtype(dtype.categories.dtype)
    if isinstance(dtype, np.dtype):
        return dtype
    return np.dtype(getattr(dtype, "numpy_dtype", object))
