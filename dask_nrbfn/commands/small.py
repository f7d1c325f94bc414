"""Small work: commands that take less time than the start of a cluster run in their own process."""

import math
from collections import Counter
from collections.abc import Mapping

from dask_nrbfn.engine import EngineOptions, describe_engine
from dask_nrbfn.errors import NRBFNError
from dask_nrbfn.fit import stage_costs, with_planned_basis, with_search
from dask_nrbfn.numeric.distances import product_flops
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import Rates, StageCost, expected_s
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.model import Model

# About half of what two cores of 2026 do.
_RATES = Rates(
    moments_flops=3e10,
    solve_flops=2e10,
    activations=2e8,
    roots=1e8,
    column_values=2e8,
    hashed_values=1e8,
    pairs=1e8,
    audited_pairs=1e8,
    updates=5e7,
    measured_values=3e8,
    merged_candidates=1e7,
    selected_rows=1e6,
    routed_distances=3e7,
    weighed_neighbors=5e7,
    read_bytes=1e8,
    scratch_bytes=3e8,
)


def fit_s(
    dataset: Dataset, params: FitParams, tuning: TuneParams | None = None, *, embeds: bool = False
) -> float:
    """Return the seconds that a fit is expected to take on this machine.

    Parameters
    ----------
    dataset : Dataset
    params : FitParams
    tuning : TuneParams, optional
    embeds : bool
        Whether it is an embedding.

    Returns
    -------
    float
        Infinite if the fit cannot start as it is.
    """
    engine = describe_engine(EngineOptions())
    try:
        context = FitContext.resolve(dataset, params, engine, tuning, embeds=embeds)
        costs = stage_costs(with_planned_basis(with_search(context)))
    except NRBFNError:
        return math.inf
    return sum(expected_s(cost, _RATES, engine.n_workers) for cost in costs.values())


def scores_s(model: Model, n_rows: int) -> float:
    """Return the seconds that the scores of rows are expected to take on this machine.

    Parameters
    ----------
    model : Model
    n_rows : int

    Returns
    -------
    float
    """
    return _passes_s(model, n_rows, {})


def update_s(run: Location, n_rows: int, n_judged: int = 0) -> float:
    """Return the seconds that an update of a run is expected to take on this machine.

    Parameters
    ----------
    run : Location
    n_rows : int
        Rows that are added or taken away.
    n_judged : int
        Rows that the new model is evaluated on.

    Returns
    -------
    float
        Infinite if the run has no model, as a branch.
    """
    try:
        model = Model.load(run)
    except NRBFNError:
        return math.inf
    r = model.n_basis
    solved = {"moments_flops": float(n_rows) * r**2, "solve_flops": float(r) ** 3}
    return _passes_s(model, n_rows + n_judged, solved)


def _passes_s(model: Model, n_rows: int, further: Mapping[str, float]) -> float:
    (r, p), q = model.basis.shape, len(model.weights)
    of_pair = product_flops(p, p, p, model.features.exponent)
    work: Counter[str] = Counter(
        {
            "moments_flops": n_rows * r * (of_pair + 2 * q),
            "activations": n_rows * r,
            "read_bytes": 8 * n_rows * model.n_features,
        }
    )
    work.update(further)
    return expected_s(StageCost(held_bytes=0, work=work), _RATES, 1)
