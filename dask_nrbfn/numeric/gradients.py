"""Feature weights from the average gradient outer product of a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.cityblock import signed_sums
from dask_nrbfn.numeric.device import beside, to_host
from dask_nrbfn.numeric.products import over_strips
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.schema import Schema, source_columns
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# Added to weights of mean 1, so that a feature without effect can gain weight in a later round.
LEAST_WEIGHT = 1e-6


@dataclass(frozen=True, eq=False)
class GradientSums(RowSum):
    """Sums over rows of the squared derivatives of a network's scores by its scaled features.

    squares (p,): ``sum_i w_i sum_c (d f_c / d x_l)^2`` at the rows x_i with weights w_i.

    The diagonal of the average gradient outer product of Radhakrishnan, Beaglehole, Pandit and
    Belkin, "Mechanism for feature learning in neural networks and backpropagation-free machine
    learning models" (Science, 2024), times the total weight of the rows.
    """

    squares: Floats

    @classmethod
    def zeros(cls, n_features: int) -> Self:
        """Return the sums of no rows."""
        return cls(np.zeros(n_features))

    @classmethod
    def from_block(
        cls,
        X: NDArray[Any],
        features: RadialFeatures,
        weights: Floats,
        *,
        row_weights: Floats | None = None,
    ) -> Self:
        """Return the sums of one block of unscaled rows, for plain features.

        ``grad f_c = sum_j w_cj s_j (x - g_j)`` with s_j the `slopes`. Takes ``2 (q + 1) b r p``
        flops and ``16 b r + 16 b p`` bytes. Of the kernel of l1 distances it is
        ``-sum_j w_cj k_j sign(x_l - g_jl) / sigma``.
        """
        if features.l1:
            return cls(_l1_squares(X, features, weights, row_weights))
        basis = features.basis
        X = beside(X, basis)
        weights = beside(weights, basis)
        row_weights = beside(row_weights, basis)
        slopes = features.slopes(X)
        rows = X if features.scaling is None else features.scaling.apply(X)
        squares = features.xp.zeros(basis.shape[1])
        for of_target in weights:
            products = slopes * of_target
            gradient = rows * products.sum(axis=1, keepdims=True) - products @ basis
            np.square(gradient, out=gradient)
            if row_weights is None:
                squares += gradient.sum(axis=0)
            else:
                squares += row_weights @ gradient
        return cls(to_host(squares))


def _l1_squares(
    X: NDArray[Any],
    features: RadialFeatures,
    weights: Floats,
    row_weights: Floats | None,
) -> Floats:
    """Return the sums of squared derivatives of a kernel of l1 distances, float64 (p,)."""
    basis = np.array(features.basis)
    slopes = features.activations(X)
    slopes *= -1.0 / features.width
    rows = np.array(X if features.scaling is None else features.scaling.apply(X), dtype=np.float64)

    def squares_of(strip: slice) -> Floats:
        factors = slopes[strip] * weights[:, None, :]
        gradients = signed_sums(rows[strip], basis, factors)
        squares: Floats = np.square(gradients, out=gradients).sum(axis=0)
        if row_weights is None:
            return np.asarray(squares.sum(axis=0))
        return row_weights[strip] @ squares

    return sum(over_strips(squares_of, slopes), np.zeros(basis.shape[1]))


def feature_weights(squares: Floats, root: Floats) -> Floats:
    """Return the weights of features (p,), with a mean of 1 over features with an effect.

    squares (p,): squared derivatives by features that were multiplied by `root`, the square roots
        of the weights so far.
    """
    by_column = squares * root**2
    used = by_column[by_column > 0]
    weights = by_column / used.mean() if len(used) else np.ones(len(root))
    return weights + LEAST_WEIGHT


def heaviest_columns(
    weights: Floats,
    scaling: Scaling,
    schema: Schema | None,
    names: Sequence[str] | None,
    n_columns: int,
) -> dict[str, float]:
    """Return the names and weights of the heaviest columns of the source, the heaviest first.

    A weight is the sum of the weights of the column's features (p,) times their variances, which
    are 1 but for categories: their indicators have one scale, and rare ones vary little.
    """
    weights = weights.copy()
    for start, stop in () if schema is None else schema.groups:
        share = scaling.shift[start:stop]
        weights[start:stop] *= share * (1 - share) / scaling.scale[start:stop] ** 2
    columns = source_columns(schema, names, len(weights))
    sums = [(name, float(weights[span].sum())) for name, span in columns]
    return dict(sorted(sums, key=lambda each: -each[1])[:n_columns])
