"""A digest of a set of rows, whatever their order and wherever they are cut."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.hashing import hash_values, splitmix
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.types import Floats


def content_of_rows(
    X: Rows,
    y: NDArray[Any] | None,
    weights: Floats | None,
    labelled: NDArray[np.bool_] | None = None,
) -> int:
    """Return the sum of the hashes of rows with their targets and weights, modulo 2**64.

    Of equal rows in another order, or of another type that holds the same values, it is the same,
    and weights of 1 are as none; sums of blocks add up to that of all rows.

    Parameters
    ----------
    X : array or CSR (b, p)
    y : integer or text (b,), numbers (b, q), or None
    weights : float64 (b,) or None
    labelled : bool (b,), optional
        Which rows have a target; the others are as those of a table without any. Default: all.

    Examples
    --------
    >>> X, y = np.array([[0.5, 1.0], [2.0, 3.0]]), np.array([0, 1])
    >>> content_of_rows(X, y, None) == content_of_rows(X[::-1], y[::-1], None)
    True
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


def _target_words(y: NDArray[Any]) -> NDArray[np.uint64]:
    if y.ndim == 2:
        return hash_values(y)
    if y.dtype.kind not in "TU":
        return y.astype(np.int64).view(np.uint64)
    labels, places, _ = distinct_labels(y)
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in labels.tolist()]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)[places]
