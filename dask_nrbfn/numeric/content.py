"""A digest of a set of rows, whatever their order and wherever they are cut."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.confidence import splitmix

# Values that are hashed together: 8 MiB of them, and three times as much of their words.
_HASHED_VALUES = 2**20


def content_of_rows(
    X: NDArray[Any], y: NDArray[Any] | None, weights: NDArray[np.float64] | None
) -> int:
    """Return the sum of the hashes of rows with their labels and weights, modulo 2**64.

    Of equal rows in another order, or of another type that holds the same values, it is the same,
    and weights of 1 are as none; sums of blocks add up to that of all rows.

    Parameters
    ----------
    X : array (b, p)
    y : integer or text (b,) or None
    weights : float64 (b,) or None

    Notes
    -----
    Multilinear hashing of the values' 32-bit words (Lemire & Kaser 2014), twice.

    Examples
    --------
    >>> X, y = np.array([[0.5, 1.0], [2.0, 3.0]]), np.array([0, 1])
    >>> content_of_rows(X, y, None) == content_of_rows(X[::-1], y[::-1], None)
    True
    """
    hashes = hash_values(X)
    if y is not None:
        hashes = splitmix(hashes ^ splitmix(_label_words(y).view(np.uint64)))
    if weights is not None:
        weighted = splitmix(hashes ^ splitmix(weights.view(np.uint64)))
        hashes = np.where(weights == 1.0, hashes, weighted)
    return int(hashes.sum(dtype=np.uint64))


class DistinctLabels(NamedTuple):
    """The distinct ``labels`` (K,), sorted, their ``counts`` (K,) and the ``codes`` (b,) of all."""

    labels: NDArray[Any]
    codes: NDArray[np.int64]
    counts: NDArray[np.int64]


def distinct_labels(y: NDArray[Any]) -> DistinctLabels:
    """Return what is distinct in integer or text labels (b,)."""
    # Asked for the first rows, numpy sorts stably; its other sort of StringDType crashes on some
    # orders of a few hundred distinct texts.
    labels, _, codes, counts = np.unique(
        y, return_index=True, return_inverse=True, return_counts=True
    )
    return DistinctLabels(labels, codes, counts)


def hash_values(X: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash of the values of each row, uint64 (b,)."""
    n_words = 2 * X.shape[1]
    factors = splitmix(np.arange(2 * n_words, dtype=np.uint64)).reshape(n_words, 2)
    hashes = np.empty(len(X), dtype=np.uint64)
    step = max(1, _HASHED_VALUES // X.shape[1])
    for start in range(0, len(X), step):
        # Adding 0.0 turns -0.0 into 0.0.
        values = np.ascontiguousarray(X[start : start + step], dtype=np.float64) + 0.0
        sums = values.view(np.uint32).astype(np.uint64) @ factors
        high, low = sums.T >> np.uint64(32)
        hashes[start : start + step] = splitmix(high << np.uint64(32) | low)
    return hashes


def _label_words(y: NDArray[Any]) -> NDArray[Any]:
    if y.dtype.kind not in "TU":
        return y.astype(np.int64)
    labels, places, _ = distinct_labels(y)
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in labels.tolist()]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)[places]
