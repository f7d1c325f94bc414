"""Stage "search": width, features, kernel and basis rule, tried on a small basis."""

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.eigenfunctions import eigenfunctions_bytes, eigenfunctions_flops
from dask_nrbfn.numeric.folds import places_among
from dask_nrbfn.numeric.held_out import HeldOutSums, ResidualSums
from dask_nrbfn.numeric.ridge import components_bytes
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.bases import source_of
from dask_nrbfn.stages.components import most_components
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts, run_tasks
from dask_nrbfn.stages.path import beside_bytes
from dask_nrbfn.stages.pool import pool_bytes
from dask_nrbfn.stages.sample import ALL, Sample, write_rows
from dask_nrbfn.stages.scaling import read_scaling
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import (
    Ridge,
    candidates,
    ridges,
    search_basis_size,
    search_rows,
)
from dask_nrbfn.stages.validation import best_solved, describe_path
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SearchRecord:
    """How the combinations did on the sample.

    Attributes
    ----------
    tried : list of dict
        Every combination with its best penalty and alpha, error and log loss.
    chosen : dict
        The best combination.
    n_rows, n_basis : int
        Rows of the sample and of its basis.
    """

    tried: list[dict[str, Any]]
    chosen: dict[str, Any]
    n_rows: int
    n_basis: int


def _compute(job: StageJob) -> SearchRecord:
    """Try all combinations on a sample; return how they did and the best."""
    run, dataset, engine = job.run, job.dataset, job.engine
    assert run.tuning is not None
    tried = candidates(run.params, run.tuning)
    arguments = [(run.location, dataset.location)]
    (sample,) = run_tasks(engine, _write_sample, arguments, label="sample")
    units = [(asdict(candidate),) for candidate in tried]
    records = run_parts(run, dataset, engine, stage="search", task=_try, units=units)
    compared = ResidualSums.compared if dataset.of_numbers else HeldOutSums.compared
    solved = [record for record in records if record[compared[0]] is not None]
    best = min(solved, key=lambda record: record[compared[0]], default=None)
    chosen = asdict(tried[0]) if best is None else {name: best[name] for name in asdict(tried[0])}
    logger.info("search: %s", ", ".join(f"{name} {value}" for name, value in chosen.items()))
    kept = (*asdict(tried[0]), *Ridge._fields, *compared)
    # Parts that a version before has left name no penalty.
    tried_and_judged = [{name: record.get(name) for name in kept} for record in records]
    return SearchRecord(tried_and_judged, chosen, **sample)


def _write_sample(run_location: Location, dataset_location: Location) -> dict[str, Any]:
    """Store the rows on which combinations are tried, and a small basis for each rule."""
    run, dataset = Run.open(run_location), Dataset.open(dataset_location)
    params, tuning = run.params, run.tuning
    assert tuning is not None
    group = run.group("search")
    labelled = dataset.of_labelled()
    drawn = write_rows(
        group, "", labelled, params, search_rows(labelled.n_rows, dataset.n_features, tuning)
    )
    if dataset.n_unlabelled:
        n_all = search_rows(dataset.n_rows, dataset.n_features, tuning)
        write_rows(group, ALL, dataset, params, n_all)
    size, source = search_basis_size(dataset, params, tuning), source_of(params)
    rules = {candidate.basis_rule for candidate in candidates(params, tuning)}
    for rule in sorted(rules):
        basis = source.choose(run, dataset, size, rule)
        write_array(group, f"basis_{rule}", basis.values, "basis", "feature")
        numbers = basis.rows
        if dataset.n_unlabelled:
            numbers = places_among(dataset.labelled_rows(), numbers)
        write_array(group, f"basis_rows_{rule}", numbers, "basis")
    return {"n_rows": len(drawn), "n_basis": len(basis.rows)}


def _try(run: Run, dataset: Dataset, candidate: dict[str, Any]) -> PartResult:
    """Fit and judge one combination, without locality: that is summed for the whole basis."""
    assert run.tuning is not None
    tuning = replace(run.tuning, localities=(0.0,))
    params = replace(run.params, **candidate)
    sample = Sample.read(
        run, "search", params.basis_rule, n_folds=tuning.folds, n_targets=dataset.n_targets
    )
    features, shares = sample.features(
        read_scaling(run),
        kernel=params.kernel,
        width_factor=params.width_factor,
        normalized=params.normalized,
    )
    tried = ridges(params, tuning)
    sums = sample.judged(features, shares, tried, n_components=most_components(run))
    path = describe_path(sums, tried)
    return PartResult({**candidate, **best_solved(path, sums.compared[0])})


def _cost(s: FitSizes) -> StageCost:
    """Every combination is one task: two passes over the sample, and all penalties of all folds.

    A penalty that is a matrix is held whole and without the basis rows of a fold.
    """
    # One of the rows with labels, and where others have none one of all rows.
    n_samples = 2 if s.n_labelled else 1
    sample_bytes = n_samples * s.n_sampled * (s.p * s.itemsize + 3 * 8)
    products = s.n_sampled * (s.r_tried**2 + 6 * s.r_tried * s.p)
    solves = s.n_search_folds * s.n_searched_ridges * s.r_tried**3 / 3
    spans = 0
    if s.n_components:
        solves += s.n_search_folds * eigenfunctions_flops(s.r_tried)
        spans = eigenfunctions_bytes(s.r_tried, s.p)
        spans += components_bytes(s.r_tried, min(s.n_components, s.r_tried))
    rows = block_rows(s.r_tried)
    return StageCost(
        flops=s.n_tried * (products + solves),
        read_bytes=s.rows_bytes + s.n_tried * sample_bytes,
        written_bytes=sample_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + max(2 * sample_bytes, 3 * 8 * s.n_basis_sample * s.p)
        + pool_bytes(s.n, s.K, s.r_tried, s.n_basis_sample)
        + spans
        + beside_bytes(s.r_tried, s.n_searched_ridges, spans=bool(s.n_components))
        + 2 * 8 * s.n_labelled
        + 8
        * (
            (2 * s.n_search_folds + 4 + s.penalty_axes) * s.r_tried**2
            + rows * (s.r_tried + 6 * s.p)
            + 2 * s.n_search_folds * s.n_searched_ridges * s.q * s.r_tried
            + 3 * rows * s.n_searched_ridges * s.q
            + 3 * s.r_tried * s.p
        ),
        n_tasks=s.n_tried,
        work={
            "moments_flops": s.n_tried * products,
            "activations": 2 * s.n_tried * s.n_sampled * s.r_tried,
            "solve_flops": s.n_tried * solves,
        },
        alone={"read_bytes": s.rows_bytes, "selected_rows": s.n},
    )


def _wanted(params: FitParams, tuning: TuneParams | None, numbers: bool) -> bool:
    return tuning is not None and len(candidates(params, tuning)) > 1


SEARCH = Stage(
    name="search",
    record=SearchRecord,
    compute=_compute,
    cost=_cost,
    wanted=_wanted,
    remedy=lambda params: "Lower `search_rows` or `search_basis`",
)
