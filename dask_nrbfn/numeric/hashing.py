"""Hashes of rows and of row indices, and a digest of rows that ignores their order."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.rows import Rows, dense, is_csr
from dask_nrbfn.numeric.types import Floats

# Values that are hashed together: 8 MiB, and 24 MiB of their words.
_HASHED_VALUES = 2**20

# From this number of columns on, most values may be zeros that are not stored.
_WIDE = 256


def hash_rows(X: Rows, *, seed: int) -> NDArray[np.uint64]:
    """Return a seeded hash of each row's values, uint64 (b,).

    Equal rows have equal hashes however they are stored. Two of n distinct rows share a hash with
    probability n**2 / 2**65. splitmix64 (Steele, Lea & Flood 2014) of the seed, mixed with the hash
    of every value; for wide rows with `hash_values`, which takes no time for zeros in CSR.
    """
    seeds = splitmix(np.array([seed], dtype=np.uint64))
    if X.shape[1] >= _WIDE:
        return _mix(hash_values(X) ^ seeds)
    hashes = np.full(X.shape[0], seeds)
    # Adding 0.0 turns -0.0 into 0.0, which compares equal and must hash alike.
    columns = np.ascontiguousarray(dense(X).T, dtype=np.float64) + 0.0
    for column in columns.view(np.uint64):
        hashes = _mix(hashes ^ splitmix(column))
    return hashes


def hash_values(X: Rows) -> NDArray[np.uint64]:
    """Return a hash of the values of each row, uint64 (b,), by a product of matrices.

    Multilinear hashing of the values' 32-bit words (Lemire & Kaser 2014), twice. Zeros add nothing,
    so only stored values of sparse rows are read.
    """
    n_rows, p = X.shape
    factors = splitmix(np.arange(4 * p, dtype=np.uint64)).reshape(p, 2, 2)
    row_values = p
    if is_csr(X):
        # The factors of stored values are gathered, which takes four times their bytes.
        row_values = 4 * X.nnz // max(n_rows, 1)
    step = max(1, _HASHED_VALUES // max(row_values, 1))
    hashes = np.empty(n_rows, dtype=np.uint64)
    for start in range(0, n_rows, step):
        sums = _word_sums(X[start : start + step], factors)
        high, low = sums.T >> np.uint64(32)
        hashes[start : start + step] = splitmix(high << np.uint64(32) | low)
    return hashes


def _word_sums(X: Rows, factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the sums, uint64 (b, 2), of the words of each row times the factors (p, 2, 2)."""
    if not is_csr(X):
        return np.asarray(_words(X) @ factors.reshape(-1, 2))
    sums = np.zeros((X.shape[0], 2), dtype=np.uint64)
    words = _words(X.data).reshape(-1, 2)
    products = np.einsum("nw,nwh->nh", words, factors[X.indices])
    filled = np.flatnonzero(np.diff(X.indptr))
    if len(filled):
        sums[filled] = np.add.reduceat(products, X.indptr[filled], axis=0)
    return sums


def _words(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the 32-bit words of values, two adjacent words for each."""
    # Adding 0.0 turns -0.0 into 0.0.
    numbers = np.ascontiguousarray(values, dtype=np.float64) + 0.0
    return numbers.view(np.uint32).astype(np.uint64)


def hash_numbers(rows: NDArray[np.int64], *, seed: int) -> NDArray[np.uint64]:
    """Return a seeded hash of each row index; no two indices share one, uint64 (b,)."""
    return splitmix(rows.astype(np.uint64) ^ splitmix(np.array([seed], dtype=np.uint64)))


def splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each number (Steele, Lea & Flood 2014)."""
    return _mix(x + np.uint64(0x9E3779B97F4A7C15))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def content_of_rows(
    X: Rows,
    y: NDArray[Any] | None,
    weights: Floats | None,
    labelled: NDArray[np.bool_] | None = None,
) -> int:
    """Return the sum of the hashes of rows with their targets and weights, modulo 2**64.

    The sum does not depend on the order of the rows or on the type of the values. Weights of 1
    equal no weights. Sums of blocks add up to that of all rows. Rows that are not `labelled` are
    hashed without a target.
    """
    hashes = hash_values(X)
    if y is not None:
        with_target = splitmix(hashes ^ splitmix(_target_words(y)))
        hashes = with_target if labelled is None else np.where(labelled, with_target, hashes)
    if weights is not None:
        weighted = splitmix(hashes ^ splitmix(weights.view(np.uint64)))
        hashes = np.where(weights == 1.0, hashes, weighted)
    return int(hashes.sum(dtype=np.uint64))


class DistinctLabels(NamedTuple):
    """Sorted distinct ``labels`` (K,), the ``codes`` (b,) of all rows, and ``counts`` (K,)."""

    labels: NDArray[Any]
    codes: NDArray[np.int64]
    counts: NDArray[np.int64]


def distinct_labels(y: NDArray[Any]) -> DistinctLabels:
    """Return the distinct integer or text labels among labels (b,)."""
    # With indices numpy uses its stable sort. The other sort crashes on some orders of a few
    # hundred distinct texts of StringDType.
    labels, _, codes, counts = np.unique_all(y)
    return DistinctLabels(labels, codes, counts)


def _target_words(y: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a word for the target of each row, uint64 (b,)."""
    if y.ndim == 2:
        return hash_values(y)
    if y.dtype.kind not in "TU":
        return y.astype(np.int64).view(np.uint64)
    labels, places, _ = distinct_labels(y)
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in labels.tolist()]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)[places]
