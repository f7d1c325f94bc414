"""The ridge systems of all penalties and alphas that are tried on the same sums."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.eigenfunctions import eigenfunctions
from dask_nrbfn.numeric.penalties import Ridge as Ridge
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import Each, RidgeSystem, solve_components
from dask_nrbfn.numeric.types import Floats


class PathWeights(NamedTuple):
    """The networks of all penalties and alphas, in the order of `ridges`.

    Attributes
    ----------
    weights : float64 (A, q, r)
        NaN where a system is singular.
    intercepts : float64 (A, q)
        Intercepts of targets minus their origin.
    """

    weights: Floats
    intercepts: Floats


Penalize = Callable[[RidgeSystem, Ridge], RidgeSystem]
DirectionsOf = Callable[[NDArray[np.bool_]], Floats]


class EachOf(Protocol):
    """A function that returns the `Each` for the systems of a basis of some size."""

    def __call__(self, n_basis: int, /, *, spans: bool) -> Each: ...  # noqa: D102


def _one_by_one(n_basis: int, /, *, spans: bool) -> Each:
    return map


def solve_all(
    system: RidgeSystem,
    kept: NDArray[np.bool_],
    *,
    tried: Sequence[Ridge],
    penalize: Penalize,
    directions_of: DirectionsOf | None = None,
    each_of: EachOf = _one_by_one,
    estimated: bool = True,
) -> tuple[PathWeights, list[float | None]]:
    """Return the weights of all penalties, and the reciprocal conditions of their systems.

    Parameters
    ----------
    system : RidgeSystem
    kept : bool (r,)
    tried : sequence of Ridge
        Ridges with the same `Ridge.shared` are consecutive.
    penalize : callable
        Takes a system and a ridge, returns the system with the penalty of the ridge.
    directions_of : callable, optional
        For eigenfunctions: takes `kept`, returns vectors whose span contains the weights of
        these basis rows, float64 (r', J).
    each_of : callable
        Takes the size of the basis and whether weights are in spans, returns the `Each` that solves
        the systems of one penalty.
    estimated : bool
        See `solve_path`.

    Returns
    -------
    weights : PathWeights
    conditions : list of float or None
        Reciprocal conditions.

    Notes
    -----
    Weights of basis rows that are not `kept` are 0, as if the basis did not contain these rows.
    But normalized activations are divided by their sum over the whole basis. Singular systems
    have NaN and None.
    """
    weights = np.zeros((len(tried), len(system.cross), len(kept)))
    conditions: list[float | None] = [None] * len(tried)
    every = range(len(tried)) if kept.any() else ()
    for shared, group in groupby(every, key=lambda place: tried[place].shared):
        own, places = penalize(system, shared).keep(kept), list(group)
        alphas = [tried[place].alpha for place in places]
        sizes = [size for place in places if (size := tried[place].components) is not None]
        if directions_of and sizes:
            spans = directions_of(kept)
            each = each_of(len(kept), spans=True)
            path = solve_components(
                own.gram, own.cross, spans, sizes=sizes, alphas=alphas, each=each
            )
        else:
            path = own.solve_all(alphas, each=each_of(len(kept), spans=False), estimated=estimated)
        for place, solution in zip(places, path, strict=True):
            if solution is None:
                weights[place] = np.nan
            else:
                weights[place][:, kept] = solution.weights
                conditions[place] = solution.reciprocal_condition
    return PathWeights(weights, system.intercept(weights)), conditions


def directions_among(
    features: RadialFeatures, kept: NDArray[np.bool_], n_components: int
) -> Floats:
    """Return coefficients of the eigenfunctions of the kept basis rows alone.

    The eigenfunctions are those of a network without the other basis rows, so they do not depend on
    held-out rows.

    Parameters
    ----------
    features : RadialFeatures
    kept : bool (r,)
    n_components : int
        J.

    Returns
    -------
    float64 (r', J)
    """
    return eigenfunctions(features.at(kept), n_components).coefficients
