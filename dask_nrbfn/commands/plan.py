"""Plan: flops, bytes and seconds of a fit, and the seconds of small work, before it begins."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from dask_nrbfn.commands.calibrate import measure_rates
from dask_nrbfn.commands.version import read_model
from dask_nrbfn.engine import Engine, EngineOptions, InlineEngine, connect, describe_engine
from dask_nrbfn.engine.threads import threads_of_workers
from dask_nrbfn.errors import MissingDataError, NRBFNError, ParameterError
from dask_nrbfn.fit import check_fit, stage_costs, with_planned_basis, with_search
from dask_nrbfn.numeric.distances import product_flops
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.cells import cells_basis
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import Rates, StageCost, expected_s
from dask_nrbfn.stages.trials import Trials, planned_cells
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import latest_place, n_rows_held

# About half of the speed of two cores of 2026. Small work, which is expected to take less time than
# the start of a cluster, runs in the process of the command.
_SLOW_RATES = Rates(
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


@dataclass(frozen=True)
class PlannedStage:
    """One line of a plan: a stage, its cost, and the seconds it is expected to take."""

    name: str
    cost: StageCost
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The expected cost of a fit.

    Attributes
    ----------
    stages : tuple of PlannedStage
    n_basis : int
        The given number of basis rows, or the largest number that the fit may find; with cells, the
        sum over all cells.
    n_cells : int
        Cells that have a network each; 1 for one network.
    n_candidates : int or None
        Rows whose neighbours are searched; None: all.
    n_partitions : int
    method : {"exact", "approximate"}
    memory_bytes : int
        Memory of a worker.
    n_workers, threads : int
    rates : Rates
    """

    stages: tuple[PlannedStage, ...]
    n_basis: int
    n_cells: int
    n_candidates: int | None
    n_partitions: int
    method: str
    memory_bytes: int
    n_workers: int
    threads: int
    rates: Rates

    @property
    def fits(self) -> bool:
        """Whether every stage fits the memory of a worker."""
        return all(stage.cost.held_bytes <= self.memory_bytes for stage in self.stages)


def plan_fit(
    dataset: Dataset,
    params: FitParams,
    engine: Engine,
    rates: Rates,
    tuning: TuneParams | None = None,
) -> Plan:
    """Return the expected cost of a fit or a tuning on `engine`; runs nothing on it."""
    context = FitContext.resolve(dataset, params, engine, tuning)
    check_fit(context)
    context = with_planned_basis(with_search(context))
    search = context.search
    assert search is not None
    costs = stage_costs(context)
    stages = tuple(
        PlannedStage(name, cost, expected_s(cost, rates, engine.n_workers))
        for name, cost in costs.items()
    )
    n_rows, n_cells, n_basis = dataset.of_labelled().n_rows, 1, context.n_basis
    if Trials(context.params, None).is_of_cells:
        n_cells, n_basis = (
            planned_cells(context.params, n_rows),
            cells_basis(context.params, n_rows),
        )
    return Plan(
        stages,
        n_basis,
        n_cells,
        search.n_candidates,
        search.n_partitions,
        search.method,
        engine.memory_bytes,
        engine.n_workers,
        engine.threads,
        rates,
    )


def plan_on_options(
    dataset: Dataset,
    params: FitParams,
    options: EngineOptions,
    *,
    tuning: TuneParams | None = None,
    rates: Path | None = None,
    n_rows: int | None = None,
) -> Plan:
    """Return the plan of a fit or a tuning on the engine of `options`, without starting the engine.

    The rates of a worker, unless a file of JSON has them, are measured: on a worker of the
    scheduler, or in this process if there is none. With more threads than cores, rates are assumed
    to grow with the threads.
    """
    if n_rows is not None and n_rows < 1:
        raise ParameterError(f"`n_rows` is {n_rows}.", "Give a number above 0.")
    planned = dataset if n_rows is None else dataset.with_n_rows(n_rows)
    context = FitContext.resolve(planned, params, InlineEngine(), tuning)
    check_fit(context)
    if n_rows is None or rates is None:
        dataset.check_stored()
    given = None if rates is None else read_rates(rates)
    if options.scheduler or options.scheduler_file:
        with connect(options) as engine:
            given = given or measure_rates(FitContext.resolve(planned, params, engine))
            return plan_fit(planned, params, engine, given, tuning)
    engine = describe_engine(options)
    if given is None:
        cores = min(engine.threads, threads_of_workers(1))
        with threadpool_limits(cores):
            measured = measure_rates(context)
        given = _scale_rates(measured, engine.threads / cores)
    return plan_fit(planned, params, engine, given, tuning)


