"""The sums over rows from which every model is solved."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.numeric.products import add_gram, add_products
from dask_nrbfn.numeric.sums import RowSum

Floats = NDArray[np.float64]

# Rows of a triangle that are mirrored at a time: a transposed block of this size stays in cache.
_MIRRORED_ROWS = 256


@dataclass(frozen=True, eq=False)
class Moments(RowSum):
    """Weighted sums over rows: ``Phi' Phi``, ``F' Phi`` and the classes'. They add and subtract.

    Attributes
    ----------
    packed_gram : float64 (r (r + 1) / 2,)
        Upper triangle of ``Phi' Phi``, row by row.
    cross : float64 (K, r)
        ``F' Phi``, the sum of the activations of each class.
    class_weights : float64 (K,)
        Sum of the weights of the rows of each class; without weights, their number.

    Notes
    -----
    ``W~W~'`` and ``FW~'`` of hu-nrbfn, Algorithm 2, step 9, **without** the penalty. A row of
    weight w counts as w equal rows. Because normalized activations of a row sum to 1, the elements
    of the gram matrix, of cross and of the class weights each sum to the same.

    Examples
    --------
    >>> Phi = np.array([[0.25, 0.75], [0.5, 0.5]])
    >>> both = Moments.from_block(Phi, np.array([0, 1]), n_classes=2)
    >>> first = Moments.from_block(Phi[:1], np.array([0]), n_classes=2)
    >>> (both - first).cross
    array([[0. , 0. ],
           [0.5, 0.5]])
    """

    packed_gram: Floats
    cross: Floats
    class_weights: Floats

    @classmethod
    def zeros(cls, n_basis: int, n_classes: int) -> Self:
        """Return the moments of no rows."""
        return cls(
            np.zeros(packed_size(n_basis)),
            np.zeros((n_classes, n_basis)),
            np.zeros(n_classes),
        )

    @staticmethod
    def from_block(Phi: Floats, codes: NDArray[np.integer], *, n_classes: int) -> "Moments":
        """Return the moments of one block of activations (b, r) and class codes (b,)."""
        sums = MomentSums(Phi.shape[1], n_classes)
        sums.add(Phi, codes)
        return sums.moments()

    @property
    def n_basis(self) -> int:
        """Number of basis rows r."""
        return int(self.cross.shape[1])

    @property
    def total_weight(self) -> float:
        """Sum of the weights of all rows; without weights, their number n."""
        return float(self.class_weights.sum())

    def __iadd__(self, other: Self) -> Self:
        for name, own in self.arrays().items():
            np.add(own, getattr(other, name), out=own)
        return self

    def __isub__(self, other: Self) -> Self:
        for name, own in self.arrays().items():
            np.subtract(own, getattr(other, name), out=own)
        return self

    def diagonal(self) -> Floats:
        """Return the diagonal of the gram matrix, float64 (r,)."""
        return np.array([row[0] for row in _packed_rows(self.packed_gram, self.n_basis)])

    def gram(self) -> Floats:
        """Return ``Phi' Phi`` in full, float64 (r, r), symmetric."""
        return unpack_gram(self.packed_gram, self.n_basis)

    def __sub__(self, other: Self) -> Self:
        return type(self)(
            self.packed_gram - other.packed_gram,
            self.cross - other.cross,
            self.class_weights - other.class_weights,
        )


class MomentSums:
    """Adds blocks up: the upper triangle of the gram matrix lies in a square meanwhile.

    Parameters
    ----------
    n_basis : int
        r.
    n_classes : int
        K.

    Notes
    -----
    Holds ``8 r (r + K)`` bytes, and `moments` another ``4 r^2``.
    """

    def __init__(self, n_basis: int, n_classes: int) -> None:
        self._gram = np.zeros((n_basis, n_basis))
        self._cross = np.zeros((n_classes, n_basis))
        self._class_weights = np.zeros(n_classes)

    def add(
        self, Phi: Floats, codes: NDArray[np.integer], *, factors: Floats | None = None
    ) -> None:
        """Add a block.

        Parameters
        ----------
        Phi : float64 (b, r), C-contiguous
            Activations; with `factors`, each row multiplied by its factor.
        codes : integer (b,)
            Class of each row, 0 ... K - 1.
        factors : float64 (b,), optional
            Square roots of the rows' weights.

        Notes
        -----
        ``b r^2 + 2 b K r`` flops.
        """
        n_classes = len(self._class_weights)
        F = np.zeros((len(codes), n_classes))
        F[np.arange(len(codes)), codes] = 1.0 if factors is None else factors
        add_gram(self._gram, Phi)
        add_products(self._cross, F, Phi)
        weights = None if factors is None else factors**2
        self._class_weights += np.bincount(codes, weights, minlength=n_classes)

    def moments(self) -> Moments:
        """Return the sums of the blocks added so far."""
        packed = np.empty(packed_size(len(self._gram)))
        for row, target in enumerate(_packed_rows(packed, len(self._gram))):
            target[:] = self._gram[row, row:]
        return Moments(packed, self._cross.copy(), self._class_weights.copy())


def check_moments(
    moments: Moments, total_weight: float, *, normalized: bool = True, largest: float = 0.0
) -> None:
    """Raise DamagedDataError unless the class weights, gram and cross sum to `total_weight`.

    Rounding is that of `total_weight`, or of a larger weight that some of it was taken away from.

    The activations of every row sum to 1, so sums that miss or repeat rows show here. Those of
    activations that are not normalized sum to nothing known; then only the weights are checked.
    """
    sums = [moments.total_weight]
    if normalized:
        sums += [
            2.0 * float(moments.packed_gram.sum()) - float(moments.diagonal().sum()),
            float(moments.cross.sum()),
        ]
    if not np.allclose(sums, total_weight, rtol=1e-9, atol=1e-9 * largest):
        found = " and ".join(f"{value:.10g}" for value in sums)
        raise DamagedDataError(
            f"moments of {total_weight:.10g} rows sum to {found}.",
            "A part is damaged; remove the run's moments and start it again.",
        )


def packed_size(n_basis: int) -> int:
    """Return the number of elements of the packed gram matrix of `n_basis` rows."""
    return n_basis * (n_basis + 1) // 2


def unpack_gram(packed: Floats, n_basis: int) -> Floats:
    """Return the symmetric matrix (r, r) whose upper triangle is `packed`, row by row."""
    gram = np.zeros((n_basis, n_basis))
    for row, values in enumerate(_packed_rows(packed, n_basis)):
        gram[row, row:] = values
    for start in range(0, n_basis, _MIRRORED_ROWS):
        stop = start + _MIRRORED_ROWS
        diagonal = gram[start:stop, start:stop]
        diagonal += np.triu(diagonal, 1).T
        gram[stop:, start:stop] = gram[start:stop, stop:].T
    return gram


def _packed_rows(packed: Floats, n_basis: int) -> Iterator[Floats]:
    start = 0
    for length in range(n_basis, 0, -1):
        yield packed[start : start + length]
        start += length
