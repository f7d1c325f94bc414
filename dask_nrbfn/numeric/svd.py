"""Truncated singular value decomposition of rows, by sums over the rows.

Halko, Martinsson & Tropp, *Finding Structure with Randomness*, 2011; Tropp, Yurtsever, Udell &
Cevher, *Fixed-Rank Approximation of a Positive-Semidefinite Matrix from Streaming Data*, 2017.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.rows import Rows, is_sparse, squared_norms
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# A sketch has twice as many columns as vectors, and at least 10 more. The singular values of
# text fall slowly: with 100 more columns the 100 vectors found hold 97.7 % of the squares that
# the best 100 hold, with 10 more columns 95.7 %.
_LEAST_FURTHER = 10

# Squares of singular values below this share of the largest are rounding error in float64.
_LEAST_SQUARE = 1e-14

# Rows that are multiplied together: 784 columns by 50 take 1.1 times as long as all rows at once.
_TILE_ROWS = 256


def sketch_columns(n_vectors: int, n_features: int) -> int:
    """Return the number of columns of a sketch.

    Parameters
    ----------
    n_vectors, n_features : int
        D and p.

    Returns
    -------
    int
        l.
    """
    return min(n_vectors + max(n_vectors, _LEAST_FURTHER), n_features)


def first_directions(n_features: int, n_columns: int, *, seed: int) -> Floats:
    """Return the normal random directions of the first pass.

    Parameters
    ----------
    n_features, n_columns : int
        p and l.
    seed : int

    Returns
    -------
    float64 (p, l)
    """
    return np.random.default_rng([seed, 3]).standard_normal((n_features, n_columns))


@dataclass(frozen=True, eq=False)
class Sketch(RowSum):
    """The sums of a pass over rows.

    Attributes
    ----------
    products : float64 (p, l)
        ``X' X Q`` with the directions Q.
    squares : float
        Sum of the squares of all values of X.
    """

    products: Floats
    squares: float

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> Self:
        """Return the sums over no rows."""
        return cls(np.zeros(shape), 0.0)

    @classmethod
    def from_block(cls, X: Rows, directions: Floats) -> Self:
        """Return the sums over rows; ``4 b p l`` flops, or those of stored values in CSR.

        Parameters
        ----------
        X : (b, p)
        directions : float64 (p, l)

        Returns
        -------
        Sketch
            Infinite or NaN, without a warning, if squares overflow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return cls(X.T @ (X @ directions), float(squared_norms(X).sum()))


def orthonormal(products: Floats) -> Floats:
    """Return an orthonormal basis of the columns of a matrix, float64 (p, l)."""
    return np.linalg.qr(products)[0]


class Decomposition(NamedTuple):
    """The largest singular values of X with their right singular vectors.

    Attributes
    ----------
    vectors : float64 (p, D)
        Right singular vectors, in the order of the values; the entry of largest magnitude is
        positive. 0 beyond the rank of X.
    singular_values : float64 (D,)
    explained : float
        Share of the sum of squares of X that the vectors explain.
    """

    vectors: Floats
    singular_values: Floats
    explained: float


def decomposition(directions: Floats, sketch: Sketch, n_vectors: int) -> Decomposition:
    """Return the decomposition of the rows of a sketch.

    Parameters
    ----------
    directions : float64 (p, l)
        The orthonormal directions of the sketch.
    sketch : Sketch
    n_vectors : int
        D, at most l.

    Returns
    -------
    Decomposition

    Notes
    -----
    With ``A = X'X`` and ``Y = A Q`` it is the Nystroem approximation ``Y (Q' Y)^-1 Y'``. It uses
    all of Y, while the projection ``Q Q' A Q Q'`` uses only the part in the span of Q: two passes
    are as accurate as three with the projection (Tropp et al. 2017, algorithm 3; eigenvalues below
    rounding are left out instead of shifted). No singular value exceeds the true one. ``O(p l^2)``
    flops.
    """
    squares, eigenvectors = np.linalg.eigh(directions.T @ sketch.products)
    kept = squares > max(_LEAST_SQUARE * squares[-1], 0.0)
    factor = sketch.products @ (eigenvectors[:, kept] / np.sqrt(squares[kept]))
    left, values, _ = np.linalg.svd(factor, full_matrices=False)
    vectors, singular_values = np.zeros((len(left), n_vectors)), np.zeros(n_vectors)
    found = min(n_vectors, len(values))
    largest = np.abs(left[:, :found]).argmax(axis=0)
    vectors[:, :found] = left[:, :found] * np.sign(left[largest, np.arange(found)])
    singular_values[:found] = values[:found]
    explained = (singular_values**2).sum() / (sketch.squares or 1.0)
    return Decomposition(vectors, singular_values, min(float(explained), 1.0))


def project(X: Rows, vectors: Floats) -> Floats:
    """Return ``X @ vectors`` with the same bits for equal rows.

    BLAS rounds a row depending on its place among other rows. So arrays are multiplied in tiles of
    equal size, the last one padded; rows in CSR are multiplied one by one.

    Parameters
    ----------
    X : (b, p)
    vectors : float64 (p, D)

    Returns
    -------
    float64 (b, D)
    """
    if is_sparse(X):
        products: Floats = X @ vectors
        return products
    columns = np.ascontiguousarray(vectors.T)
    tile = np.zeros((_TILE_ROWS, len(vectors)))
    coordinates = np.empty((-(-len(X) // _TILE_ROWS), _TILE_ROWS, len(columns)))
    for place, start in enumerate(range(0, len(X), _TILE_ROWS)):
        rows = X[start : start + _TILE_ROWS]
        tile[: len(rows)] = rows
        row_products(tile, columns, out=coordinates[place])
    return coordinates.reshape(-1, len(columns))[: len(X)]


def project_bytes(n_rows: int, n_features: int, n_vectors: int) -> int:
    """Return the bytes of the coordinates of rows, the vectors and a tile.

    Parameters
    ----------
    n_rows, n_features, n_vectors : int
        n, p and D.

    Returns
    -------
    int
    """
    # The vectors are held twice: as read, and transposed.
    tile = _TILE_ROWS * (n_features + n_vectors)
    return 8 * (n_rows * n_vectors + 2 * n_features * n_vectors + tile)
