"""Soft-kNN confidence and the choice of basis rows (hu-nrbfn, Algorithm 1)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def soft_confidence(distances: Floats, agrees: NDArray[np.bool_], *, width: float) -> Floats:
    """Return each row's confidence in its own label, float64 (b,), within [0, 1].

    Parameters
    ----------
    distances : float64 (b, k)
        Distances to the k nearest neighbours, the row itself excluded.
    agrees : bool (b, k)
        Whether the neighbour carries the row's own label.
    width : float
        Mean of the distances of all rows (step 4); 0 if all of them are 0.

    Notes
    -----
    Steps 5 to 7: weights ``exp(-D^2 / (2 width^2))``, normalized per row, summed over the
    neighbours that agree. As in the activations, the smallest distance of a row is taken out
    first, so that a row far from all its neighbours keeps a defined confidence.

    Examples
    --------
    >>> D = np.array([[1.0, 1.0], [0.0, 100.0]])
    >>> soft_confidence(D, np.array([[True, False], [True, False]]), width=1.0)
    array([0.5, 1. ])
    """
    squared = distances**2
    squared -= squared.min(axis=1, keepdims=True)
    scale = 2.0 * width**2
    similarity = np.exp(-squared / scale) if scale > 0 else np.ones_like(squared)
    own = np.where(agrees, similarity, 0.0).sum(axis=1)
    confidence: Floats = own / similarity.sum(axis=1)
    return confidence


def rows_below(
    confidence: Floats,
    codes: NDArray[np.integer],
    tiebreak: NDArray[np.uint64],
    *,
    threshold: float,
    n_classes: int,
) -> NDArray[np.int64]:
    """Return the rows with a confidence below `threshold`, int64 (r,), in row order.

    Parameters
    ----------
    confidence : float64 (n,)
    codes : integer (n,)
    tiebreak : uint64 (n,)
        Decides among equally confident rows, the smaller first.
    threshold : float
    n_classes : int
        A class with no row below the threshold gives its least confident one (steps 8 and 9).

    Examples
    --------
    >>> confidence, codes = np.array([0.2, 1.0, 0.95]), np.array([0, 1, 1])
    >>> rows_below(confidence, codes, np.zeros(3, np.uint64), threshold=0.9, n_classes=2)
    array([0, 2])
    """
    chosen = confidence < threshold
    for code in np.setdiff1d(np.arange(n_classes), codes[chosen]):
        members = np.flatnonzero(codes == code)
        order = np.lexsort((tiebreak[members], confidence[members]))
        chosen[members[order[:1]]] = True
    return np.flatnonzero(chosen)


def least_confident_rows(
    confidence: Floats,
    codes: NDArray[np.integer],
    tiebreak: NDArray[np.uint64],
    *,
    size: int,
    n_classes: int,
) -> NDArray[np.int64]:
    """Return the `size` least confident rows, int64 (size,), in row order (paper, 7.1.3).

    Parameters
    ----------
    confidence : float64 (n,)
    codes : integer (n,)
    tiebreak : uint64 (n,)
        Decides among equally confident rows, the smaller first.
    size : int
        From `n_classes` to n.
    n_classes : int
        Every class that has rows gives at least its least confident one.

    Examples
    --------
    >>> confidence, codes = np.array([0.1, 0.2, 0.3, 1.0]), np.array([0, 0, 0, 1])
    >>> ties = np.zeros(4, np.uint64)
    >>> least_confident_rows(confidence, codes, ties, size=2, n_classes=2)
    array([0, 3])
    """
    order = np.lexsort((tiebreak, confidence))
    _, first_of_class = np.unique(codes[order], return_index=True)
    firsts = order[first_of_class]
    others = order[~np.isin(order, firsts)]
    return np.sort(np.concatenate([firsts, others[: size - len(firsts)]]))


def hash_rows(X: NDArray[np.generic], *, seed: int) -> NDArray[np.uint64]:
    """Return a seeded hash of each row's values, uint64 (b,).

    Equal rows have equal hashes wherever they stand, so choices that follow the hash do not depend
    on the order of the rows.

    Notes
    -----
    splitmix64 (Steele, Lea & Flood 2014) of the seed, into which that of every value is mixed.
    """
    hashes = np.full(len(X), _splitmix(np.array([seed], dtype=np.uint64)))
    # Adding 0.0 turns -0.0 into 0.0, which compares equal and must hash alike.
    columns = np.ascontiguousarray(np.asarray(X, dtype=np.float64).T + 0.0).view(np.uint64)
    for column in columns:
        hashes = _mix(hashes ^ _splitmix(column))
    return hashes


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return _mix(x + np.uint64(0x9E3779B97F4A7C15))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
