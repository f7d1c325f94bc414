"""Rows from numpy arrays: members of an .npz file, .npy files, and arrays in memory."""

import io
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, NRBFNError
from dask_nrbfn.numeric.rows import Rows, is_sparse
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    as_features,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    sparse_dtype,
    to_labels,
)
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.layout import Layout, check_apart, check_size, numbered_targets
from dask_nrbfn.sources.source import Block

# A zip member hands out bytes by copying them; small pieces keep those copies out of the peak.
READ_BYTES = 1 << 20
# zipfile unpacks any others as far as they go: a megabyte may become gigabytes.
BOUNDED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# A block may have 65,536 labels. Names of classes are shorter.
MAX_LABEL_BYTES = 1 << 14
# numpy reads no longer ones, but looks after it has read them.
MAX_HEADER_BYTES = 10_000


@dataclass(frozen=True)
class Header:
    """Name, shape and type of one stored array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool = False


@dataclass(kw_only=True)
class ArrayLayout(Layout):
    """Layout of a table whose features, weights and labels or numbers are arrays of their own."""

    x: Header
    y: Header | None
    weights: Header | None

    def block(self, start: int, stop: int, read: Callable[[Header, int, int], np.ndarray]) -> Block:
        """Block of the rows from `start` to `stop`; `read` gives those of one array, in order."""
        y = None
        if self.y is not None and self.target_names is not None:
            y = _table(read(self.y, start, stop), FLOAT64)
        elif self.y is not None:
            y = self._labels(self.y, start, stop, read)
        return Block(
            _table(read(self.x, start, stop), self.x_dtype),
            y,
            None
            if self.weights is None
            else read(self.weights, start, stop).astype(FLOAT64, copy=False),
        )

    def _labels(
        self, y: Header, start: int, stop: int, read: Callable[[Header, int, int], np.ndarray]
    ) -> np.ndarray:
        # Text is stored in the length of the longest, and smaller once it is read.
        step = max(1, READ_BYTES // max(1, y.dtype.itemsize))
        pieces = [
            to_labels(read(y, first, min(first + step, stop)), y.name, first_row=first)
            for first in range(start, stop, step)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class ArraySource(ArrayLayout):
    """Rows of arrays in memory.

    Parameters
    ----------
    X : ndarray (n, ...) or CSR (n, p)
        Features, at least 2-D; further dimensions are flattened to (n, p).
    y : ndarray (n,), optional
        Labels.
    weights : ndarray (n,), optional
        Weights of the rows.
    target : ndarray (n,) or (n, q), optional
        Numbers, instead of labels.

    Raises
    ------
    DataError
        If the shapes or types do not fit.

    Examples
    --------
    >>> source = ArraySource(np.eye(3), np.array([0, 1, 0]))
    >>> [len(block.X) for block in source.blocks(2)]
    [2, 1]
    """

    def __init__(
        self,
        X: Rows,
        y: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        target: np.ndarray | None = None,
    ) -> None:
        given = {"X": X, "y": y, "weights": weights, "target": target}
        self.arrays: dict[str, Any] = {
            name: a if is_sparse(a) else np.asarray(a) for name, a in given.items() if a is not None
        }
        headers = {name: Header(name, a.shape, a.dtype) for name, a in self.arrays.items()}
        layout = layout_of(
            headers["X"], headers.get("y"), headers.get("weights"), headers.get("target")
        )
        super().__init__(**vars(layout))
        if is_sparse(X):
            self.n_values, self.x_dtype = X.nnz, sparse_dtype(X.dtype, "X")

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        """
        for start, stop in spans(self.n_rows, block_rows):
            yield self.block(start, stop, self._rows)

    def _rows(self, header: Header, start: int, stop: int) -> Any:
        return self.arrays[header.name][start:stop]


