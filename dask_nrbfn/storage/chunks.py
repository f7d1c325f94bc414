"""Write the chunks of a dataset: lay them out, check, summarize and record them."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import DTypeLike, NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.hashing import content_of_rows, distinct_labels
from dask_nrbfn.numeric.rows import Rows, is_csr, unmasked
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.targets import has_target
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.dtypes import FLOAT64
from dask_nrbfn.sources.source import Source, StoredAt, shown_names
from dask_nrbfn.storage.array import (
    ENCODING,
    INDEX_BYTES,
    ROW_BYTES,
    Stored,
    append_rows,
    begin_sparse,
    create_array,
    digest_of,
    finish_rows,
    get_array,
    get_stored,
    update_digest,
)
from dask_nrbfn.storage.group import mark_complete

logger = logging.getLogger(__name__)

# A chunk is one request and one unit of decoding: large enough for an object store's latency,
# small enough that a worker holds several.
_CHUNK_BYTES = 16 * 2**20
_MAX_CHUNK_ROWS = 65_536

# From here on not all whole numbers are numbers of float64.
_MANY_DIGITS = 2**53

# Squares of targets, times weights, are summed over any number of rows.
_LARGEST_TARGET = 1e120

Mark = int | str | float
"""The label that marks a row without a label; NaN for numeric targets."""


class ChunkSummary(NamedTuple):
    """Summary of one chunk; `digest_of_rows` is that of rows that stay in another store.

    n_values: number of values in CSR; 0: the rows are not in CSR.
    has_gaps: whether X has NaN for missing values.
    rounded: columns of X, and of numeric targets, with whole numbers that float64 may not hold.
    """

    digest: bytes
    content: int
    label_counts: dict[int | str, int]
    n_labelled: int
    n_values: int
    has_gaps: bool
    digest_of_rows: str = ""
    rounded: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())


def default_chunk_rows(
    n_features: int, dtype: DTypeLike, *, row_values: float | None = None, n_numbers: int = 0
) -> int:
    """Return the number of rows of a chunk of about 16 MiB, at least 1 and at most 65,536."""
    rows = _CHUNK_BYTES // row_bytes(n_features, dtype, n_numbers, row_values=row_values)
    return int(np.clip(rows, 1, _MAX_CHUNK_ROWS))


def row_bytes(
    n_features: int, dtype: DTypeLike, n_numbers: int, *, row_values: float | None = None
) -> int:
    """Return the bytes of a row of X and of its numeric targets."""
    item_bytes = np.dtype(dtype).itemsize
    own = n_features * item_bytes
    if row_values is not None:
        own = ROW_BYTES + round(row_values * (item_bytes + INDEX_BYTES))
    return own + n_numbers * np.dtype(np.float64).itemsize


def create_dataset_arrays(
    group: zarr.Group,
    source: Source,
    x_dtype: DTypeLike,
    chunk_rows: int,
    *,
    n_values: int | None = None,
    stored_at: StoredAt | None = None,
) -> None:
    """Lay out the arrays of a dataset in an empty group.

    n_values: expected number of values of X in CSR; None: X is an array.
    stored_at: place of the rows in another store; None: X is stored in the group.
    """
    n_rows, n_features = source.n_rows, source.n_features
    chunk_rows = min(chunk_rows, n_rows)
    # The dtype and the columns of each array of the dataset.
    arrays: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {}
    if source.y_dtype is not None:
        names = source.target_names
        arrays["y"] = (source.y_dtype, () if names is None else (len(names),))
    if source.has_weights:
        arrays["weights"] = (np.float64, ())
    if source.id_dtype is not None:
        arrays["ids"] = (source.id_dtype, ())
    sizes = {"shape": (n_rows, n_features), "chunk_rows": chunk_rows}
    if stored_at is not None:
        place = {"place": stored_at.place, "path": stored_at.path, "dtype": str(np.dtype(x_dtype))}
        group.create_group("X", attributes={**sizes, **place})
    elif n_values is not None:
        rows = group.create_group("X", attributes={**sizes, **ENCODING})
        begin_sparse(rows, x_dtype, n_rows=n_rows, n_values=n_values)
    else:
        arrays["X"] = (x_dtype, (n_features,))
    for name, (dtype, inner) in arrays.items():
        dimensions = ["row"]
        if inner:
            dimensions.append("feature" if name == "X" else "target")
        create_array(
            group,
            name,
            shape=(n_rows, *inner),
            dtype=dtype,
            chunks=(chunk_rows, *inner),
            dimensions=dimensions,
            compress=True,
        )


def write_chunk(
    group: zarr.Group,
    index: int,
    X: Rows,
    y: NDArray[Any] | None,
    weights: Floats | None = None,
    ids: NDArray[Any] | None = None,
    *,
    unlabelled: Mark | None = None,
    gaps: bool = False,
) -> ChunkSummary:
    """Write one whole chunk of rows, their targets, weights and ids; may run on any worker.

    Chunks of rows in CSR are written one after the other. Missing numeric targets are stored as
    NaN. X may have NaN only with `gaps`.
    """
    X, y, weights = map(unmasked, (X, y, weights))
    rows: Any = group["X"]
    is_array = isinstance(rows, zarr.Array)
    chunk_rows = rows.chunks[0] if is_array else rows.attrs["chunk_rows"]
    start = index * chunk_rows
    stop = start + X.shape[0]
    check_finite(X, first_row=start, gaps=gaps)
    if gaps and not is_csr(X):
        # NaN has many bit patterns; the digests need a single one.
        X = np.where(np.isnan(X), np.nan, X)
    if y is not None and y.ndim == 2:
        y = _checked_numbers(y, unlabelled, first_row=start)
    if weights is not None:
        check_weights(weights, first_row=start)
    summary = summarize_chunk(X, y, weights, unlabelled=unlabelled)
    rounded_targets: frozenset[int] = frozenset()
    if y is not None and y.ndim == 2:
        rounded_targets = _rounded_columns(y)
    summary = summary._replace(rounded=(_rounded_columns(X), rounded_targets))
    columns: dict[str, Any] = {"y": y, "weights": weights, "ids": ids}
    if is_array:
        columns["X"] = X
    elif is_csr(X):
        append_rows(rows, X)
    else:
        summary = summary._replace(digest_of_rows=digest_of(X))
    for name, column in columns.items():
        if column is not None:
            get_array(group, name)[start:stop] = column
    return summary


def _rounded_columns(values: Rows) -> frozenset[int]:
    """Return the columns of whole numbers, some of which float64 may have rounded."""
    stored = values.data if is_csr(values) else values
    if stored.dtype.itemsize < FLOAT64.itemsize or not stored.size:
        return frozenset()
    low, high = stored.min(), stored.max()
    if np.isnan(low):
        low, high = np.fmin.reduce(stored, None), np.fmax.reduce(stored, None)
    if low > -_MANY_DIGITS and high < _MANY_DIGITS:
        return frozenset()
    large = (stored >= _MANY_DIGITS) | (stored <= -_MANY_DIGITS)
    if is_csr(values):
        return frozenset(values.indices[large].tolist())
    are_whole = ((stored == np.rint(stored)) | np.isnan(stored)).all(axis=0)
    return frozenset(np.flatnonzero(large.any(axis=0) & are_whole).tolist())


def _warn_of_rounded(summaries: Sequence[ChunkSummary], *names: Sequence[str] | None) -> None:
    """Warn once of the columns of features and targets whose whole numbers may be rounded."""
    rounded = []
    for kind, names_of_kind in enumerate(names):
        columns = frozenset[int]().union(*(summary.rounded[kind] for summary in summaries))
        for j in sorted(columns):
            rounded.append(f"column {j}" if names_of_kind is None else names_of_kind[j])
    if rounded:
        logger.warning(
            "whole numbers of 2**53 (9.0e15) and more are rounded to 16 digits in %s. Subtract a "
            "constant first, or leave out columns of ids.",
            shown_names(rounded),
        )


def check_finite(
    values: Rows, *, first_row: int, within: str = "", name: str = "X", gaps: bool = False
) -> None:
    """Raise DataError naming the first value that is infinite, or NaN without `gaps`."""
    stored = values.data if is_csr(values) else values
    if stored.dtype.kind != "f" or np.isfinite(stored).all():
        return
    wrong = np.argwhere(np.isinf(stored) if gaps else ~np.isfinite(stored))
    if not len(wrong):
        return
    place = wrong[0]
    row, column = place[0], 0
    if is_csr(values):
        row = np.searchsorted(values.indptr, place[0], side="right") - 1
        column = values.indices[place[0]]
    elif len(place) > 1:
        column = place[-1]
    raise DataError(
        f"{name} has {stored[tuple(place)]} in row {first_row + row}{within}, column {column}.",
        "Remove the row, or fill in the value: every value must be finite.",
    )


def _checked_numbers(numbers: Floats, unlabelled: Mark | None, *, first_row: int) -> Floats:
    """Return targets (b, q) with NaN in the rows without targets."""
    if unlabelled is None:
        none = np.zeros(numbers.shape, dtype=np.bool_)
    else:
        none = (numbers == unlabelled) | (np.isnan(numbers) & np.isnan(float(unlabelled)))
    partly = none.any(axis=1) & ~none.all(axis=1)
    if partly.any():
        raise DataError(
            f"target has {unlabelled} in only some columns of row {first_row + partly.argmax()} "
            "(the first is 0).",
            "Give all targets of a row, or none.",
        )
    given = np.where(none, 0.0, numbers)
    check_finite(given, first_row=first_row, name="target")
    large = np.argwhere(np.abs(given) > _LARGEST_TARGET)
    if len(large):
        row, column = large[0]
        raise DataError(
            f"target has {given[row, column]} in row {first_row + row}, column {column}, "
            "which is too large to be squared in float64.",
            "Divide the target by its largest value.",
        )
    return np.where(none, np.nan, numbers)


def check_weights(weights: Floats, *, first_row: int) -> None:
    """Raise DataError naming the first weight of a block that is not finite and above 0."""
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(
            f"weights has {weights[row]} in row {first_row + row} (the first is 0).",
            "Give the row a finite weight above 0, or remove the row.",
        )


def are_labelled(y: NDArray[Any], unlabelled: Mark | None) -> NDArray[np.bool_]:
    """Return which rows have a label or numeric targets, from the stored y, bool (b,)."""
    if unlabelled is None:
        return np.ones(len(y), dtype=np.bool_)
    return has_target(y) if y.ndim == 2 else np.asarray(y != unlabelled, dtype=np.bool_)


def summarize_chunk(
    X: Rows,
    y: NDArray[Any] | None,
    weights: Floats | None = None,
    *,
    unlabelled: Mark | None = None,
) -> ChunkSummary:
    """Return the digests and label counts of one chunk."""
    # Labels, numbers and weights of a chunk can have the same bytes.
    are_numbers = y is not None and y.ndim == 2
    person = b"numbers" if are_numbers else b""
    if weights is not None:
        person += b"weights"
    digest = hashlib.blake2b(digest_size=16, person=person)
    update_digest(digest, X)
    label_counts: dict[int | str, int] = {}
    labelled = np.zeros(X.shape[0], dtype=np.bool_)
    if y is not None:
        if y.dtype.kind in "TU":
            digest.update(json.dumps(y.tolist()).encode())
        else:
            digest.update(np.ascontiguousarray(y).data)
        labelled = are_labelled(y, unlabelled)
        if not are_numbers:
            labels, _, counts = distinct_labels(y[labelled])
            label_counts = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    if weights is not None:
        digest.update(np.ascontiguousarray(weights).data)
    content = content_of_rows(X, y, weights, labelled)
    return ChunkSummary(
        digest=digest.digest(),
        content=content,
        label_counts=label_counts,
        n_labelled=int(labelled.sum()),
        n_values=X.nnz if is_csr(X) else 0,
        has_gaps=not is_csr(X) and X.dtype.kind == "f" and bool(np.isnan(X).any()),
    )


def fingerprint(
    X: Stored,
    summaries: Sequence[ChunkSummary],
    unlabelled: Mark | None = None,
    schema: Schema | None = None,
) -> str:
    """Return the digest of a dataset from its chunks' digests in order."""
    # With another unlabelled mark or other features, the same bytes are another dataset.
    mark = "" if unlabelled is None else f" without {unlabelled!r}"
    if schema is not None and not schema.is_plain:
        mark += f" as {schema.digest}"
    digest = hashlib.blake2b(f"{X.shape} {X.dtype} {X.chunks}{mark}".encode(), digest_size=16)
    for summary in summaries:
        digest.update(summary.digest)
    return digest.hexdigest()


