"""``exp(-t^2 / 2)``, the kernel of hu-nrbfn."""

from collections.abc import Callable

import numpy as np

from dask_nrbfn.numeric.kernels import Floats, Kernel


class _Gaussian(Kernel):
    width_factors = (0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0)

    def logarithms_in_place(self, exponents: Floats) -> Floats:
        return exponents

    def shifted_logarithms(
        self, differences: Callable[[], Floats], gaps: Callable[[], tuple[Floats, Floats]]
    ) -> Floats:
        return differences()

    def slope(self, t: Floats) -> Floats:
        return np.asarray(-0.5 * np.exp(-0.5 * t**2))


KERNEL = _Gaussian()
