"""The ridge systems of all penalties and alphas that are tried on the same sums."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.device import to_host
from dask_nrbfn.numeric.eigenfunctions import eigenfunctions
from dask_nrbfn.numeric.held_out import FoldWeights
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import Each, RidgeSystem, solve_components
from dask_nrbfn.numeric.types import Floats

# Up to this alpha the mean of the weights for a target of 1 is that without a penalty.
_LEAST_ALPHA = 1e-6


def solve_all(
    system: RidgeSystem,
    kept: NDArray[np.bool_],
    *,
    tried: Sequence[Ridge],
    terms: RidgeTerms,
    each: Each = map,
    estimated: bool = True,
) -> tuple[FoldWeights, list[float | None]]:
    """Return the weights of all penalties, and the reciprocal conditions of their systems.

    Ridges with the same `Ridge.shared` are consecutive. Weights of basis rows that are not `kept`
    are 0. Singular systems have NaN and None.
    """
    # Normalized activations sum to 1, so these are their products with a target of 1.
    sums = np.where(kept, to_host(system.gram.sum(axis=1)), 0.0)
    cross = np.vstack([system.cross, sums])
    weights = np.zeros((len(tried), len(cross), len(kept)))
    conditions: list[float | None] = [None] * len(tried)
    every = range(len(tried)) if kept.any() else ()
    for shared, group in groupby(every, key=lambda place: tried[place].shared):
        own, places = replace(system, cross=cross).with_ridge(shared, terms).keep(kept), list(group)
        alphas = [tried[place].alpha for place in places]
        sizes = [size for place in places if (size := tried[place].components) is not None]
        if sizes:
            assert terms.directions is not None
            spans = terms.directions(kept)
            path = solve_components(
                own.gram, own.cross, spans, sizes=sizes, alphas=alphas, each=each
            )
        else:
            alone = each is map and not kept.all()
            path = own.path(alphas, each=each, estimated=estimated, in_place=alone)
        for place, solution in zip(places, path, strict=True):
            if solution is None:
                weights[place] = np.nan
            else:
                weights[place][:, kept] = solution.weights
                conditions[place] = solution.reciprocal_condition
    weights, ones = np.ascontiguousarray(weights[:, :-1]), weights[:, -1]
    if kept.all() or not kept.any():
        ones = np.ones_like(ones)
    else:
        del own
        without = replace(system.keep(kept), cross=sums[kept][None])
        ones[:, kept] = _as_shrunk(ones[:, kept], tried, without)
    return FoldWeights(weights, system.intercept(weights), ones, kept), conditions


def _as_shrunk(ones: Floats, tried: Sequence[Ridge], system: RidgeSystem) -> Floats:
    """Return weights (A, r') for a target of 1, scaled to the mean that they have without penalty.

    A penalty shrinks the scores of the network too. Only what the mean without penalty lacks to 1
    is due to the basis rows that are left out. The cross products of the system are those with a
    target of 1.
    """
    (sums,) = system.cross
    means: Floats = ones @ sums
    whole = means.max(where=means > 0, initial=0.0)
    if min(ridge.alpha for ridge in tried) > _LEAST_ALPHA:
        (solution,) = system.path([_LEAST_ALPHA], estimated=False, in_place=True)
        whole = whole if solution is None else float(solution.weights[0] @ sums)
    factors: Floats = np.ones_like(means)
    np.divide(whole, means, out=factors, where=means > 0)
    return np.multiply(ones, factors[:, None])


def directions_among(
    features: RadialFeatures, kept: NDArray[np.bool_], n_components: int
) -> Floats:
    """Return eigenfunctions (r', J) of the kept basis rows, independent of held-out rows."""
    return eigenfunctions(features.at(kept), n_components).coefficients
