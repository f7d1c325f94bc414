"""The sums over rows from which the weights of a model are solved."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.numeric.device import beside, gpu_of, to_device, to_host
from dask_nrbfn.numeric.products import add_gram, add_products, factor_in_place
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# Rows of a triangle that are mirrored at a time: a transposed block stays in the cache.
_MIRRORED_ROWS = 256


@dataclass(frozen=True, eq=False)
class Moments(RowSum):
    """Weighted sums over rows of products of activations and targets, to add or subtract.

    packed_gram (r (r + 1) / 2,): upper triangle of ``Phi' Phi``, row by row.
    products (1 + q, r), target_products (1 + q, 1 + q): ``[1 T]' Phi`` and ``[1 T]' [1 T]``.

    ``W~W~'`` and ``FW~'`` of hu-nrbfn, Algorithm 2, step 9, **without** the penalty. A row of
    weight w counts as w equal rows. Normalized activations of a row sum to 1, so the elements of
    the gram matrix and the sums of the activations each sum to the weight.
    """

    packed_gram: Floats
    products: Floats
    target_products: Floats

    @classmethod
    def zeros(cls, n_basis: int, n_targets: int) -> Self:
        """Return the moments of no rows."""
        return cls(
            np.zeros(packed_size(n_basis)),
            np.zeros((1 + n_targets, n_basis)),
            np.zeros((1 + n_targets, 1 + n_targets)),
        )

    @staticmethod
    def from_block(Phi: Floats, T: Floats) -> "Moments":
        """Return the moments of a block of activations (b, r) and bordered targets T (b, 1 + q)."""
        sums = MomentSums(Phi.shape[1], T.shape[1] - 1)
        sums.add(Phi, T)
        return sums.moments()

    @property
    def n_basis(self) -> int:
        """Number of basis rows r."""
        return int(self.products.shape[1])

    @property
    def total_weight(self) -> float:
        """Sum of the row weights; without weights, the number of rows n."""
        return float(self.target_products[0, 0])

    @property
    def activation_sums(self) -> Floats:
        """Sum of the activations, float64 (r,)."""
        return np.asarray(self.products[0])

    @property
    def cross(self) -> Floats:
        """``T' Phi``, float64 (q, r); for classes, the sum of the activations of each class."""
        return self.products[1:]

    @property
    def target_sums(self) -> Floats:
        """Sum of the targets, float64 (q,); for classes, the weight of each class."""
        return self.target_products[0, 1:]

    @property
    def target_gram(self) -> Floats:
        """``T' T``, float64 (q, q); diagonal for classes."""
        return self.target_products[1:, 1:]

    def __iadd__(self, other: Self) -> Self:
        for name, own in self.arrays().items():
            np.add(own, getattr(other, name), out=own)
        return self

    def __isub__(self, other: Self) -> Self:
        for name, own in self.arrays().items():
            np.subtract(own, getattr(other, name), out=own)
        return self

    def on_device(self) -> Self:
        """Return the moments with the gram matrix, the only large sum, on the GPU of the task."""
        return replace(self, packed_gram=to_device(self.packed_gram))

    def diagonal(self) -> Floats:
        """Return the diagonal of the gram matrix, float64 (r,)."""
        firsts = np.cumsum([0, *range(self.n_basis, 1, -1)])
        diagonal: Floats = self.packed_gram[firsts]
        return diagonal

    def gram(self) -> Floats:
        """Return ``Phi' Phi`` in full, float64 (r, r), symmetric."""
        return unpack_gram(self.packed_gram, self.n_basis)

    def __sub__(self, other: Self) -> Self:
        return type(self)(
            packed_gram=self.packed_gram - other.packed_gram,
            products=self.products - other.products,
            target_products=self.target_products - other.target_products,
        )


class MomentSums:
    """Accumulates the moments of `n_basis` basis rows and `n_targets` targets, block by block.

    Holds ``8 (r^2 + (1 + q) (1 + q + r))`` bytes: the upper triangle of gram is stored as a square.
    `xp` is the array module of the activations.
    """

    def __init__(self, n_basis: int, n_targets: int, *, xp: Any = np) -> None:
        self._gram = xp.zeros((n_basis, n_basis))
        self._products = xp.zeros((1 + n_targets, n_basis))
        self._target_products = np.zeros((1 + n_targets, 1 + n_targets))

    def add(self, Phi: Floats, T: Floats) -> None:
        """Add a block: ``b r^2 + 2 b (1 + q) (1 + q + r)`` flops.

        Activations and `Targets.bordered` are multiplied by the square roots of the row weights.
        """
        add_gram(self._gram, Phi)
        add_products(self._products, beside(T, Phi), Phi)
        add_products(self._target_products, T, T)

    def moments(self) -> Moments:
        """Return the sums of all blocks, in the same memory; nothing can be added afterwards."""
        gram, products, target_products = self.arrays()
        del self._gram, self._products, self._target_products
        gpu = gpu_of(gram)
        packed = pack_in_place(gram) if gpu is None else gpu.pack(gram)
        return Moments(packed, products, target_products)

    def arrays(self) -> tuple[Floats, Floats, Floats]:
        """Return the upper triangle of the gram matrix, in a square, and the other sums.

        Only the gram matrix can be on a GPU.
        """
        return self._gram, to_host(self._products), self._target_products