@dataclass(kw_only=True)
class NpzSource(ArrayLayout):
    """Rows of members of an .npz file, read straight from the zip archive."""

    file: File

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        DamagedDataError
            If a member is cut short or fails its checksum.
        """
        names = [h.name for h in (self.x, self.y, self.weights) if h is not None]
        with damage_named(self.file), ExitStack() as stack:
            members = {name: stack.enter_context(member_opened(self.file, name)) for name in names}
            for name, member in members.items():
                read_header(member, name)
            for start, stop in spans(self.n_rows, block_rows):
                yield self.block(start, stop, partial(read_rows, members))
            # The archive compares the checksum when a read meets the end.
            if any(member.read(1) for member in members.values()):
                raise EOFError("a member is longer than its header says")


@dataclass(frozen=True)
class Shards:
    """The rows of one array in .npy files, one after the other.

    Attributes
    ----------
    header : Header
        Of all rows.
    files : mapping
        The header of each file, in order.
    """

    header: Header
    files: Mapping[File, Header]


@dataclass(kw_only=True)
class NpySource(ArrayLayout):
    """Rows of .npy files, with labels or numbers and weights in others."""

    shards: tuple[Shards, ...]

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        DamagedDataError
            If a file is cut short.
        """
        with ExitStack() as stack:
            readers = {
                shards.header.name: stack.enter_context(closing(ShardReader(shards)))
                for shards in self.shards
            }
            for start, stop in spans(self.n_rows, block_rows):
                yield self.block(
                    start, stop, lambda header, first, last: readers[header.name].read(last - first)
                )


