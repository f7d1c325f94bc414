"""The sums over rows from which every model is solved."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.numeric.strips import over_strips

Floats = NDArray[np.float64]

# Columns of one panel of the gram matrix. At r = 6,000 panels of 512 to 3,072 columns ran a tenth
# faster than one symmetric product over the whole width, and without its r x r temporary; up to
# 2,048 columns one symmetric product is faster than two panels.
_PANEL_COLUMNS = 2048


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over rows: ``Phi' Phi``, ``F' Phi`` and the class counts. They add and subtract.

    Attributes
    ----------
    packed_gram : float64 (r (r + 1) / 2 + ...,)
        Upper triangle of ``Phi' Phi`` as row panels, see `unpack_gram`.
    cross : float64 (K, r)
        ``F' Phi``, the sum of the activations of each class.
    class_counts : int64 (K,)

    Notes
    -----
    ``W~W~'`` and ``FW~'`` of hu-nrbfn, Algorithm 2, step 9, **without** the penalty. Because the
    activations of a row sum to 1, the elements of the gram matrix and of cross each sum to n.

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
    class_counts: NDArray[np.int64]

    @classmethod
    def zeros(cls, n_basis: int, n_classes: int) -> Self:
        """Return the moments of no rows."""
        return cls(
            np.zeros(packed_size(n_basis)),
            np.zeros((n_classes, n_basis)),
            np.zeros(n_classes, dtype=np.int64),
        )

    @classmethod
    def from_block(cls, Phi: Floats, codes: NDArray[np.integer], *, n_classes: int) -> Self:
        """Return the moments of one block of activations (b, r) and class codes (b,)."""
        moments = cls.zeros(Phi.shape[1], n_classes)
        moments.accumulate(Phi, codes)
        return moments

    @property
    def n_basis(self) -> int:
        """Number of basis rows r."""
        return int(self.cross.shape[1])

    @property
    def n_rows(self) -> int:
        """Number of rows n that were summed."""
        return int(self.class_counts.sum())

    @cached_property
    def _product(self) -> Floats:
        # One buffer for the products of all panels and blocks: allocating each anew costs a tenth.
        return np.empty(product_size(self.n_basis))

    def accumulate(self, Phi: Floats, codes: NDArray[np.integer], *, threads: int = 1) -> None:
        """Add a block in place; for the one owner of freshly made moments.

        Parameters
        ----------
        Phi : float64 (b, r)
        codes : integer (b,)
            Class of each row, 0 ... K - 1.
        threads : int
            Those that add products to the sums; the threads of the products are BLAS's own.

        Notes
        -----
        ``b r^2`` flops and, beside the sums, one product of at most ``8 * 2048 * r`` bytes. Adding
        it reads and writes the sums once, however many rows the block has.
        """
        for start, panel in _panels(self.packed_gram, self.n_basis):
            width = len(panel)
            own, rest = Phi[:, start : start + width], Phi[:, start + width :]
            # numpy computes one triangle of a product of an array with itself.
            self._add_product(own, own, panel[:, :width], threads)
            if rest.size:
                self._add_product(own, rest, panel[:, width:], threads)
        F = np.zeros((len(codes), len(self.class_counts)))
        F[np.arange(len(codes)), codes] = 1.0
        np.add(self.cross, F.T @ Phi, out=self.cross)
        np.add(
            self.class_counts,
            np.bincount(codes, minlength=len(self.class_counts)),
            out=self.class_counts,
        )

    def _add_product(self, left: Floats, right: Floats, target: Floats, threads: int) -> None:
        product = self._product[: target.size].reshape(target.shape)
        np.matmul(left.T, right, out=product)
        over_strips(
            lambda strip: np.add(target[strip], product[strip], out=target[strip]),
            target.shape,
            threads,
        )

    def add_in_place(self, other: Self) -> None:
        """Add other moments; for the one owner of freshly read moments, without an r x r copy."""
        np.add(self.packed_gram, other.packed_gram, out=self.packed_gram)
        np.add(self.cross, other.cross, out=self.cross)
        np.add(self.class_counts, other.class_counts, out=self.class_counts)

    def gram(self) -> Floats:
        """Return ``Phi' Phi`` in full, float64 (r, r), symmetric."""
        return unpack_gram(self.packed_gram, self.n_basis)

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.packed_gram + other.packed_gram,
            self.cross + other.cross,
            self.class_counts + other.class_counts,
        )

    def __sub__(self, other: Self) -> Self:
        return type(self)(
            self.packed_gram - other.packed_gram,
            self.cross - other.cross,
            self.class_counts - other.class_counts,
        )


def check_moments(moments: Moments, n_rows: int) -> None:
    """Raise DamagedDataError unless the sums over gram, cross and counts are all `n_rows`.

    The activations of every row sum to 1, so sums that miss or repeat rows show here.
    """
    upper = float(moments.packed_gram.sum())
    diagonal = sum(
        float(panel[:, : len(panel)].sum())
        for _, panel in _panels(moments.packed_gram, moments.n_basis)
    )
    sums = (2.0 * upper - diagonal, float(moments.cross.sum()), float(moments.n_rows))
    if not np.allclose(sums, n_rows, rtol=1e-9, atol=0.0):
        raise DamagedDataError(
            f"moments of {n_rows} rows sum to {sums[0]:.10g}, {sums[1]:.10g} and {sums[2]:.10g}.",
            "A part is damaged; remove the run's moments and start it again.",
        )


def packed_size(n_basis: int) -> int:
    """Return the number of elements of the packed gram matrix of `n_basis` rows."""
    return sum(
        min(_PANEL_COLUMNS, n_basis - start) * (n_basis - start)
        for start in range(0, n_basis, _PANEL_COLUMNS)
    )


def product_size(n_basis: int) -> int:
    """Return the number of elements of the products that `Moments.accumulate` holds."""
    return min(_PANEL_COLUMNS, n_basis) * n_basis


def unpack_gram(packed: Floats, n_basis: int) -> Floats:
    """Return the symmetric matrix (r, r) whose upper row panels are `packed`.

    Panel i holds rows ``2048 i ... 2048 (i + 1)`` from their diagonal block to the right.
    """
    gram = np.empty((n_basis, n_basis))
    for start, panel in _panels(packed, n_basis):
        stop = start + len(panel)
        diagonal = panel[:, : len(panel)]
        gram[start:stop, start:stop] = np.triu(diagonal) + np.triu(diagonal, 1).T
        gram[start:stop, stop:] = panel[:, len(panel) :]
        gram[stop:, start:stop] = panel[:, len(panel) :].T
    return gram


def _panels(packed: Floats, n_basis: int) -> list[tuple[int, Floats]]:
    panels, offset = [], 0
    for start in range(0, n_basis, _PANEL_COLUMNS):
        shape = (min(_PANEL_COLUMNS, n_basis - start), n_basis - start)
        size = shape[0] * shape[1]
        panels.append((start, packed[offset : offset + size].reshape(shape)))
        offset += size
    return panels
