"""The dataset: rows, targets and weights as aligned, chunked, checksummed Zarr arrays."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import zarr
from numpy.typing import DTypeLike, NDArray
from zarr.storage import MemoryStore

from dask_nrbfn.errors import DamagedDataError, DataError
from dask_nrbfn.numeric.content import content_of_rows, distinct_labels
from dask_nrbfn.storage.array import (
    Array,
    check_stored,
    chunk_checksum,
    chunk_rows_stored,
    create_array,
    expect_chunks,
    get_array,
    read_rows,
)
from dask_nrbfn.storage.group import Location, attributes_of, mark_complete, normalize, open_group
from dask_nrbfn.storage.strict import metadata_named

# A chunk is one request and one unit of decoding: large enough for an object store's latency,
# small enough that a worker holds several.
_CHUNK_BYTES = 16 * 2**20
_MAX_CHUNK_ROWS = 65_536

# Squares of targets, times weights, are summed over any number of rows.
_LARGEST_TARGET = 1e120


class LabelledBlock(NamedTuple):
    """Consecutive rows.

    ``X`` is (b, p) in the stored dtype. ``targets`` are int64 (b,), codes that index the dataset's
    classes, or float64 (b, q), numbers, or None in a dataset without either. ``weights`` is float64
    (b,) or None in one without weights.
    """

    X: NDArray[Any]
    targets: NDArray[Any] | None
    weights: NDArray[np.float64] | None


class StoredChunk(NamedTuple):
    """One chunk as it is stored: X (b, p), y and weights (b,), each as in `Dataset`."""

    X: NDArray[Any]
    y: NDArray[Any] | None
    weights: NDArray[np.float64] | None


class ChunkSummary(NamedTuple):
    """What is known of one written chunk.

    Its digest, `content_of_rows` and rows of each label; of one that was written just now also the
    `chunk_checksum` of each array.
    """

    digest: bytes
    content: int
    label_counts: dict[int | str, int]
    checksums: dict[str, str] | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """An open dataset.

    Attributes
    ----------
    location : Location
    X : zarr.Array (n, p)
    y : zarr.Array (n,) or float64 (n, q) or None
        Labels, which are integers or strings, or numbers.
    sample_weights : zarr.Array float64 (n,) or None
        Finite and above 0.
    classes : int64 or str (K,)
        The distinct labels, sorted; empty where y are no labels.
    class_counts : int64 (K,)
        Rows of each class.
    fingerprint : str
        Digest of shape, type, chunks, rows, targets and weights.
    content : str
        Digest of the rows with targets and weights, whatever their order, type and chunks.
    feature_names : tuple of str or None
    target_names : tuple of str (q,) or None
        None where y are no numbers.
    """

    location: Location
    X: Array
    y: Array | None
    sample_weights: Array | None
    classes: NDArray[Any]
    class_counts: NDArray[np.int64]
    fingerprint: str
    content: str
    feature_names: tuple[str, ...] | None
    target_names: tuple[str, ...] | None

    @classmethod
    def open(cls, location: Location, *, as_it_is: bool = False) -> Self:
        """Open the dataset at `location`.

        With `as_it_is` chunks are also read that were written, or put there, after it was finished.

        Raises
        ------
        MissingDataError, DamagedDataError
            If there is none, or it was not finished.
        """
        location = normalize(location)
        group = open_group(location, kind="dataset")
        with metadata_named(location):
            attributes = attributes_of(group)
            names, target_names = attributes["feature_names"], attributes.get("target_names")
            has_targets = attributes["has_labels"] or target_names is not None
            dataset = cls(
                location,
                get_array(group, "X"),
                get_array(group, "y") if has_targets else None,
                get_array(group, "weights") if attributes.get("has_weights") else None,
                np.asarray(attributes["classes"]),
                np.asarray(attributes["class_counts"], dtype=np.int64),
                attributes["fingerprint"],
                attributes["content"],
                None if names is None else tuple(names),
                None if target_names is None else tuple(target_names),
            )
            dataset._check_lengths()
            if not as_it_is:
                dataset._expect_chunks(attributes.get("chunk_checksums", {}))
        return dataset

    def _expect_chunks(self, checksums: Mapping[str, str]) -> None:
        arrays = {"X": self.X, "y": self.y, "weights": self.sample_weights}
        for name, array in arrays.items():
            if array is not None and name in checksums:
                expect_chunks(array, checksums[name])

    def _check_lengths(self) -> None:
        """Raise DamagedDataError unless everything has as many rows, columns and classes."""
        n_rows, n_features = self.X.shape
        fitting = {
            "its chunks": self.X.chunks[1] == n_features,
            "the names of the columns": self.feature_names is None
            or len(self.feature_names) == n_features,
            "the counts of the classes": self.class_counts.shape == self.classes.shape,
        }
        q = () if self.target_names is None else (self._n_numbers,)
        for name, array, inner in (("y", self.y, q), ("weights", self.sample_weights, ())):
            if array is not None:
                rows = array.shape == (n_rows, *inner)
                fitting[name] = rows and array.chunks == (self.chunk_rows, *inner)
        if self.y is not None and self.target_names is None:
            fitting["y"] &= self.class_counts.sum() == n_rows
        for name, fits in fitting.items():
            if not fits:
                raise DamagedDataError(
                    f"X and {name} of {self.location} do not fit together.", "Ingest it again."
                )

    def check_stored(self) -> None:
        """Raise unless the last rows are there: metadata may say that there are more.

        Raises
        ------
        MissingDataError, DamagedDataError
        """
        for array in (self.X, self.y, self.sample_weights):
            if array is not None:
                check_stored(array)

    def chunks_stored(self) -> set[int]:
        """Return the numbers of the chunks that are there, whole or in part."""
        arrays = (self.X, self.y, self.sample_weights)
        return set().union(*(chunk_rows_stored(array) for array in arrays if array is not None))

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return self.X.shape[0]

    @property
    def n_features(self) -> int:
        """Number of columns p."""
        return self.X.shape[1]

    @property
    def n_classes(self) -> int:
        """Number of distinct labels K."""
        return len(self.classes)

    @property
    def of_numbers(self) -> bool:
        """Whether the targets are numbers, not classes."""
        return self.target_names is not None

    @property
    def n_targets(self) -> int:
        """Columns of what is learned: q numbers, or one for each of K classes; 0 without either."""
        return self.n_classes if self.target_names is None else self._n_numbers

    @property
    def _n_numbers(self) -> int:
        return len(self.target_names or ())

    @property
    def chunk_rows(self) -> int:
        """Rows of one chunk."""
        return self.X.chunks[0]

    @property
    def reading_bytes(self) -> int:
        """Bytes of the chunks that are held while blocks are read.

        One in use, the next one, and that as stored and while it is decoded.
        """
        return 4 * self.chunk_rows * _row_bytes(self.n_features, self.X.dtype, self._n_numbers)

    def with_n_rows(self, n_rows: int) -> Self:
        """Return a dataset like this one, but of `n_rows` rows that are not there, to plan for."""
        group = zarr.create_group(MemoryStore())
        chunk_rows = self.chunk_rows
        if self.n_rows <= chunk_rows:
            chunk_rows = default_chunk_rows(
                self.n_features, self.X.dtype, n_numbers=self._n_numbers
            )
        create_dataset_arrays(
            group,
            shape=(n_rows, self.n_features),
            x_dtype=self.X.dtype,
            y_dtype=None,
            chunk_rows=chunk_rows,
        )
        shares = self.class_counts / self.n_rows
        return replace(
            self, X=get_array(group, "X"), class_counts=np.rint(shares * n_rows).astype(np.int64)
        )

    def blocks(self, start: int, stop: int, block_rows: int) -> Iterator[LabelledBlock]:
        """Yield rows `start` to `stop` in blocks of exactly `block_rows`, the last one shorter.

        The blocks do not depend on the chunks. Each chunk is decoded once, in a thread that works
        one block ahead and begins at once.
        """
        read = _SequentialReader(self)
        pool = ThreadPoolExecutor(1, thread_name_prefix="read-rows")
        reads = (
            pool.submit(read, first, min(first + block_rows, stop))
            for first in range(start, stop, block_rows)
        )
        return _one_ahead(pool, reads, next(reads, None))

    def codes(self) -> NDArray[np.unsignedinteger]:
        """Return the class codes of all rows, (n,), in the smallest unsigned type that holds them.

        For 100 million rows of up to 256 classes that is 100 MB.
        """
        labels = self._labels()
        codes = np.empty(self.n_rows, dtype=np.min_scalar_type(self.n_classes - 1))
        for start in range(0, self.n_rows, self.chunk_rows):
            chunk = read_rows(labels, start, start + self.chunk_rows)
            codes[start : start + len(chunk)] = self._encode(chunk)
        return codes

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of X with the given ascending numbers, (len(rows), p)."""
        return self._take(self.X, rows)

    def take_targets(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the targets of the rows with the given ascending numbers, (len(rows), q).

        Raises
        ------
        DataError
            If they are no numbers.
        """
        if self.y is None or self.target_names is None:
            raise DataError(
                f"{self.location} has no numbers as targets.", "Write it with them: `target`."
            )
        return self._take(self.y, rows)

    def take_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the class codes of the rows with the given ascending numbers, (len(rows),).

        Raises
        ------
        DataError
            If there are no labels.
        """
        return self._encode(self._take(self._labels(), rows))

    def take_weights(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights of the rows with the given ascending numbers, (len(rows),)."""
        if self.sample_weights is None:
            return np.ones(len(rows))
        return self._take(self.sample_weights, rows)

    def _take(self, array: Array, rows: NDArray[np.int64]) -> NDArray[Any]:
        taken = np.empty((len(rows), *array.shape[1:]), dtype=array.dtype)
        for start in range(0, self.n_rows, self.chunk_rows):
            first, last = np.searchsorted(rows, [start, start + self.chunk_rows])
            if first < last:
                chunk = read_rows(array, start, start + self.chunk_rows)
                taken[first:last] = chunk[rows[first:last] - start]
        return taken

    def read_chunk(self, index: int) -> StoredChunk:
        """Return the rows, labels or numbers, and weights of one chunk."""
        start, stop = index * self.chunk_rows, (index + 1) * self.chunk_rows
        return StoredChunk(
            read_rows(self.X, start, stop),
            None if self.y is None else read_rows(self.y, start, stop),
            None if self.sample_weights is None else read_rows(self.sample_weights, start, stop),
        )

    def _labels(self) -> Array:
        if self.y is None or self.target_names is not None:
            has = "no labels" if self.y is None else "numbers as targets, not labels"
            raise DataError(f"{self.location} has {has}.", "Write it with labels: `label` or `y`.")
        return self.y

    def _encode(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Return the class code of each label."""
        classes = self.classes.astype(labels.dtype)
        if labels.dtype.kind == "T":
            # Searching such texts reads beyond them from 16 bytes on (numpy/numpy#31533).
            own = {label: code for code, label in enumerate(classes.tolist())}
            codes = np.array([own.get(label, 0) for label in labels.tolist()], dtype=np.int64)
        else:
            codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
        unknown = np.flatnonzero(classes[codes] != labels)
        if len(unknown):
            raise DamagedDataError(
                f"label {labels[unknown].tolist()[0]!r} of {self.location} is none of its classes.",
                "The labels were changed after the dataset was written; ingest it again.",
            )
        return codes.astype(np.int64, copy=False)


class _SequentialReader:
    """Reads ascending spans of rows and keeps the chunk it decoded last."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._index = -1
        self._chunk: LabelledBlock | None = None

    def __call__(self, start: int, stop: int) -> LabelledBlock:
        chunk_rows = self._dataset.chunk_rows
        pieces = []
        for index in range(start // chunk_rows, -(-stop // chunk_rows)):
            chunk = self._load(index)
            window = slice(max(start - index * chunk_rows, 0), stop - index * chunk_rows)
            pieces.append(_window(chunk, window))
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _load(self, index: int) -> LabelledBlock:
        if index != self._index or self._chunk is None:
            self._chunk = None
            X, targets, weights = self._dataset.read_chunk(index)
            if targets is not None and self._dataset.target_names is None:
                targets = self._dataset._encode(targets)
            self._chunk, self._index = LabelledBlock(X, targets, weights), index
        return self._chunk


def _window(block: LabelledBlock, rows: slice) -> LabelledBlock:
    return LabelledBlock(
        block.X[rows],
        None if block.targets is None else block.targets[rows],
        None if block.weights is None else block.weights[rows],
    )


def _joined(blocks: Sequence[LabelledBlock]) -> LabelledBlock:
    rows, targets, weights = zip(*blocks, strict=True)
    return LabelledBlock(
        np.concatenate(rows),
        None if targets[0] is None else np.concatenate(targets),
        None if weights[0] is None else np.concatenate(weights),
    )


def _one_ahead(
    pool: Executor,
    reads: Iterator[Future[LabelledBlock]],
    current: Future[LabelledBlock] | None,
) -> Iterator[LabelledBlock]:
    """Yield the blocks of `current` and of `reads`, each of which starts when it is taken."""
    with pool:
        while current is not None:
            block = current.result()
            current = next(reads, None)
            yield block


def default_chunk_rows(n_features: int, dtype: DTypeLike, *, n_numbers: int = 0) -> int:
    """Return the rows of a chunk of about 16 MiB, at least 1 and at most 65,536.

    Rows are `n_features` of `dtype`, and `n_numbers` numbers as targets.
    """
    rows = _CHUNK_BYTES // _row_bytes(n_features, dtype, n_numbers)
    return int(np.clip(rows, 1, _MAX_CHUNK_ROWS))


def _row_bytes(n_features: int, dtype: DTypeLike, n_numbers: int) -> int:
    return n_features * np.dtype(dtype).itemsize + n_numbers * np.dtype(np.float64).itemsize


def create_dataset_arrays(
    group: zarr.Group,
    *,
    shape: tuple[int, int],
    x_dtype: DTypeLike,
    y_dtype: DTypeLike | None,
    chunk_rows: int,
    n_numbers: int = 0,
    weighted: bool = False,
) -> None:
    """Lay out X, y unless `y_dtype` is None, and weights if `weighted`, in an empty group.

    A row of y is a label, or where there are any, `n_numbers` numbers.
    """
    n_rows, n_features = shape
    chunk_rows = min(chunk_rows, n_rows)
    create_array(
        group,
        "X",
        shape=shape,
        dtype=x_dtype,
        chunks=(chunk_rows, n_features),
        dimensions=("row", "feature"),
        compress=True,
    )
    columns = {"y": y_dtype, "weights": np.float64 if weighted else None}
    for name, dtype in columns.items():
        if dtype is not None:
            inner = (n_numbers,) if name == "y" and n_numbers else ()
            create_array(
                group,
                name,
                shape=(n_rows, *inner),
                dtype=dtype,
                chunks=(chunk_rows, *inner),
                dimensions=("row", "target")[: 1 + len(inner)],
                compress=True,
            )


def write_chunk(
    group: zarr.Group,
    index: int,
    X: NDArray[Any],
    y: NDArray[Any] | None,
    weights: NDArray[np.float64] | None = None,
) -> ChunkSummary:
    """Write one whole chunk of rows, targets and weights; may run on any worker, for any chunk.

    Raises
    ------
    DataError
        If a value is NaN or infinite, or a weight is not above 0; names its row and column.
    """
    rows = get_array(group, "X")
    start = index * rows.chunks[0]
    check_finite(X, first_row=start)
    if y is not None:
        check_finite(y, first_row=start, name="target")
        if y.ndim == 2:
            _check_squares(y, first_row=start)
    if weights is not None:
        check_weights(weights, first_row=start)
    rows[start : start + len(X)] = X
    written = {"X": rows}
    for name, column in (("y", y), ("weights", weights)):
        if column is not None:
            written[name] = get_array(group, name)
            written[name][start : start + len(X)] = column
    checksums = {name: chunk_checksum(array, index) for name, array in written.items()}
    return summarize_chunk(X, y, weights)._replace(checksums=checksums)


def check_finite(
    values: NDArray[Any], *, first_row: int, within: str = "", name: str = "X"
) -> None:
    """Raise DataError naming the first value of a block that is NaN or infinite.

    Its row is counted from `first_row` on, in the table or in what `within` says.
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    row, column = np.argwhere(~np.isfinite(values))[0]
    raise DataError(
        f"{name} has {values[row, column]} in row {first_row + row}{within}, column {column}.",
        "Remove the row or fill the value in; every value must be finite.",
    )


def _check_squares(numbers: NDArray[np.float64], *, first_row: int) -> None:
    """Raise DataError naming the first of some targets that is too large to be squared."""
    wrong = np.abs(numbers) > _LARGEST_TARGET
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise DataError(
            f"target has {numbers[row, column]} in row {first_row + row}, column {column}, too "
            "large to be squared in float64.",
            "Divide the target by its largest value.",
        )


def check_weights(weights: NDArray[np.float64], *, first_row: int) -> None:
    """Raise DataError naming the first weight of a block that is not finite and above 0."""
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"weights has {weights[row]} in row {first_row + row} (the first is 0).",
            "Give it a finite weight above 0, or remove the row.",
        )


def summarize_chunk(
    X: NDArray[Any], y: NDArray[Any] | None, weights: NDArray[np.float64] | None = None
) -> ChunkSummary:
    """Return the digests and label counts of one chunk."""
    # Labels, numbers and weights of a chunk may be the same bytes.
    numbers = y is not None and y.ndim == 2
    person = (b"numbers" if numbers else b"") + (b"" if weights is None else b"weights")
    digest = hashlib.blake2b(np.ascontiguousarray(X).data, digest_size=16, person=person)
    label_counts = {}
    if y is not None:
        text = y.dtype.kind in "TU"
        digest.update(json.dumps(y.tolist()).encode() if text else np.ascontiguousarray(y).data)
        if not numbers:
            labels, _, counts = distinct_labels(y)
            label_counts = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    if weights is not None:
        digest.update(np.ascontiguousarray(weights).data)
    return ChunkSummary(digest.digest(), content_of_rows(X, y, weights), label_counts)


def fingerprint(X: Array, summaries: Sequence[ChunkSummary]) -> str:
    """Return the digest of a dataset from its chunks' digests in order."""
    digest = hashlib.blake2b(f"{X.shape} {X.dtype} {X.chunks}".encode(), digest_size=16)
    for summary in summaries:
        digest.update(summary.digest)
    return digest.hexdigest()


def finish_dataset(
    group: zarr.Group,
    summaries: Sequence[ChunkSummary],
    *,
    feature_names: tuple[str, ...] | None = None,
    target_names: tuple[str, ...] | None = None,
) -> None:
    """Record classes or names of the numbers, and fingerprint, once all chunks are written."""
    counts: dict[Any, int] = {}
    for summary in summaries:
        for label, count in summary.label_counts.items():
            counts[label] = counts.get(label, 0) + count
    classes = sorted(counts)
    written = [summary.checksums or {} for summary in summaries]
    mark_complete(
        group,
        kind="dataset",
        attributes={
            "has_labels": "y" in group and target_names is None,
            "has_weights": "weights" in group,
            "classes": classes,
            "class_counts": [counts[label] for label in classes],
            "feature_names": None if feature_names is None else list(feature_names),
            "target_names": None if target_names is None else list(target_names),
            "chunk_checksums": {
                name: "".join(checksums[name] for checksums in written) for name in written[0]
            },
            "fingerprint": fingerprint(get_array(group, "X"), summaries),
            "content": f"{sum(summary.content for summary in summaries) % 2**64:016x}",
        },
    )