def open_npz(
    file: File,
    *,
    x: str | None = None,
    y: str | None = None,
    target: str | None = None,
    weights: str | None = None,
) -> NpzSource:
    """Source of the members `x`, `y` or `target`, and `weights` of an .npz file.

    Parameters
    ----------
    file : File
    x : str, optional
        Member with the features, by default "X".
    y : str, optional
        Member with the labels, by default "y" where there is one.
    target : str, optional
        Member with numbers (n,) or (n, q), instead of the labels.
    weights : str, optional
        Member with the weights of the rows.

    Raises
    ------
    DataError
        If a member is missing, or its shape or type does not fit.
    ParameterError
        If a member is named for two of them.
    DamagedDataError
        If the file is not an .npz file.
    """
    path = str(file)
    with (
        damage_named(file),
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        members = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        x = _member(path, members, x or "X")
        target = None if target is None else _member(path, members, target)
        if target is None:
            y = _member(path, members, y) if y else ("y" if "y" in members else None)
        weights = _member(path, members, weights) if weights else None
        check_apart("target", target, x)
        check_apart("weights", weights, x, y, target)
        layout = layout_of(
            member_header(archive, x),
            *(
                None if name is None else member_header(archive, name)
                for name in (y, weights, target)
            ),
        )
    for header in _tables(layout):
        if header.fortran_order:
            raise _stored_by_column(f"{header.name} in {file}")
    return NpzSource(**vars(layout), file=file)


def holds_matrix(file: File) -> bool:
    """Return whether an .npz file is one that `scipy.sparse.save_npz` has written."""
    with (
        damage_named(file),
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        return {"data.npy", "format.npy", "shape.npy"} <= {*archive.namelist()}


def open_npy(files: Mapping[str, tuple[str, Sequence[File]]]) -> NpySource:
    """Source of the rows of .npy files.

    Parameters
    ----------
    files : mapping
        By "x" what the features are called in errors, and their files, which have the same columns;
        so by "y", or instead of it by "target", labels, or numbers (n,) or (n, q); by "weights"
        the weights of the rows.

    Raises
    ------
    DataError
        If a shape or type does not fit.
    ParameterError
        If one thing is named for two purposes.
    DamagedDataError
        If a file is not an .npy file, or is cut short.
    MissingDataError
        If a file does not exist.
    """
    names = {role: name for role, (name, _) in files.items()}
    check_apart("target", names.get("target"), names["x"])
    check_apart(
        "weights", names.get("weights"), *(names.get(role) for role in ("x", "y", "target"))
    )
    shards = {role: shards_of(role, name, own) for role, (name, own) in files.items()}
    headers = {role: own.header for role, own in shards.items()}
    layout = layout_of(
        headers["x"], headers.get("y"), headers.get("weights"), headers.get("target")
    )
    for table in ("x", "target"):
        for file, header in shards[table].files.items() if table in shards else ():
            if header.fortran_order and file.is_remote:
                raise _stored_by_column(header.name)
    return NpySource(**vars(layout), shards=tuple(shards.values()))


def shards_of(role: str, name: str, files: Sequence[File]) -> Shards:
    """Files of rows that follow one another, as one array called `name`.

    Raises
    ------
    DataError
        If they have other columns.
    """
    headers = {file: file_header(file, option=None if role == "x" else role) for file in files}
    first, *others = headers.values()
    for other in others:
        if (other.shape[1:], other.dtype.kind) != (first.shape[1:], first.dtype.kind):
            raise DataError(
                f"{other.name} has shape {other.shape} and dtype {other.dtype}, {first.name} "
                f"{first.shape} and {first.dtype}.",
                "Write the same columns, of one kind, to all files of a directory.",
            )
    n_rows = sum(header.shape[0] for header in headers.values() if header.shape)
    dtype = np.result_type(*(header.dtype for header in headers.values()))
    shape = (n_rows, *first.shape[1:]) if first.shape else ()
    return Shards(Header(name, shape, dtype), headers)


def _stored_by_column(name: str) -> DataError:
    return DataError(
        f"{name} is stored column by column (Fortran order).",
        "Save what numpy.ascontiguousarray makes of it, which can be read row by row.",
    )


def _tables(layout: ArrayLayout) -> list[Header]:
    """Arrays of a layout whose rows may have several columns."""
    numbers = layout.y if layout.target_names is not None else None
    return [layout.x] if numbers is None else [layout.x, numbers]


def layout_of(
    x: Header, y: Header | None, weights: Header | None, target: Header | None
) -> ArrayLayout:
    """Layout of the rows of `x` with labels or numbers, and weights.

    Raises
    ------
    DataError
        If the shapes or types do not fit.
    """
    x_dtype = feature_dtype(x.dtype, x.name)
    if len(x.shape) < 2:
        raise DataError(
            f"{x.name} has shape {x.shape}.", "Write one row of features per sample: (n, p)."
        )
    n_rows, n_features = x.shape[0], math.prod(x.shape[1:])
    check_size(x.name, n_rows=n_rows, n_features=n_features)
    y_dtype = target_names = None
    if target is not None:
        feature_dtype(target.dtype, target.name)
        _check_column(target, x, "target", several=True)
        y_dtype, target_names = FLOAT64, numbered_targets(math.prod(target.shape[1:]))
    elif y is not None:
        y_dtype = label_dtype(y.dtype, y.name)
        if y.dtype.itemsize > MAX_LABEL_BYTES:
            raise DataError(
                f"{y.name} has dtype {y.dtype}.",
                f"Write labels of at most {MAX_LABEL_BYTES // 4} characters.",
            )
        _check_column(y, x, "label")
    if weights is not None:
        check_weight_dtype(weights.dtype, weights.name)
        _check_column(weights, x, "weight")
    return ArrayLayout(
        n_rows=n_rows,
        n_features=n_features,
        x_dtype=x_dtype,
        y_dtype=y_dtype,
        has_weights=weights is not None,
        target_names=target_names,
        boolean_labels=target is None and y is not None and y.dtype.kind == "b",
        x=x,
        y=y if target is None else target,
        weights=weights,
    )


def _check_column(column: Header, x: Header, noun: str, *, several: bool = False) -> None:
    shapes = {1: "(n,)", 2: "(n, q)"} if several else {1: "(n,)"}
    if len(column.shape) not in shapes or 0 in column.shape[1:]:
        raise DataError(
            f"{column.name} has shape {column.shape}.",
            f"Write one {noun} per row: {' or '.join(shapes.values())}.",
        )
    if column.shape[0] != x.shape[0]:
        raise DataError(
            f"{column.name} has {column.shape[0]} rows but {x.name} has {x.shape[0]}.",
            f"Write {column.name} with one {noun} per row of {x.name}.",
        )


def _member(path: str, members: list[str], name: str) -> str:
    if name.removesuffix(".npy") in members:
        return name.removesuffix(".npy")
    existing = ", ".join(repr(member) for member in members) or "none"
    raise DataError(
        f"{path} has no array {name!r}; it has {existing}.",
        "Name the array of the features with `x`, of labels with `y` or of numbers with `target`, "
        "of weights with `weights`.",
    )


def member_header(archive: zipfile.ZipFile, name: str) -> Header:
    """Header of an array in an .npz file, which holds all that it says."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in BOUNDED_COMPRESSION:
        raise DataError(
            f"{name} is compressed in another way than numpy does.",
            "Save it again with numpy.savez_compressed, which can be read piece by piece.",
        )
    with archive.open(info) as member:
        header = read_header(member, name)
        _check_length(header, info.file_size - member.tell())
    return header


@contextmanager
def member_opened(file: File, name: str) -> Iterator[IO[bytes]]:
    """Give an array of an .npz file, to be read from its header on."""
    # Each member from a stream of its own: they are read in turn, from places far apart.
    with (
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
        archive.open(f"{name}.npy") as member,
    ):
        yield member


def file_header(file: File, *, option: str | None = None) -> Header:
    """Header of an .npy file, which holds all that it says; `option` is what it was given as."""
    if option and not file.is_remote and not os.path.isfile(file):
        raise MissingDataError(
            f"{file} is not a file.",
            f"Give `{option}` the path of an .npy file, or of a directory of them.",
        )
    with damage_named(file), file.open() as stream:
        header = read_header(stream, str(file))
        n_bytes = file.n_bytes()
        if n_bytes is not None:
            _check_length(header, n_bytes - stream.tell())
    return header


def _check_length(header: Header, n_bytes: int) -> None:
    # Objects are pickled, of unknown length; layout_of refuses them.
    if n_bytes < math.prod(header.shape) * header.dtype.itemsize and not header.dtype.hasobject:
        raise EOFError(f"{header.name} ends before its last row")


def read_header(file: IO[bytes], name: str) -> Header:
    """Header of the array called `name` that a stream begins with."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"{name} is of .npy version {version}, not (1, 0) or (2, 0)")
    try:
        size = file.read(2 if version == (1, 0) else 4)
        n_bytes = int.from_bytes(size, "little")
        if n_bytes > MAX_HEADER_BYTES:
            raise ValueError(f"it claims {n_bytes} bytes")
        shape, fortran_order, dtype = readers[version](io.BytesIO(size + file.read(n_bytes)))
    except (NRBFNError, OSError, zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:
        # The header is an expression; what is wrong with one may be anything.
        raise ValueError(f"the header of {name} cannot be read ({error})") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape}")
    if dtype.kind == "T":
        raise ValueError(f"{name} has dtype {dtype}, which .npy cannot hold")
    return Header(name, tuple(map(int, shape)), dtype, fortran_order)


def read_rows(files: Mapping[str, IO[bytes]], header: Header, start: int, stop: int) -> np.ndarray:
    """Rows of an array that come next in its file."""
    file = files[header.name]
    rows = np.empty((stop - start, *header.shape[1:]), dtype=header.dtype)
    unread = rows.reshape(-1).view(np.uint8).data
    while unread:
        n_bytes = file.readinto(unread[:READ_BYTES])  # type: ignore[attr-defined]
        if n_bytes == 0:
            raise EOFError(f"{header.name} ends before its last row")
        unread = unread[n_bytes:]
    return rows


class ShardReader:
    """Reads rows in their order; one file is open at a time."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._files = iter(shards.files.items())
        self._file: IO[bytes] | None = None
        self._header, self._start = Header("", (0,), shards.header.dtype), 0

    def read(self, n_rows: int) -> np.ndarray:
        """Return the next rows."""
        pieces = []
        while n_rows:
            while self._start == self._header.shape[0]:
                self._open_next()
            stop = min(self._start + n_rows, self._header.shape[0])
            pieces.append(self._rows(stop))
            n_rows -= stop - self._start
            self._start = stop
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open_next(self) -> None:
        self.close()
        file, self._header = next(self._files)
        self._start = 0
        with damage_named(file):
            self._file = file.open()
            read_header(self._file, str(file))

    def _rows(self, stop: int) -> np.ndarray:
        header = self._header
        with damage_named(header.name):
            if not header.fortran_order:
                assert self._file is not None
                return read_rows({header.name: self._file}, header, self._start, stop)
            # Mapped anew each time: pages of a mapping that stays open count as this process's
            # memory.
            return np.array(np.lib.format.open_memmap(header.name, mode="r")[self._start : stop])


def _table(rows: Any, dtype: np.dtype) -> Any:
    table = rows if is_sparse(rows) else as_features(rows).reshape(len(rows), -1)
    return table.astype(dtype, copy=False)


def spans(n_rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    """First row of each block, and the one after its last."""
    for start in range(0, n_rows, block_rows):
        yield start, min(start + block_rows, n_rows)


@contextmanager
def damage_named(path: File | str) -> Iterator[None]:
    """Say of which file it is that it cannot be read, however that shows."""
    # zipfile raises RuntimeError for encryption, and a kind of it for unknown compression.
    try:
        yield
    except NRBFNError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise DamagedDataError(
            f"{path} is damaged or not a numpy file: {error}.", "Write the file again."
        ) from error
