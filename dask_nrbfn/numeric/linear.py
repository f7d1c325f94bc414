"""Features of linear regression classification, and their moments."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.moments import Moments, MomentSums
from dask_nrbfn.numeric.targets import ClassTargets
from dask_nrbfn.numeric.types import Floats


@dataclass(frozen=True, eq=False)
class Centre:
    """The mean of the training rows in two parts: a row, and the mean of the rows minus that row.

    Subtracting the row first is exact for rows far from 0 that are close together, where the mean
    itself is rounded.

    Examples
    --------
    >>> centre = Centre.from_blocks([np.array([[1e15], [1e15 + 1]])])
    >>> centre.features(np.array([[1e15 + 2]]))
    array([[1. , 1.5]])
    """

    origin: Floats
    shift: Floats

    @classmethod
    def from_blocks(cls, blocks: Iterable[NDArray[Any]]) -> Self:
        """Return the centre of the rows of all blocks (b, p), at least one row."""
        origin: Floats | None = None
        n_rows = 0
        for block in blocks:
            if len(block):
                if origin is None:
                    origin = block[0].astype(np.float64)
                    total = np.zeros_like(origin)
                total += (block - origin).sum(axis=0)
                n_rows += len(block)
        assert origin is not None
        return cls(origin, total / n_rows)

    @property
    def mean(self) -> Floats:
        """Mean of the rows, float64 (p,)."""
        return self.origin + self.shift

    def features(self, X: NDArray[Any]) -> Floats:
        """Return ``[1, x - mean]`` of each row, float64 (b, p + 1), C-contiguous.

        Notes
        -----
        The transposed columns of hu-nrbfn's augmented data, eq. 1, with beta = 1.
        """
        Phi = np.empty((len(X), len(self.origin) + 1))
        Phi[:, 0] = 1.0
        np.subtract(X, self.origin, out=Phi[:, 1:])
        Phi[:, 1:] -= self.shift
        return Phi


def linear_moments(
    blocks: Iterable[tuple[NDArray[Any], NDArray[np.integer]]], centre: Centre, *, n_classes: int
) -> Moments:
    """Return the moments of the linear features of blocks.

    Parameters
    ----------
    blocks : iterable of (b, p) and integer (b,)
        Rows and their class codes.
    centre : Centre
        The mean of the rows.
    n_classes : int
        K.

    Returns
    -------
    Moments
        Of r = p + 1 features.

    Notes
    -----
    ``A~A~'`` and ``FA~'`` of hu-nrbfn, eq. 14, without the penalty. ``n (p + 1)^2`` flops.

    Examples
    --------
    >>> X = np.array([[1.0], [3.0]])
    >>> linear_moments([(X, np.array([0, 1]))], Centre.from_blocks([X]), n_classes=2).gram()
    array([[2., 0.],
           [0., 2.]])
    """
    sums, targets = MomentSums(len(centre.origin) + 1, n_classes), ClassTargets(n_classes)
    for X, codes in blocks:
        sums.add(centre.features(X), targets.bordered(codes))
    return sums.moments()
