"""Parquet files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet

from dask_nrbfn.sources.columnar import damage_named
from dask_nrbfn.sources.files import File

# What pyarrow buffers of each column of a file; by default, all of a row group.
COLUMN_BYTES = 64 << 10


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file: a `Table`."""

    file: File

    def __str__(self) -> str:
        return str(self.file)

    def footer(self) -> tuple[pa.Schema, int]:
        """Return what the file says of its columns and how many rows it has."""
        with self._opened() as opened:
            return opened.schema_arrow, opened.metadata.num_rows

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns."""
        with self._opened() as opened:
            # All row groups at once would be fetched at once from a URL.
            for group in range(opened.num_row_groups):
                yield from opened.iter_batches(batch_rows, row_groups=[group], columns=columns)

    @contextmanager
    def _opened(self) -> Iterator[parquet.ParquetFile]:
        with damage_named(self.file, "Parquet"):
            if not self.file.is_remote:
                with parquet.ParquetFile(
                    self.file, buffer_size=COLUMN_BYTES, pre_buffer=False
                ) as opened:
                    yield opened
                return
            # One request for what lies side by side in a row group, not one for each column.
            with (
                self.file.open(jumps=True, ahead=False) as stream,
                parquet.ParquetFile(stream, pre_buffer=True) as opened,
            ):
                yield opened