_PLANNED = (
    *("n_basis", "n_cells", "n_candidates", "n_partitions", "method", "n_workers", "threads"),
    "memory_bytes",
)


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as values that `json.dumps` accepts."""
    return {
        **{name: getattr(plan, name) for name in _PLANNED},
        "predicted_bytes": max(stage.cost.held_bytes for stage in plan.stages),
        "seconds": round(sum(stage.seconds for stage in plan.stages), 2),
        "fits": plan.fits,
        "stages": [
            {
                "stage": stage.name,
                "flops": stage.cost.flops,
                "read_bytes": stage.cost.read_bytes,
                "written_bytes": stage.cost.written_bytes,
                "bytes": stage.cost.held_bytes,
                "seconds": round(stage.seconds, 3),
            }
            for stage in plan.stages
        ],
        "rates": asdict(plan.rates),
    }


_RATES_REMEDY = "Write the file with plan --json on the machine of a worker, or by hand."


def read_rates(path: Path) -> Rates:
    """Return the rates in a JSON file: the "rates" of a plan, or an object of their names."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise MissingDataError(f"{path} does not exist.", _RATES_REMEDY) from error
    except ValueError as error:
        raise ParameterError(f"{path} is not JSON ({error}).", _RATES_REMEDY) from error
    if isinstance(found, dict):
        found = found.get("rates", found)
    names = [field.name for field in fields(Rates)]
    if not isinstance(found, dict) or set(found) != set(names):
        raise ParameterError(
            f"{path} has missing or unknown rates.", f"Give exactly the rates {', '.join(names)}."
        )
    for name, value in found.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise ParameterError(f"{name} in {path} is {value!r}.", "Give a number above 0.")
    return Rates(**found)


def _scale_rates(rates: Rates, factor: float) -> Rates:
    """Return the rates of a worker with `factor` times the threads and the same storage."""
    storage = {"read_bytes", "scratch_bytes"}
    changed = {
        field.name: factor * getattr(rates, field.name)
        for field in fields(Rates)
        if field.name not in storage
    }
    return replace(rates, **changed)


def fit_s(
    dataset: Dataset, params: FitParams, tuning: TuneParams | None = None, *, embeds: bool = False
) -> float:
    """Return the seconds that a fit should take on this machine; infinite if it cannot start."""
    engine = describe_engine(EngineOptions())
    try:
        context = FitContext.resolve(dataset, params, engine, tuning, embeds=embeds)
        costs = stage_costs(with_planned_basis(with_search(context)))
    except NRBFNError:
        return math.inf
    return sum(expected_s(cost, _SLOW_RATES, engine.n_workers) for cost in costs.values())


def scores_s(model: Model, n_rows: int) -> float:
    """Return the seconds that the scores of rows are expected to take on this machine."""
    return _passes_s(model, n_rows, {})


def update_s(run: Location, n_rows: int, n_judged: int = 0) -> float:
    """Return the seconds that an update of a run is expected to take on this machine.

    Infinite if the run has no model. The new model is evaluated on `n_judged` rows.
    """
    try:
        opened = Run.open(run)
        model = read_model(opened, latest_place(opened.attributes))
    except NRBFNError:
        return math.inf
    r = model.n_active
    solves = float(model.n_cells) * r**3
    solved = {"moments_flops": float(n_rows) * r**2, "solve_flops": solves}
    return _passes_s(model, n_rows + n_judged, solved)


def refresh_s(run: Location, datasets: Sequence[Dataset], n_judged: int = 0) -> float:
    """Return the seconds that a refresh of a run is expected to take on this machine.

    Infinite if the rows of the fit cannot be opened, or the run has no model.

    datasets: rows to fit; empty: all rows that the run holds.
    n_judged: rows that the new model is evaluated on.
    """
    try:
        old, model = Run.open(run), Model.load(run)
        if not datasets and not old.attributes["members"]:
            return math.inf
        like = datasets[0] if datasets else Dataset.open(old.attributes["members"][0]["dataset"])
        held = sum(each.n_rows for each in datasets) or n_rows_held(old.attributes)
    except NRBFNError:
        return math.inf
    fitted = fit_s(like.with_n_rows(held), old.params, old.tuning, embeds=old.embeds)
    return fitted + scores_s(model, n_judged)


def _passes_s(model: Model, n_rows: int, further: Mapping[str, float]) -> float:
    r, p, q = model.n_active, model.basis.shape[1], len(model.weights)
    of_pair = product_flops(p, p, p, l1=model.l1)
    work: Counter[str] = Counter(
        {
            "moments_flops": n_rows * r * (of_pair + 2 * q),
            "activations": n_rows * r,
            "read_bytes": 8 * n_rows * model.n_features,
        }
    )
    work.update(further)
    return expected_s(StageCost(held_bytes=0, work=work), _SLOW_RATES, 1)
