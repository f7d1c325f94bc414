"""Parquet files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa
from pyarrow import parquet

from dask_nrbfn.sources.columnar import ColumnarSource, open_typed
from dask_nrbfn.sources.source import Reading
from dask_nrbfn.sources.tablefile import Footer, Kinds, TypedFile, arrow_damage_named

# Bytes that pyarrow buffers for each column; by default, the column of a whole row group.
_COLUMN_BYTES = 64 << 10


def open_rows(reading: Reading) -> ColumnarSource:
    """Return the rows of Parquet files."""
    return open_typed(reading, ParquetFile)


class ParquetFile(TypedFile):
    """A Parquet file."""

    @cached_property
    def footer(self) -> Footer:
        """The schema and the number of rows."""
        return Footer(self._metadata.schema.to_arrow_schema(), self._metadata.num_rows)

    def tells(self, name: str) -> bool:
        """Return whether a column has a value in every row and cannot be an id.

        Whole numbers are ids if nearly all of them differ. The minimum and maximum of each row
        group limit how many numbers can differ.
        """
        column = self._places.get(name)
        if column is None:
            return False
        room = 0
        for group in range(self._metadata.num_row_groups):
            told = self._metadata.row_group(group).column(column).statistics
            if told is None or not told.has_min_max or not told.has_null_count or told.null_count:
                return False
            if isinstance(told.max, int):
                room += told.max - told.min + 1
        return room < self._metadata.num_rows / 2

    @cached_property
    def _metadata(self) -> parquet.FileMetaData:
        with self._opened() as opened:
            return opened.metadata

    @cached_property
    def _places(self) -> dict[str, int]:
        schema = self._metadata.schema
        return {schema.column(place).path: place for place in range(len(schema))}

    def _read(self, kinds: Kinds, batch_rows: int) -> Iterator[pa.RecordBatch]:
        columns = list(kinds)
        # As a dictionary, each text is created once for a batch, not for every row.
        categories = [name for name, kind in kinds.items() if kind in ("category", "text")]
        with self._opened(categories) as opened:
            # Without this loop, all row groups would be fetched from a URL at once.
            for group in range(opened.num_row_groups):
                yield from opened.iter_batches(batch_rows, row_groups=[group], columns=columns)

    @contextmanager
    def _opened(self, categories: Sequence[str] = ()) -> Iterator[parquet.ParquetFile]:
        with arrow_damage_named(self.file, "Parquet"):
            if not self.file.is_remote:
                with parquet.ParquetFile(
                    self.file,
                    read_dictionary=categories,
                    buffer_size=_COLUMN_BYTES,
                    pre_buffer=False,
                ) as opened:
                    yield opened
                return
            # One request for adjacent columns of a row group, not one for each column.
            with (
                self.file.open(jumps=True, ahead=False) as stream,
                parquet.ParquetFile(stream, read_dictionary=categories, pre_buffer=True) as opened,
            ):
                yield opened
