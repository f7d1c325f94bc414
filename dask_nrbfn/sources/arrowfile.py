"""Arrow files, which are also called Feather, and Arrow streams."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa
from pyarrow import dataset, ipc

from dask_nrbfn.sources.columnar import ColumnarSource, open_typed
from dask_nrbfn.sources.source import Reading
from dask_nrbfn.sources.tablefile import Footer, Kinds, TypedFile, arrow_damage_named

# First bytes of a file; a stream does not have them.
_MAGIC = b"ARROW1"


def open_rows(reading: Reading) -> ColumnarSource:
    """Return the rows of Arrow files."""
    return open_typed(reading, ArrowFile)


class ArrowFile(TypedFile):
    """An Arrow file or stream, of which one record batch is in memory at a time."""

    @cached_property
    def footer(self) -> Footer:
        """The schema and the number of rows.

        A stream stores the number of rows only batch by batch, so the whole stream is read.
        """
        with self._opened() as stream:
            if self._is_stream:
                reader = ipc.open_stream(stream)
                return Footer(reader.schema, sum(batch.num_rows for batch in reader))
            counted = dataset.IpcFileFormat().make_fragment(stream)
            return Footer(counted.physical_schema, counted.count_rows())

    def _read(self, kinds: Kinds, batch_rows: int) -> Iterator[pa.RecordBatch]:
        columns = list(kinds)
        with self._opened() as stream:
            for batch in self._batches(stream, columns):
                wanted = batch.select(columns)
                # Lengths and offsets in a damaged file could point anywhere in memory.
                wanted.validate(full=True)
                for start in range(0, batch.num_rows, batch_rows):
                    yield wanted.slice(start, batch_rows)

    def _batches(self, stream: pa.NativeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
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
            return stream.read(len(_MAGIC)) != _MAGIC

    @contextmanager
    def _opened(self) -> Iterator[pa.NativeFile]:
        jumps = not self._is_stream
        with (
            arrow_damage_named(self.file, "Arrow"),
            self.file.open(jumps=jumps, ahead=not jumps) as stream,
            pa.PythonFile(stream, mode="r") as opened,
        ):
            yield opened
