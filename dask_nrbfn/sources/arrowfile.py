"""Arrow files, which are also called Feather, and Arrow streams."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyarrow import dataset, ipc

from dask_nrbfn.sources.columnar import damage_named
from dask_nrbfn.sources.files import File

# What a file begins with and a stream does not.
MAGIC = b"ARROW1"


@dataclass(frozen=True)
class ArrowTable:
    """An Arrow file or stream: a `Table`, of which one record batch is in memory at a time."""

    file: File

    def __str__(self) -> str:
        return str(self.file)

    def footer(self) -> tuple[pa.Schema, int]:
        """Return what the file says of its columns and how many rows it has.

        A stream says the latter with each batch only: it is read as a whole.
        """
        with self._opened() as stream:
            if self._is_stream:
                reader = ipc.open_stream(stream)
                return reader.schema, sum(batch.num_rows for batch in reader)
            counted = dataset.IpcFileFormat().make_fragment(stream)
            return counted.physical_schema, counted.count_rows()

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns."""
        with self._opened() as stream:
            for batch in self._read(stream, columns):
                wanted = batch.select(columns)
                # Lengths and places in a damaged file would lead anywhere in memory.
                wanted.validate(full=True)
                for start in range(0, batch.num_rows, batch_rows):
                    yield wanted.slice(start, batch_rows)

    def _read(self, stream: pa.NativeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self._is_stream:
            yield from ipc.open_stream(stream)
            return
        schema = ipc.open_file(stream).schema
        fields = [schema.get_field_index(name) for name in columns]
        reader = ipc.open_file(stream, options=ipc.IpcReadOptions(included_fields=fields))
        yield from map(reader.get_batch, range(reader.num_record_batches))

    @cached_property
    def _is_stream(self) -> bool:
        with self.file.open() as stream:
            return stream.read(len(MAGIC)) != MAGIC

    @contextmanager
    def _opened(self) -> Iterator[pa.NativeFile]:
        jumps = not self._is_stream
        with (
            damage_named(self.file, "Arrow"),
            self.file.open(jumps=jumps, ahead=not jumps) as stream,
            pa.PythonFile(stream, mode="r") as opened,
        ):
            yield opened
