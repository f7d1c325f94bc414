"""Hashes of rows and of their numbers: what decides where the order of rows must not."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Values that are hashed together: 8 MiB of them, and three times as much of their words.
_HASHED_VALUES = 2**20


def hash_rows(X: NDArray[np.generic], *, seed: int) -> NDArray[np.uint64]:
    """Return a seeded hash of each row's values, uint64 (b,).

    Equal rows have equal hashes wherever they stand, so choices that follow the hash do not depend
    on the order of the rows. Distinct rows share one with a chance of n**2 / 2**65.

    Notes
    -----
    splitmix64 (Steele, Lea & Flood 2014) of the seed, into which that of every value is mixed.
    """
    hashes = np.full(len(X), splitmix(np.array([seed], dtype=np.uint64)))
    # Adding 0.0 turns -0.0 into 0.0, which compares equal and must hash alike.
    columns = np.ascontiguousarray(np.asarray(X, dtype=np.float64).T + 0.0).view(np.uint64)
    for column in columns:
        hashes = _mix(hashes ^ splitmix(column))
    return hashes


def hash_values(X: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash of the values of each row, uint64 (b,), made by a product of matrices.

    Notes
    -----
    Multilinear hashing of the values' 32-bit words (Lemire & Kaser 2014), twice.
    """
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


def hash_numbers(rows: NDArray[np.int64], *, seed: int) -> NDArray[np.uint64]:
    """Return a seeded hash of each row number, uint64 (b,), of different numbers different ones."""
    return splitmix(rows.astype(np.uint64) ^ splitmix(np.array([seed], dtype=np.uint64)))


def splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hash of each number (Steele, Lea & Flood 2014)."""
    return _mix(x + np.uint64(0x9E3779B97F4A7C15))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