def finish_dataset(
    group: zarr.Group,
    summaries: Sequence[ChunkSummary],
    source: Source,
    *,
    unlabelled: Mark | None = None,
    sparse: bool = False,
    classes: Sequence[int | str] = (),
) -> None:
    """Record the attributes of a dataset; `classes` exist even if no row has them."""
    schema, feature_names = source.schema, source.feature_names
    target_names = source.target_names
    counts: Counter[Any] = Counter(dict.fromkeys(classes, 0))
    for summary in summaries:
        counts.update(summary.label_counts)
    classes = sorted(counts)
    content = sum(summary.content for summary in summaries)
    _warn_of_rounded(summaries, feature_names, target_names)
    rows = group["X"]
    if isinstance(rows, zarr.Group):
        values = [summary.n_values for summary in summaries]
        found: dict[str, Any] = {"n_values": sum(values), "most_values": max(values)}
        if "place" in rows.attrs:
            found = {"digests": "".join(summary.digest_of_rows for summary in summaries)}
        finish_rows(rows, found)
    if schema is not None:
        # Contents of datasets with the same coding then add up like those of plain datasets.
        content *= schema.coding_factor
        feature_names = tuple(column.name for column in schema.columns)
    mark = unlabelled
    labelled = None
    if unlabelled is not None:
        labelled = [summary.n_labelled for summary in summaries]
        if target_names is not None:
            # All numbers of such rows are NaN, which JSON cannot express.
            unlabelled, mark = np.nan, "nan"
    attributes = {
        "has_labels": "y" in group and target_names is None,
        "has_weights": "weights" in group,
        "has_ids": "ids" in group,
        "classes": [bool(label) for label in classes] if source.boolean_labels else classes,
        "class_counts": [counts[label] for label in classes],
        "feature_names": feature_names,
        "target_names": target_names,
        "fingerprint": fingerprint(get_stored(group, "X"), summaries, unlabelled, schema),
        "content": f"{content % 2**64:016x}",
        "schema": None if schema is None else schema.to_dict(),
        "sparse": sparse,
        "has_gaps": any(summary.has_gaps for summary in summaries),
        "read_as": source.read_as,
        "unlabelled": mark,
        "labelled_rows": labelled,
    }
    mark_complete(group, kind="dataset", attributes=attributes)
