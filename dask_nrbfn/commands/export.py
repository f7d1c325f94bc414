"""Predictions as a table: copied from their Zarr group, chunk by chunk."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.storage.array import get_array, read_rows
from dask_nrbfn.storage.group import Location, open_group

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".parquet")
"""Suffixes of files that predictions are written to."""


PREDICTION = "prediction"
"""Name of the column of predictions, unless another one is asked for."""


def column_names(
    arrays: Collection[str],
    attributes: Mapping[str, Any],
    keep: Collection[str] = (),
    prediction_name: str | None = None,
) -> dict[str, list[str]]:
    """Return what the columns of each array of predictions are called in a table, in order.

    Parameters
    ----------
    arrays : collection of str
        Names of those that there are.
    attributes : mapping
        Of their group: `id`, and `classes` or `target_names`.
    keep : collection of str
        Further columns of the table.
    prediction_name : str, optional
        Name of the predicted label or number; of several numbers ``NAME_TARGET``. By default
        numbers have the names of their targets, unless the table keeps such a column.
    """
    classes, targets = attributes.get("classes", []), attributes.get("target_names", [])
    values, own = targets, prediction_name or PREDICTION
    if prediction_name is not None or {*targets} & {*keep}:
        values = [own] if len(targets) == 1 else [f"{own}_{target}" for target in targets]
    names = {
        "ids": [attributes.get("id", "")],
        "labels": [own],
        "values": values,
        "probabilities": [f"probability_{label}" for label in classes],
        "scores": [f"score_{label}" for label in classes],
    }
    return {array: columns for array, columns in names.items() if array in arrays}


def check_distinct_columns(written: Mapping[str, list[str]], kept: Iterable[str]) -> None:
    """Raise ParameterError if columns that are written and kept have the same name."""
    counts = Counter(chain(*written.values(), kept))
    name, count = counts.most_common(1)[0]
    if count > 1:
        other = "give the column of the file another name"
        if name in (*written.get("labels", ()), *written.get("values", ())):
            other = "name the predictions with `prediction_name`"
        raise ParameterError(
            f"two columns of the predictions would be called {name!r}.",
            f"Leave it out of `keep`, or {other}.",
        )


def check_in_csv(kept: "pa.RecordBatchReader") -> None:
    """Raise ParameterError if a column cannot be written as CSV."""
    import pyarrow as pa

    for field in kept.schema:
        if pa.types.is_nested(field.type) or "binary" in str(field.type):
            raise ParameterError(
                f"`keep` names {field.name!r}, whose type {field.type} CSV does not have.",
                "Write .parquet, or leave it out.",
            )


def write_predictions(
    source: Location,
    target: Path,
    names: Mapping[str, list[str]],
    kept: "pa.RecordBatchReader | None" = None,
    bad_rows: Sequence[int] = (),
) -> int:
    """Write predictions as a CSV or Parquet file; return how many rows have none.

    Parameters
    ----------
    source : Location
        Of their group. Of rows that its array ``skipped`` marks nothing but the id is written.
    target : Path
    names : mapping
        Of the columns of each array that is written, as `column_names` has them.
    kept : RecordBatchReader, optional
        Further columns of the same rows, which come after the ids.
    bad_rows : sequence of int
        Further rows that are skipped.

    Raises
    ------
    DataError
        If `kept` has another number of rows.
    """
    # Takes longer to load than commands that write no table do in all.
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    group = open_group(source, kind="predictions")
    arrays = {name: get_array(group, name) for name in group.array_keys()}
    skipped = None
    if "skipped" in arrays:
        skipped = read_rows(arrays.pop("skipped"))
        skipped[[*bad_rows]] = True
    in_csv = target.suffix.lower() == ".csv"
    tables = _tables(arrays, names, skipped, in_csv=in_csv)
    if kept is not None:
        tables = _beside(tables, kept, place=int("ids" in arrays))
    if in_csv and skipped is not None:
        tables = map(_without_empty_lines, tables)
    first = next(tables)
    write = pa.csv.CSVWriter if in_csv else pa.parquet.ParquetWriter
    with write(target, first.schema) as out:
        for table in chain([first], tables):
            out.write_table(table)
    return 0 if skipped is None else int(np.count_nonzero(skipped))


def _tables(
    arrays: Mapping[str, "zarr.Array[Any]"],
    names: Mapping[str, list[str]],
    skipped: NDArray[np.bool_] | None,
    *,
    in_csv: bool,
) -> "Iterator[pa.Table]":
    """Yield the predictions of consecutive rows as tables."""
    import pyarrow as pa

    n_rows, chunk_rows = next((array.shape[0], array.chunks[0]) for array in arrays.values())
    for start in range(0, n_rows, chunk_rows):
        stop = start + chunk_rows
        chunk = {name: read_rows(each, start, stop) for name, each in arrays.items()}
        none = None if skipped is None else skipped[start:stop]
        if in_csv and "labels" in chunk and chunk["labels"].dtype == bool:
            # As Python and pandas write them; pyarrow has them in small letters.
            chunk["labels"] = np.where(chunk["labels"], "True", "False")
        columns = {
            column: _arrow(values, None if name == "ids" else none)
            for name in names
            for column, values in zip(names[name], np.atleast_2d(chunk[name].T), strict=True)
        }
        yield pa.table(columns)


def _arrow(values: NDArray[Any], none: NDArray[np.bool_] | None) -> "pa.Array":
    import pyarrow as pa

    if values.dtype.kind == "T":
        return pa.array(values.tolist(), pa.string(), mask=none)
    return pa.array(values, mask=none)


def _without_empty_lines(table: "pa.Table") -> "pa.Table":
    """Return a table of which every row has text in CSV: readers pass over lines without any."""
    import pyarrow as pa

    if table.num_columns > 1:
        return table
    return pa.table([table[0].cast(pa.string()).fill_null("")], names=table.column_names)


def _beside(
    tables: "Iterable[pa.Table]", kept: "pa.RecordBatchReader", *, place: int
) -> "Iterator[pa.Table]":
    """Yield tables with further columns of the same rows, which begin at a place."""
    import pyarrow as pa

    held = kept.schema.empty_table()
    for table in tables:
        n_rows = len(table)
        while len(held) < n_rows and (batch := next(kept, None)) is not None:
            held = pa.concat_tables([held, pa.table(batch)])
        if len(held) < n_rows:
            raise _other_rows()
        for j, column in enumerate(held.schema):
            table = table.add_column(place + j, column, held[j][:n_rows])
        yield table
        held = held[n_rows:]
    if len(held) or any(map(len, kept)):
        raise _other_rows()


def _other_rows() -> DataError:
    return DataError(
        "the file has other rows than those that were predicted.",
        "Do not change it while it is read.",
    )
