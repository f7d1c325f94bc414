"""The dataset: rows, targets and weights as aligned Zarr arrays with chunks and checksums."""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from dask_nrbfn.errors import DamagedDataError, DataError
from dask_nrbfn.numeric.rows import Rows, canonical, gathered
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.targets import has_target
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.outputs import check_not_input
from dask_nrbfn.sources.formats import places_read
from dask_nrbfn.sources.source import recut
from dask_nrbfn.storage.array import (
    INDEX_BYTES,
    Array,
    Stored,
    chunked,
    get_array,
    get_stored,
    read_rows,
)
from dask_nrbfn.storage.chunks import Mark, are_labelled, default_chunk_rows, row_bytes
from dask_nrbfn.storage.group import attributes_of, metadata_named, open_group
from dask_nrbfn.storage.location import Location, RemoteLocation, file_of, local_path, normalize

Block = TypeVar("Block")


def check_apart(out: Location, *inputs: Any) -> None:
    """Raise ParameterError if an output is, contains or is inside one of several inputs.

    inputs: datasets, locations, and sources of rows; in-memory inputs and None are ignored.
    """
    places: list[str] = []
    for each in inputs:
        place: Any = each
        if isinstance(each, Dataset):
            place, referenced = each.location, chunked(each.X).place
            places += [] if referenced is None else [referenced]
        if isinstance(place, RemoteLocation):
            place = file_of(place)
        places += places_read(local_path(place) if isinstance(place, Store) else place)
    check_not_input(out, places)


class LabelledBlock(NamedTuple):
    """Consecutive rows.

    ``X`` is (b, p) in the dtype of the dataset, in CSR if the dataset is sparse. ``targets`` are
    class codes, int64 (b,), -1 for no label; or numbers, float64 (b, q), NaN for missing ones; or
    None in a dataset without targets. ``weights`` is float64 (b,), or None without weights.
    """

    X: Rows
    targets: NDArray[Any] | None
    weights: Floats | None


