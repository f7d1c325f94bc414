"""Penalties: the quadratic forms of weights that a ridge keeps small."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.choices import PENALTIES
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams

if TYPE_CHECKING:
    # The import loads scipy, which the names of penalties do not need.
    from dask_nrbfn.numeric.radial import RadialFeatures


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeTerms:
    """Returns the arrays of a network from which the terms of its ridges are computed.

    features: the radial basis functions.
    shares: the weight share (r,) of the rows nearest to each basis row.
    locality: the matrix R (r, r) of `LocalitySum`.
    directions: takes the kept basis rows, bool (r,); the eigenfunctions (r', J) of these.
    """

    features: "Callable[[], RadialFeatures]"
    shares: Callable[[], Floats]
    locality: Callable[[], Floats] | None = None
    directions: Callable[[NDArray[np.bool_]], Floats] | None = None


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """The matrix P of a ridge: weights W minimize ``|T - Phi W'|^2 + mu tr(W P W')``.

    Without a matrix or a diagonal P is I.

    matrix: returns P, float64 (r, r), symmetric and positive semidefinite.
    diagonal: returns the diagonal of a diagonal P, float64 (r,). Weights are 0 where it is
        infinite.
    needs: parameters of a fit that the penalty requires, with their values.
    needs_shares: whether the penalty uses the shares of clusters.

    ``mu = alpha trace(gram) r / trace(P)``, so alpha has about the same effect with every P. With I
    it is the lambda of hu-nrbfn.
    """

    matrix: Callable[[RidgeTerms], Floats] | None = None
    diagonal: Callable[[RidgeTerms], Floats] | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    needs_shares: bool = False

    @property
    def n_axes(self) -> int:
        """2 if P is a matrix, 1 if P is a diagonal, 0 if P is I."""
        if self.matrix is not None:
            return 2
        return 1 if self.diagonal is not None else 0

    def of(self, terms: RidgeTerms) -> Floats | None:
        """Return P or its diagonal, float64 (r, r) or (r,); None for I."""
        compute = self.matrix or self.diagonal
        return None if compute is None else compute(terms)

    def unmet(self, params: FitParams) -> list[str]:
        """Return the names of the parameters without the values that the penalty needs."""
        return [name for name, value in self.needs.items() if getattr(params, name) != value]


WEIGHTS_PENALTY = Penalty()
"""``P = I``: the squared norm of the weights, the penalty of hu-nrbfn."""

KERNEL_PENALTY = Penalty(
    matrix=lambda terms: terms.features().between_basis_rows(), needs={"features": "plain"}
)
"""``P = K``, the kernel between the basis rows: the norm of f in the space of the kernel.

This is Nystroem kernel ridge regression, as in Falkon (Rudi, Carratino & Rosasco, *FALKON: An
Optimal Large Scale Kernel Method*, 2017, eq. 8). With all rows as the basis it is kernel ridge
regression, the K-RLSC of Que & Belkin, *Back to the Future: Radial Basis Function Networks
Revisited*, 2016.
"""


def _inverse_shares(terms: RidgeTerms) -> Floats:
    with np.errstate(divide="ignore"):
        return 1.0 / terms.shares()


CLUSTERS_PENALTY = Penalty(
    diagonal=_inverse_shares,
    needs={"features": "plain", "basis": "kmeans"},
    needs_shares=True,
)
"""``P = diag(1 / share)``: the weight of the centre of a large cluster may be large.

The weighted k-means network of Que & Belkin (2016, see `KERNEL_PENALTY`), section 4. With the
shares s of the clusters and ``v_j = w_j s_j`` its ``f(x) = sum_j w_j s_j k(x, c_j)`` is
``sum_j v_j k(x, c_j)``, and its penalty ``sum_j s_j w_j^2`` is ``sum_j v_j^2 / s_j``. The weight of
an empty cluster is 0.
"""


@cache
def penalty_named(name: str) -> Penalty:
    """Return the penalty with a name; raise ParameterError if the name is unknown."""
    FitParams.options()["penalty"].check("penalty", name)
    penalty: Penalty = PENALTIES[name]
    return penalty


def check_penalty(params: FitParams, *, named: str = "penalty") -> None:
    """Check that the parameters have the values that the penalty needs."""
    penalty = penalty_named(params.penalty)
    if unmet := penalty.unmet(params):
        values = vars(params) | ({"basis": "given rows"} if params.basis_is_given else {})
        found = " and ".join(f"`{name}` is {values[name]}" for name in unmet)
        needed = " and ".join(f"`{name}`={penalty.needs[name]}" for name in unmet)
        raise ParameterError(
            f"`{named}` is {params.penalty}, but {found}.",
            f"Give {needed}, or `{named}`=weights.",
        )


class Ridge(NamedTuple):
    """The parameters of a ridge system that are tried on the same sums."""

    penalty: str
    alpha: float
    locality: float = 0.0
    components: int | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """Return the ridge of an entry of a path."""
        return cls(**{name: entry[name] for name in cls._fields})

    @classmethod
    def in_params(cls, params: FitParams) -> Self:
        """Return the ridge of a fit."""
        return cls(**{name: getattr(params, name) for name in cls._fields})

    @property
    def shared(self) -> Self:
        """The ridge without alpha and without the number of eigenfunctions."""
        return self._replace(alpha=0.0, components=None)
