"""New rows of a model: their counts, and the errors of the model on them."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class NewRowSums(RowSum):
    """Sums over new rows, of which `n_basis_rows` are basis rows, weighted by the row weights.

    `errors` is the weight of the rows with a wrong label (1,), or the squared residuals (q,).
    """

    n_rows: int
    n_basis_rows: int
    weight: float
    errors: Floats

    @classmethod
    def from_block(
        cls, scores: Floats, targets: NDArray[Any], weights: Floats, *, n_basis_rows: int
    ) -> Self:
        """Return the sums of a block of class codes (b,) or numbers (b, q)."""
        if targets.ndim == 1:
            errors = weights @ (scores.argmax(axis=1) != targets)[:, None]
        else:
            errors = weights @ (scores - targets) ** 2
        return cls(
            n_rows=len(targets),
            n_basis_rows=n_basis_rows,
            weight=float(weights.sum()),
            errors=errors,
        )

    def error_rate(self) -> float:
        """Return the share of the weight that has a wrong label."""
        return float(self.errors[0] / self.weight)

    def relative_error(self, target_products: Floats) -> float | None:
        """Return the mean squared error over the variance of earlier targets, see `Moments`."""
        variances = target_spread(target_products) / target_products[0, 0]
        varies = variances > 0
        relative = self.errors[varies] / self.weight / variances[varies]
        return float(relative.mean()) if varies.any() else None


def target_spread(target_products: Floats) -> Floats:
    """Return the sums of squared differences of the targets from their means, float64 (q,)."""
    squares, sums = target_products.diagonal()[1:], target_products[0, 1:]
    spread: Floats = np.maximum(squares - sums**2 / target_products[0, 0], 0.0)
    return spread
