"""Kernels: functions of the distance between two rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams

# The square of a larger t overflows, and the logarithm of an infinite t is undefined.
FARTHEST = 1e150


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A positive function of ``t = d / sigma``, 1 at 0, that falls as the distance d grows.

    The kernel is ``factor(t) exp(-rate t)``; without a rate the Gaussian ``exp(-t^2 / 2)``.

    slope: returns the derivative of the kernel by ``t^2``; None if distances are not Euclidean.
    log_factor: returns the logarithm of the factor, which grows slower than t; None for 1.
    width_factors: those that a search tries.

    Methods use the return values of numpy functions, even of those that work in place: the ONNX
    export calls the same methods with tensors, which cannot change.
    """

    slope: Callable[[Floats], Floats] | None
    l1: bool = False
    rate: float | None = None
    log_factor: Callable[[Floats], Floats] | None = None
    width_factors: tuple[float, ...] = (0.15, 0.25, 0.4, 0.6, 1.0, 1.6, 2.5)

    def logarithms_in_place(self, exponents: Floats) -> Floats:
        """Turn ``-t^2 / 2`` into the logarithm of the kernel; rounding may leave it above 0."""
        if self.rate is None:
            return exponents
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
        """Return logarithms (b, r) minus the largest of each row, for rows far from the basis.

        differences: returns ``(e^2 - t^2) / 2`` with e the minimum of t in each row.
        gaps: returns ``e - t`` and t, which is at most `FARTHEST`.
        """
        if self.rate is None:
            return differences()
        shifted, t = gaps()
        shifted *= self.rate
        if self.log_factor is not None:
            shifted += self.log_factor(t) - self.log_factor(t.min(axis=1, keepdims=True))
        return shifted


def distances_in_place(exponents: Floats) -> Floats:
    """Turn ``-t^2 / 2`` into t."""
    exponents *= -2.0
    exponents = np.maximum(exponents, 0.0, out=exponents)
    return np.sqrt(exponents, out=exponents)


GAUSSIAN = Kernel(
    width_factors=(0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0),
    slope=lambda t: -0.5 * np.exp(-0.5 * t**2),
)
"""``exp(-t^2 / 2)``, the kernel of hu-nrbfn."""

LAPLACIAN = Kernel(
    width_factors=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    rate=1.0,
    slope=lambda t: -np.exp(-t) / (2 * t),
)
"""``exp(-t)``; not smooth where the distance is 0, where its slope is infinite."""

LAPLACE_L1 = Kernel(
    width_factors=(0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 12.8), rate=1.0, l1=True, slope=None
)
"""``exp(-sum_l |x_l - g_l| / sigma)``, a product of functions of one column each.

It sees columns one at a time, as decision trees do. l_{p,q} with p = q = 1 of Beaglehole,
Holzmueller, Radhakrishnan and Belkin, "xRFM: Accurate, scalable, and interpretable feature learning
models for tabular data" (2025).
"""

_RATE32 = float(np.sqrt(3))
_RATE52 = float(np.sqrt(5))

MATERN32 = Kernel(
    rate=_RATE32,
    slope=lambda t: -1.5 * np.exp(-_RATE32 * t),
    log_factor=lambda t: np.log1p(_RATE32 * t),
)
"""The Matern kernel of smoothness 3/2, ``(1 + a) exp(-a)`` with ``a = sqrt(3) t``."""


def _log_factor52(t: Floats) -> Floats:
    a = _RATE52 * t
    # The square of a far row's t overflows.
    logarithm: Floats = np.log1p(a) + np.log1p(a * (a / (1 + a)) / 3)
    return logarithm


MATERN52 = Kernel(
    rate=_RATE52,
    slope=lambda t: -5 / 6 * (1 + _RATE52 * t) * np.exp(-_RATE52 * t),
    log_factor=_log_factor52,
)
"""The Matern kernel of smoothness 5/2, ``(1 + a + a^2 / 3) exp(-a)`` with ``a = sqrt(5) t``."""


@cache
def kernel_named(name: str) -> Kernel:
    """Return the kernel with a name; raise ParameterError if the name is unknown."""
    FitParams.options()["kernel"].check("kernel", name)
    kernel: Kernel = KERNELS[name]
    return kernel