def check_moments(moments: Moments, total_weight: float, *, normalized: bool = True) -> None:
    """Raise DamagedDataError if the sums of gram, activations and targets do not fit the weight.

    Normalized activations of a row sum to 1, so missing or repeated rows are found.
    """
    # Found and expected sums, and the size of the terms of a sum that may cancel.
    sums = [(moments.total_weight, total_weight, 0.0)]
    if normalized:
        of_gram = 2.0 * float(moments.packed_gram.sum()) - float(moments.diagonal().sum())
        sums.append((of_gram, total_weight, 0.0))
        sums.append((float(moments.activation_sums.sum()), total_weight, 0.0))
        # An upper bound of the sum of a target, by its squares.
        bounds = np.sqrt(total_weight * moments.target_gram.diagonal())
        sums += zip(moments.cross.sum(axis=1), moments.target_sums, bounds, strict=True)
    for found, expected, size in sums:
        if not np.isclose(found, expected, rtol=1e-9, atol=1e-9 * size):
            raise DamagedDataError(
                f"the moments of rows with a total weight of {total_weight:.10g} sum to "
                f"{found:.10g}, not {expected:.10g}.",
                "A part is damaged: delete the moments of the run and start the run again.",
            )


def are_sums_of_rows(left: Moments, taken: Moments, *, tolerance: float) -> bool:
    """Return whether the sums `left` after the subtraction of `taken` can be sums over rows.

    ``[1 T Phi]' [1 T Phi]`` of any rows is positive semidefinite. A subtracted row that was never
    added is found if it exceeds the sum of all rows in some direction, which is rare if r is much
    less than n. Costs ``(1 + q + r)^3 / 3`` flops and twice the bytes of the full gram matrix.
    """
    sizes = _joint_diagonal(left) + _joint_diagonal(taken)
    factors = 1.0 / np.sqrt(np.where(sizes > 0, sizes, 1.0))
    joint = np.block([[left.target_products, left.products], [left.products.T, left.gram()]])
    joint *= factors
    joint *= factors[:, None]
    np.fill_diagonal(joint, joint.diagonal() + tolerance)
    return factor_in_place(joint)


def with_rounding(left: Moments, taken: Moments) -> Moments:
    """Return `left`, changed as rounding may if `taken` was added and subtracted."""
    rng = np.random.default_rng(0)
    step = 4.0 * float(np.finfo(np.float64).eps)
    noise = {
        name: step * rng.uniform(-1, 1, sums.shape) * sums for name, sums in taken.arrays().items()
    }
    return left + Moments(**noise)


def _joint_diagonal(moments: Moments) -> Floats:
    return np.concatenate([moments.target_products.diagonal(), moments.diagonal()])


def packed_size(n_basis: int) -> int:
    """Return the number of elements of the packed gram matrix of `n_basis` rows."""
    return n_basis * (n_basis + 1) // 2


def pack_in_place(gram: Floats) -> Floats:
    """Replace a matrix that owns its memory by its upper triangle; half of the memory is freed."""
    n_basis = len(gram)
    flat = gram.reshape(-1)
    # No row is overwritten before it is moved: none moves towards the end.
    first = 0
    for row in range(n_basis):
        length = n_basis - row
        flat[first : first + length] = flat[row * n_basis + row : (row + 1) * n_basis]
        first += length
    # numpy would refuse because of the views above, which are not used after this.
    gram.resize(packed_size(n_basis), refcheck=False)
    return gram


def unpack_gram(packed: Floats, n_basis: int) -> Floats:
    """Return the symmetric matrix whose upper triangle, row by row, is `packed`."""
    if (gpu := gpu_of(packed)) is not None:
        return gpu.unpack(packed, n_basis)  # type: ignore[no-any-return]
    gram = np.zeros((n_basis, n_basis))
    first = 0
    for row in range(n_basis):
        length = n_basis - row
        gram[row, row:] = packed[first : first + length]
        first += length
    mirror_in_place(gram)
    return gram


def mirror_in_place(gram: Floats) -> None:
    """Copy the upper triangle of a matrix (r, r) to the lower one."""
    for start in range(0, len(gram), _MIRRORED_ROWS):
        stop = start + _MIRRORED_ROWS
        diagonal = gram[start:stop, start:stop]
        diagonal[...] = np.triu(diagonal) + np.triu(diagonal, 1).T
        gram[stop:, start:stop] = gram[start:stop, stop:].T
