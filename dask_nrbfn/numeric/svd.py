"""Truncated singular value decomposition of rows, by sums over them.

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

# Columns of a sketch beyond those that are asked for: as many again, and with few of them so many.
# Of text, whose singular values fall slowly, the 100 found hold 97.7 % of what the 100 largest
# hold, with 10 further columns 95.7 %.
_LEAST_FURTHER = 10

# Of squares of singular values, relative to the largest: below it sums in float64 have rounding.
_LEAST_SQUARE = 1e-14

# Rows that are multiplied together: 784 columns by 50 take 1.1 times as long as all at once.
_TILE_ROWS = 256


def sketch_columns(n_components: int, n_features: int) -> int:
    """Return the columns of the sketch that so many components are found with."""
    return min(n_components + max(n_components, _LEAST_FURTHER), n_features)


def first_directions(n_features: int, n_columns: int, *, seed: int) -> Floats:
    """Return what the first pass multiplies rows by, float64 (p, l): normal numbers."""
    return np.random.default_rng([seed, 3]).standard_normal((n_features, n_columns))


@dataclass(frozen=True, eq=False)
class Sketch(RowSum):
    """What a pass over rows leaves.

    Attributes
    ----------
    products : float64 (p, l)
        ``X' X Q`` with the directions Q.
    squares : float
        Of all values of X, summed.
    """

    products: Floats
    squares: float

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> Self:
        """Return the sums over no rows."""
        return cls(np.zeros(shape), 0.0)

    @classmethod
    def from_block(cls, X: Rows, directions: Floats) -> Self:
        """Return the sums over rows (b, p); ``4 b p l`` flops, of CSR those of stored values.

        Too large a value makes them infinite, without a warning.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return cls(X.T @ (X @ directions), float(squared_norms(X).sum()))


def orthonormal(products: Floats) -> Floats:
    """Return an orthonormal basis of the columns of a matrix, float64 (p, l)."""
    return np.linalg.qr(products)[0]


class Decomposition(NamedTuple):
    """The largest singular values of X, and what belongs to them.

    Attributes
    ----------
    components : float64 (p, D)
        Right singular vectors, those of the largest values first, each with its entry of largest
        magnitude positive; 0 where X has no further one.
    singular_values : float64 (D,)
    explained : float
        Share of the squares of all values that the components hold.
    """

    components: Floats
    singular_values: Floats
    explained: float


def decomposition(directions: Floats, sketch: Sketch, n_components: int) -> Decomposition:
    """Return the decomposition of the rows that a sketch is of.

    Parameters
    ----------
    directions : float64 (p, l)
        Orthonormal, what the sketch was made with.
    sketch : Sketch
    n_components : int
        D, at most l.

    Notes
    -----
    Of ``A = X'X`` with ``Y = A Q`` it is the Nystroem approximation ``Y (Q' Y)^-1 Y'``, which takes
    of the last pass the whole of Y and not, as the projection ``Q Q' A Q Q'`` does, what lies in
    the span of Q: with two passes it is as near as the projection with three (Tropp et al. 2017,
    algorithm 3, with eigenvalues left out below rounding in the place of a shift). No value is
    above the true one. ``O(p l^2)`` flops.
    """
    squares, vectors = np.linalg.eigh(directions.T @ sketch.products)
    kept = squares > max(_LEAST_SQUARE * squares[-1], 0.0)
    factor = sketch.products @ (vectors[:, kept] / np.sqrt(squares[kept]))
    left, values, _ = np.linalg.svd(factor, full_matrices=False)
    components, singular_values = np.zeros((len(left), n_components)), np.zeros(n_components)
    found = min(n_components, len(values))
    largest = np.abs(left[:, :found]).argmax(axis=0)
    components[:, :found] = left[:, :found] * np.sign(left[largest, np.arange(found)])
    singular_values[:found] = values[:found]
    explained = (singular_values**2).sum() / (sketch.squares or 1.0)
    return Decomposition(components, singular_values, min(float(explained), 1.0))


def project(X: Rows, components: Floats) -> Floats:
    """Return ``X @ components``, float64 (b, D), where equal rows become equal to the last bit.

    Notes
    -----
    A product of matrices rounds a row as its place among others wants it. So arrays are multiplied
    in tiles of the same number of rows, the last one filled up; rows in CSR are multiplied one by
    one.
    """
    if is_sparse(X):
        products: Floats = X @ components
        return products
    columns = np.ascontiguousarray(components.T)
    tile = np.zeros((_TILE_ROWS, len(components)))
    coordinates = np.empty((-(-len(X) // _TILE_ROWS), _TILE_ROWS, len(columns)))
    for place, start in enumerate(range(0, len(X), _TILE_ROWS)):
        rows = X[start : start + _TILE_ROWS]
        tile[: len(rows)] = rows
        row_products(tile, columns, out=coordinates[place])
    return coordinates.reshape(-1, len(columns))[: len(X)]


def project_bytes(n_rows: int, n_features: int, n_components: int) -> int:
    """Return the bytes of the coordinates of rows, and of what they are made with."""
    # The components as read and as they are multiplied.
    tile = _TILE_ROWS * (n_features + n_components)
    return 8 * (n_rows * n_components + 2 * n_features * n_components + tile)
