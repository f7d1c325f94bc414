"""Predictions as a table: copied from their Zarr group, chunk by chunk."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_nrbfn.storage.array import get_array, read_rows
from dask_nrbfn.storage.group import Location, attributes_of, member_names, open_group

if TYPE_CHECKING:
    import pyarrow as pa
    import zarr

TABLES = (".csv", ".parquet")
"""Suffixes of files that predictions are written to."""


def write_predictions(source: Location, target: Path) -> None:
    """Write predictions as a CSV or Parquet file: ids, and what else they have."""
    # Takes longer to load than commands that write no table do in all.
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    group = open_group(source, kind="predictions")
    fields = _fields(group)
    arrays = {name: get_array(group, name) for name in fields}
    n_rows, chunk_rows = next((array.shape[0], array.chunks[0]) for array in arrays.values())
    schema = pa.schema([field for own in fields.values() for field in own])
    write = pa.csv.CSVWriter if target.suffix == ".csv" else pa.parquet.ParquetWriter
    with write(target, schema) as table:
        for start in range(0, n_rows, chunk_rows):
            columns: list[Any] = []
            for array in arrays.values():
                values = read_rows(array, start, start + chunk_rows)
                columns += [values.tolist()] if values.ndim == 1 else [*values.T]
            table.write_table(pa.table(columns, schema=schema))


def _fields(group: "zarr.Group") -> "dict[str, list[pa.Field]]":
    """Return the columns that each array of predictions becomes, in order."""
    import pyarrow as pa

    attributes = attributes_of(group)
    classes = attributes.get("classes", [])
    number = pa.float64()
    fields = {
        "ids": [pa.field(attributes.get("id", ""), pa.string())],
        "labels": [pa.field("label", pa.array(classes).type)],
        "values": [pa.field(name, number) for name in attributes.get("target_names", [])],
        "probabilities": [pa.field(f"probability_{label}", number) for label in classes],
        "scores": [pa.field(f"score_{label}", number) for label in classes],
    }
    stored = member_names(group)
    return {name: own for name, own in fields.items() if name in stored}