class Chunk(NamedTuple):
    """Rows `start` to `stop` that are read together; `block` has the requested columns."""

    start: int
    stop: int
    block: LabelledBlock


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """An open dataset.

    Attributes
    ----------
    location : Location
    X : zarr.Array or StoredRows (n, c)
        The features, or with a schema the stored values from which features are made.
    y : zarr.Array (n,) or float64 (n, q) or None
        Integer or string labels, or numeric targets.
    sample_weights : zarr.Array float64 (n,) or None
        Finite and above 0.
    classes, class_counts : int64, bool or str (K,), int64 (K,)
        The distinct labels, sorted, and the numbers of their rows; empty without labels.
    fingerprint, content : str
        Digests of everything, and of the rows with targets and weights in any order and type.
    feature_names, target_names : tuple of str or None
        Names of the p features, and of the q numeric targets.
    unlabelled : int, str or float, optional
        The value in y that means no label; NaN for numeric targets. None: every row has a label.
    labelled_rows_of_chunks : int64 (m,), optional
        Number of rows with a label in each chunk. None: every row has a label.
    ids : zarr.Array (n,), optional
        Integer or text ids of the rows. Not part of the digests.
    schema : Schema, optional
        Schema of the columns of X. None: they are features.
    read_as : mapping of str, optional
        Options with which the source was read, such as x and y of AnnData.
    """

    location: Location
    X: Stored
    y: Array | None
    sample_weights: Array | None
    classes: NDArray[Any]
    class_counts: NDArray[np.int64]
    fingerprint: str
    content: str
    feature_names: tuple[str, ...] | None
    target_names: tuple[str, ...] | None
    unlabelled: Mark | None = None
    labelled_rows_of_chunks: NDArray[np.int64] | None = None
    ids: Array | None = None
    schema: Schema | None = None
    read_as: Mapping[str, str] | None = None
    # Whether rows without a label are skipped, X has missing values, and features that are made
    # from stored values are in CSR.
    labelled_only: bool = False
    has_gaps: bool = False
    expands_sparse: bool = False

    def __repr__(self) -> str:
        size = f"{self.n_rows} rows x {self.n_features} features"
        return f"<dask_nrbfn.Dataset of {size} at {self.location}>"

    @classmethod
    def open(cls, location: Location) -> Self:
        """Open the dataset at `location`.

        Raises
        ------
        MissingDataError, DamagedDataError
            If there is no dataset, or it is not finished.
        """
        location = normalize(location)
        group = open_group(location, kind="dataset")
        attributes = attributes_of(group)
        target_names, mark = attributes["target_names"], attributes["unlabelled"]
        labelled, schema = attributes["labelled_rows"], Schema.of_record(attributes["schema"])
        names = attributes["feature_names"] if schema is None else schema.feature_names
        with metadata_named(location):
            return cls(
                location,
                X=get_stored(group, "X"),
                y=get_array(group, "y") if attributes["has_labels"] or target_names else None,
                sample_weights=get_array(group, "weights") if attributes["has_weights"] else None,
                classes=np.asarray(attributes["classes"]),
                class_counts=np.asarray(attributes["class_counts"], dtype=np.int64),
                fingerprint=attributes["fingerprint"],
                content=attributes["content"],
                feature_names=None if names is None else tuple(names),
                target_names=None if target_names is None else tuple(target_names),
                unlabelled=mark if mark is None or target_names is None else np.nan,
                labelled_rows_of_chunks=None
                if labelled is None
                else np.asarray(labelled, np.int64),
                ids=get_array(group, "ids") if attributes["has_ids"] else None,
                schema=schema,
                read_as=attributes["read_as"],
                has_gaps=attributes["has_gaps"],
                expands_sparse=attributes["sparse"],
            )

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        n_rows: int = self.X.shape[0]
        return self._n_labelled if self.labelled_only else n_rows

    @cached_property
    def _n_labelled(self) -> int:
        labelled = self.labelled_rows_of_chunks
        return self.X.shape[0] if labelled is None else int(labelled.sum())

    @property
    def n_unlabelled(self) -> int:
        """Number of rows without a label, or without numeric targets."""
        return self.n_rows - self._n_labelled

    @property
    def n_features(self) -> int:
        """Number of features p."""
        n_columns: int = self.X.shape[1]
        return self.expanding.n_features if self.expanding is not None else n_columns

    @property
    def expanding(self) -> Schema | None:
        """The schema that makes features of several kinds; None: they are the stored values."""
        return None if self.schema is None or self.schema.is_plain else self.schema

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the features."""
        return np.dtype(self.X.dtype if self.expanding is None else np.float64)

    @property
    def row_bytes(self) -> float:
        """Average bytes of the features of a row, with column indices in CSR."""
        return self.row_values * (self.dtype.itemsize + (INDEX_BYTES if self.is_sparse else 0))

    @property
    def is_sparse(self) -> bool:
        """Whether blocks of X are in CSR."""
        return self.expands_sparse or chunked(self.X).n_values is not None

    @property
    def row_values(self) -> float:
        """Average number of values of a row in CSR, else p."""
        if self.expanding is None:
            return float(chunked(self.X).row_values)
        return float(self.expanding.row_values if self.expands_sparse else self.n_features)

    @property
    def row_width(self) -> int:
        """How many numbers store a row: p, or in CSR its values and column indices."""
        return max(1, math.ceil(2 * self.row_values)) if self.is_sparse else self.n_features

    @property
    def n_classes(self) -> int:
        """Number of distinct labels K."""
        return len(self.classes)

    @property
    def of_numbers(self) -> bool:
        """Whether the targets are numeric, not classes."""
        return self.target_names is not None

    @property
    def n_targets(self) -> int:
        """Number of targets: q numeric ones, or one for each of K classes; 0 without targets."""
        return self.n_classes if self.target_names is None else self._n_numbers

    @property
    def _n_numbers(self) -> int:
        return len(self.target_names or ())

    @property
    def chunk_rows(self) -> int:
        """Number of rows of one chunk."""
        return self.X.chunks[0]

    @property
    def reading_bytes(self) -> int:
        """Bytes that are held while blocks are read.

        These are the chunk in use, and the next chunk in its stored, partly decoded and decoded
        forms. If rows without a label are skipped, one chunk is copied. Features that are made from
        stored values take three times the bytes of a chunk.
        """
        targets = self.chunk_rows * row_bytes(0, np.float64, self._n_numbers)
        held = (4 + self.labelled_only) * (chunked(self.X).most_bytes + targets)
        if self.expanding is not None:
            made = self.row_values if self.expands_sparse else None
            row = row_bytes(self.n_features, np.float64, 0, row_values=made)
            held += 3 * self.chunk_rows * row
        return held

    def with_n_rows(self, n_rows: int) -> Self:
        """Return a placeholder like this dataset with `n_rows` rows, for a plan."""
        chunk_rows = self.chunk_rows
        if self.n_rows <= chunk_rows:
            chunk_rows = default_chunk_rows(
                self.n_features,
                self.dtype,
                row_values=self.row_values if self.is_sparse else None,
                n_numbers=self._n_numbers,
            )
        factor, labelled = n_rows / self.n_rows, self.labelled_rows_of_chunks
        return replace(
            self,
            X=chunked(self.X).planned(n_rows, min(chunk_rows, n_rows)),
            class_counts=np.rint(factor * self.class_counts).astype(np.int64),
            labelled_rows_of_chunks=None
            if labelled is None
            else np.rint([factor * labelled.sum()]).astype(np.int64),
        )

    def of_labelled(self) -> Self:
        """Return a dataset of the rows that have a label, or numeric targets."""
        if not self.n_unlabelled:
            return self
        return replace(self, labelled_only=True)

    def encoded_by(self, schema: Schema | None) -> Self:
        """Return the same rows with the features that another schema makes from the stored values.

        Nothing is copied. The result is this dataset if either has no schema, or if the stored
        values are the features of both.
        """
        own = self.schema
        if own is None or schema is None:
            return self
        if own.digest == schema.digest or (own.is_plain and schema.is_plain):
            return self
        difference = own.difference(schema)
        if chunked(self.X).n_values is not None:
            difference = "stores its features in CSR, but the schema fills missing values"
        if self.has_gaps and own.fills and not schema.fills:
            difference = difference or "has missing values, which are not filled"
        if difference is not None:
            raise DataError(
                f"{self.location} does not fit the schema: it {difference}.",
                "Give the source file, or ingest the source file with the `schema` of the run or "
                "model.",
            )
        both = f"{self.fingerprint} as {schema.digest}".encode()
        return replace(
            self,
            fingerprint=hashlib.blake2b(both, digest_size=16).hexdigest(),
            feature_names=schema.feature_names,
            # The name of the ids stays that of this dataset.
            schema=replace(schema, id=own.id),
        )

    def encoded_like(self, other: Any) -> Self:
        """Return the same rows with the features of another dataset, or of a model."""
        encoded = self.encoded_by(other.schema)
        check_columns(encoded.n_features, other.n_features)
        check_names(encoded.feature_names, other.feature_names)
        return encoded

    def named(self, name: str) -> Self:
        """Return the same rows under a name for errors and records, such as that of a file."""
        return replace(self, location=name)

    def blocks(self, start: int, stop: int, block_rows: int) -> Iterator[LabelledBlock]:
        """Yield rows `start` to `stop` in blocks of exactly `block_rows`, the last one shorter.

        The blocks do not depend on the chunks. A thread starts at once, decodes each chunk once and
        reads one block ahead.
        """
        pieces = (
            window(chunk.block, slice(max(start - chunk.start, 0), stop - chunk.start))
            for chunk in self._chunks(LabelledBlock._fields, start, stop)
        )
        return read_ahead(recut(pieces, block_rows), thread_name="read-rows")

    def codes(self) -> NDArray[np.integer]:
        """Return the class codes of all rows, (n,), in the smallest type that holds them.

        The type is signed only if rows without a label exist: their code is -1. The codes of 100
        million rows of up to 256 classes take 100 MB.
        """
        least = -max(1, self.n_classes) if self.n_unlabelled else self.n_classes - 1
        codes = np.empty(self.n_rows, dtype=np.min_scalar_type(least))
        for chunk in self._chunks({"targets"}):
            codes[chunk.start : chunk.stop] = chunk.block.targets
        return codes

    def labelled_rows(self) -> NDArray[np.int64]:
        """Return the ascending indices of the rows with a label or numeric targets."""
        rows = [
            chunk.start + np.flatnonzero(has_target(chunk.block.targets))
            for chunk in self._chunks({"targets"})
            if chunk.block.targets is not None
        ]
        return np.concatenate(rows)

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return the rows of X with the given ascending indices, (len(rows), p)."""
        shape = (0, self.n_features)
        none = canonical(shape) if self.is_sparse else np.empty(shape)
        return self._take("X", rows, none.astype(self.dtype))

    def take_targets(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return class codes (m,), -1 for no label, or numbers (m, q), of ascending rows."""
        none: NDArray[Any] = np.empty((0, self._n_numbers))
        if self.target_names is None:
            none = np.empty(0, dtype=np.int64)
        return np.asarray(self._take("targets", rows, none))

    def take_weights(self, rows: NDArray[np.int64]) -> Floats:
        """Return the weights of the rows with the given ascending indices, (len(rows),)."""
        if self.sample_weights is None:
            return np.ones(len(rows))
        return np.asarray(self._take("weights", rows, np.empty(0)))

    def _take(self, column: str, rows: NDArray[np.int64], none: Rows) -> Rows:
        """Return the values of a column for ascending rows; `none` has the type and no rows."""

        def pieces() -> Iterator[Any]:
            done = 0
            while done < len(rows):
                chunk = self._chunk_at(int(rows[done]), {column})
                last = int(np.searchsorted(rows, chunk.stop))
                yield getattr(chunk.block, column)[rows[done:last] - chunk.start]
                done = last

        return gathered(chain([none], pieces()), (len(rows), *none.shape[1:]))

    def target_range(self) -> Floats | None:
        """Return the smallest and largest numeric targets, float64 (2, q); None for classes."""
        if not self.of_numbers:
            return None
        low, high = np.full((2, self._n_numbers), np.nan)
        for chunk in self._chunks({"targets"}):
            targets = chunk.block.targets
            assert targets is not None
            # Rows without targets are NaN.
            low = np.fmin(low, np.fmin.reduce(targets))
            high = np.fmax(high, np.fmax.reduce(targets))
        return np.stack([low, high])

    def read_chunk(self, index: int) -> list[Any]:
        """Return the stored X, y, weights and ids of one chunk; None for a missing one."""
        start, stop = index * self.chunk_rows, (index + 1) * self.chunk_rows
        arrays = (self.X, self.y, self.sample_weights, self.ids)
        return [None if array is None else read_rows(array, start, stop) for array in arrays]

    def _chunks(
        self, wanted: Collection[str], start: int = 0, stop: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of rows `start` to `stop`."""
        while start < (self.n_rows if stop is None else stop):
            chunk = self._chunk_at(start, wanted)
            yield chunk
            start = chunk.stop

    def _chunk_at(self, row: int, wanted: Collection[str]) -> Chunk:
        """Return the wanted columns of the chunk that contains a row."""
        index = bisect_right(self._edges, row) - 1
        start, stop = self._edges[index], min(self._edges[index + 1], self.n_rows)
        return Chunk(start, stop, self._read_columns(index, wanted))

    @cached_property
    def _edges(self) -> Sequence[int]:
        """First row of every chunk of X among the rows that are read, then their number."""
        if self.labelled_only and self.labelled_rows_of_chunks is not None:
            return [0, *np.cumsum(self.labelled_rows_of_chunks).tolist()]
        return range(0, self.X.shape[0] + self.chunk_rows, self.chunk_rows)

    def _read_columns(self, index: int, wanted: Collection[str]) -> LabelledBlock:
        """Return the wanted columns of one chunk of X, None for the others."""
        start, stop = index * self.chunk_rows, (index + 1) * self.chunk_rows
        arrays = {"X": self.X, "targets": self.y, "weights": self.sample_weights}
        passing = self.labelled_only and self.unlabelled is not None
        read: dict[str, Any] = {
            name: read_rows(array, start, stop)
            if array is not None and (name in wanted or (passing and name == "targets"))
            else None
            for name, array in arrays.items()
        }
        if read["targets"] is not None and self.target_names is None:
            read["targets"] = codes_of(
                read["targets"], self.classes, self.unlabelled, self.location
            )
        block = LabelledBlock(**read)
        if passing:
            block = window(block, has_target(read["targets"]))
        if self.expanding is not None and block.X is not None:
            schema = self.expanding
            expand = schema.expand_sparse if self.expands_sparse else schema.expand
            block = block._replace(X=expand(block.X))
        return block


def check_columns(found: int, trained_on: int) -> None:
    """Raise DataError unless rows have as many columns as the training rows had."""
    if found != trained_on:
        raise DataError(
            f"X has {found} columns, but the model was trained on {trained_on}.",
            "Give rows with the columns of the training rows.",
        )


def check_names(found: Sequence[str] | None, trained_on: Sequence[str] | None) -> None:
    """Raise DataError if columns have other names, or another order, than in training."""
    if found is None or trained_on is None:
        return
    for name, expected in zip_longest(found, trained_on):
        if name != expected:
            raise DataError(
                f"column {name!r} is in the place of {expected!r}.",
                "Give the columns with the names and in the order of the training rows.",
            )


def window(block: LabelledBlock, rows: Any) -> LabelledBlock:
    """Return some rows of a block."""
    columns: Any = (None if column is None else column[rows] for column in block)
    return LabelledBlock(*columns)


def read_ahead(blocks: Iterator[Block], *, thread_name: str) -> Iterator[Block]:
    """Yield the blocks; a thread starts at once and reads one block ahead."""
    pool = ThreadPoolExecutor(1, thread_name_prefix=thread_name)
    current = pool.submit(next, blocks, None)

    def read() -> Iterator[Block]:
        nonlocal current
        with pool:
            while (block := current.result()) is not None:
                current = pool.submit(next, blocks, None)
                yield block

    return read()


def codes_of(
    labels: NDArray[Any], classes: NDArray[Any], unlabelled: Mark | None, place: object
) -> NDArray[np.int64]:
    """Return the code of each label among sorted classes, int64 (b,); -1 for no label."""
    codes = np.full(len(labels), -1, dtype=np.int64)
    labelled = are_labelled(labels, unlabelled)
    labels, classes = labels[labelled], classes.astype(labels.dtype)
    if labels.dtype.kind == "T":
        # searchsorted reads beyond the end of such texts of 16 bytes or more (numpy/numpy#31533).
        own = {label: code for code, label in enumerate(classes.tolist())}
        found = np.array([own.get(label, 0) for label in labels.tolist()], dtype=np.int64)
    else:
        found = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    unknown = np.flatnonzero(classes[found] != labels)
    if len(unknown):
        raise DamagedDataError(
            f"label {labels[unknown].tolist()[0]!r} of {place} is not one of its classes.",
            "Ingest the dataset again: its labels changed after the dataset was written.",
        )
    codes[labelled] = found
    return codes
