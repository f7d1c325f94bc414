"""Kernels: what a distance between two rows becomes.

Each module here is a kernel of its own name: it defines `KERNEL`, and that is all there is to add.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.params import FitParams, module_of

Floats = NDArray[np.float64]

# Beyond this t squares overflow, and infinite t would have no logarithm.
FARTHEST = 1e150


class Kernel(ABC):
    """A positive function of ``t = d / sigma``, 1 at 0, that falls as the distance d grows.

    Attributes
    ----------
    width_factors : tuple of float
        What a tuning tries of them.

    Notes
    -----
    What numpy returns is used, also of what it writes in place: a graph, whose tensors do not
    change, is made by the same functions.
    """

    width_factors: tuple[float, ...]

    @abstractmethod
    def logarithms_in_place(self, exponents: Floats) -> Floats:
        """Turn ``-t^2 / 2`` into the logarithm of the kernel; rounding may leave it above 0."""

    @abstractmethod
    def shifted_logarithms(
        self, differences: Callable[[], Floats], gaps: Callable[[], tuple[Floats, Floats]]
    ) -> Floats:
        """Return logarithms of which the largest of each row is 0, for rows far from the basis.

        Parameters
        ----------
        differences : callable
            Returns ``(e^2 - t^2) / 2`` with e the least t of each row, float64 (b, r).
        gaps : callable
            Returns ``e - t`` and t, float64 (b, r) each; t is finite, at most `FARTHEST`.
        """

    @abstractmethod
    def slope(self, t: Floats) -> Floats:
        """Return the derivative of the kernel by ``t^2``; over ``sigma^2`` it is by ``d^2``."""


@dataclass(frozen=True)
class DistanceKernel(Kernel):
    """A kernel ``factor(t) exp(-rate t)``.

    Attributes
    ----------
    rate : float
    slope_of : callable
        Takes t, returns the derivative by ``t^2``.
    log_factor : callable or None
        Takes t, returns the logarithm of the factor, which grows slower than t; None for 1.
    width_factors : tuple of float
        See `Kernel`.
    """

    rate: float
    slope_of: Callable[[Floats], Floats]
    log_factor: Callable[[Floats], Floats] | None = None
    width_factors: tuple[float, ...] = (0.15, 0.25, 0.4, 0.6, 1.0, 1.6, 2.5)

    def logarithms_in_place(self, exponents: Floats) -> Floats:
        """Turn ``-t^2 / 2`` into the logarithm of the kernel; rounding may leave it above 0."""
        t = distances_in_place(exponents)
        if self.log_factor is None:
            t *= -self.rate
            return t
        t = np.minimum(t, FARTHEST, out=t)
        log_factor = self.log_factor(t)
        t *= -self.rate
        t += log_factor
        return t

    def shifted_logarithms(
        self, differences: Callable[[], Floats], gaps: Callable[[], tuple[Floats, Floats]]
    ) -> Floats:
        """Return logarithms of which the largest of each row is 0, for rows far from the basis."""
        shifted, t = gaps()
        shifted *= self.rate
        if self.log_factor is not None:
            shifted += self.log_factor(t) - self.log_factor(t.min(axis=1, keepdims=True))
        return shifted

    def slope(self, t: Floats) -> Floats:
        """Return the derivative of the kernel by ``t^2``."""
        return self.slope_of(t)


def distances_in_place(exponents: Floats) -> Floats:
    """Turn ``-t^2 / 2`` into t."""
    exponents *= -2.0
    exponents = np.maximum(exponents, 0.0, out=exponents)
    return np.sqrt(exponents, out=exponents)


@cache
def kernel_named(name: str) -> Kernel:
    """Return the kernel of a name.

    Raises
    ------
    ParameterError
        If there is none.
    """
    FitParams.options()["kernel"].check("kernel", name)
    kernel: Kernel = module_of(__name__, name).KERNEL
    return kernel
