"""What tables with named columns have in common, whatever their format."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.dtypes import STRING
from dask_nrbfn.sources.layout import check_apart

NAMES_SHOWN = 10


def common_columns(columns: Mapping[Any, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the columns of all files; raises DataError if they differ or lack names."""
    first, *others = columns
    for path, names in columns.items():
        name, count = Counter(names).most_common(1)[0] if names else ("", 1)
        if count > 1:
            raise DataError(
                f"{path} has several columns named {name!r}.",
                "Give each column its own name, in the first line of a CSV file.",
            )
        if "" in names:
            raise DataError(
                f"Column {names.index('') + 1} of {path} has no name.",
                "Name it if it is a feature; leave it out if it is an index.",
            )
    for path in others:
        for name in sorted(set(columns[first]) ^ set(columns[path])):
            has, lacks = (first, path) if name in columns[first] else (path, first)
            raise DataError(
                f"{lacks} has no column {name!r}, which {has} has.",
                "Write the same columns to every file of a directory.",
            )
    return columns[first]


def feature_columns(
    columns: tuple[str, ...],
    label: str | None,
    targets: tuple[str, ...] | None,
    weights: str | None,
    origin: str,
) -> tuple[str, ...]:
    """Return the columns that are features; raises DataError if one of the others is not there."""
    named = [("label", label), *(("target", name) for name in targets or ()), ("weights", weights)]
    check_apart("weights", weights, label, *(targets or ()))
    for option, wanted in named:
        if wanted is not None and wanted not in columns:
            shown = ", ".join(repr(name) for name in columns[:NAMES_SHOWN])
            more = f" and {len(columns) - NAMES_SHOWN} more" if len(columns) > NAMES_SHOWN else ""
            raise DataError(
                f"{origin} has no column {wanted!r}; it has {shown}{more}.",
                f"Name one of its columns with `{option}`.",
            )
    taken = {name for _, name in named}
    return tuple(name for name in columns if name not in taken)


def first_not_finite(X: np.ndarray) -> tuple[int, int] | None:
    """Return row and column of the first value that is NaN or infinite."""
    if X.dtype.kind != "f" or np.isfinite(X).all():
        return None
    row, column = np.argwhere(~np.isfinite(X))[0]
    return int(row), int(column)


def not_finite_error(cell: pa.Scalar, where: str, place: str) -> DataError:
    """Return the error about a cell of a number that is none, or infinite."""
    value = cell.as_py()
    has = "no value" if value is None else str(value)
    return DataError(
        f"{where} has {has} in {place}.",
        "Remove the row or fill the value in; every value must be finite.",
    )


def label_values(column: pa.Array) -> np.ndarray:
    """Return the cells of a label column, text as strings of numpy."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(STRING) if values.dtype == object else values


def no_value_error(where: str, place: str) -> DataError:
    """Return the error about an empty cell."""
    return DataError(f"{where} has no value in {place}.", "Fill the cell or leave the row out.")
