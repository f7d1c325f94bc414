"""Targets of rows: class indicators or numbers."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.types import Floats


def has_target(targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows have a target: not the code -1, nor numbers that are all NaN."""
    has: NDArray[np.bool_] = targets >= 0 if targets.ndim == 1 else ~np.isnan(targets[:, 0])
    return has


@dataclass(frozen=True)
class ClassTargets:
    """Class indicators: T is F, each row of which has a single 1."""

    n_targets: int

    centred: ClassVar[bool] = False

    def shifted(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return class codes unchanged."""
        return targets

    def bordered(self, targets: NDArray[Any], factors: Floats | None = None) -> Floats:
        """Return ``[1 F]`` of codes, each row times its factor (b,), float64 (b, 1 + K)."""
        T = np.zeros((len(targets), 1 + self.n_targets))
        T[:, 0] = 1.0 if factors is None else factors
        T[:, 1:][np.arange(len(T)), targets] = T[:, 0]
        return T


@dataclass(frozen=True, eq=False)
class NumberTargets:
    """Numbers minus an origin, because squares of numbers far from 0 lose digits."""

    origin: Floats

    centred: ClassVar[bool] = True

    @property
    def n_targets(self) -> int:
        """Number of columns q."""
        return len(self.origin)

    def shifted(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return numbers (b, q) minus the origin."""
        return targets - self.origin

    def bordered(self, targets: NDArray[Any], factors: Floats | None = None) -> Floats:
        """Return ``[1 T]`` of numbers, each row times its factor (b,), float64 (b, 1 + q)."""
        T = np.ones((len(targets), 1 + self.n_targets))
        T[:, 1:] = self.shifted(targets)
        if factors is not None:
            T *= factors[:, None]
        return T


Targets = ClassTargets | NumberTargets
"""How targets enter the moments of a table.

`centred`: whether the network has an intercept: targets are centred before weights are solved.
"""
