"""Plan: flops, bytes and seconds of a fit before it begins."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from dask_nrbfn.commands.calibrate import measure_rates
from dask_nrbfn.engine import Engine, EngineOptions, InlineEngine, connect, describe_engine
from dask_nrbfn.engine.threads import threads_of_workers
from dask_nrbfn.errors import MissingDataError, ParameterError
from dask_nrbfn.fit import check_fit, stage_costs, with_planned_basis, with_search
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.cells import cells_basis
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import Rates, StageCost, expected_s
from dask_nrbfn.stages.trials import Trials, planned_cells
from dask_nrbfn.storage.dataset import Dataset


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
    n_workers, threads : int
    memory_bytes : int
        Memory of a worker.
    rates : Rates
    """

    stages: tuple[PlannedStage, ...]
    n_basis: int
    n_cells: int
    n_candidates: int | None
    n_partitions: int
    method: str
    n_workers: int
    threads: int
    memory_bytes: int
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
    params, n_rows = context.params, dataset.of_labelled().n_rows
    of_cells = Trials(params, None).is_of_cells
    return Plan(
        stages,
        n_basis=cells_basis(params, n_rows) if of_cells else context.n_basis,
        n_cells=planned_cells(params, n_rows) if of_cells else 1,
        n_candidates=search.n_candidates,
        n_partitions=search.n_partitions,
        method=search.method,
        n_workers=engine.n_workers,
        threads=engine.threads,
        memory_bytes=engine.memory_bytes,
        rates=rates,
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


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as values that `json.dumps` accepts."""
    return vars(plan) | {
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
        "rates": vars(plan.rates),
    }


def read_rates(path: Path) -> Rates:
    """Return the rates in a JSON file: the "rates" of a plan, or an object of their names."""
    remedy = "Write the file with plan --json on the machine of a worker, or by hand."
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise MissingDataError(f"{path} does not exist.", remedy) from error
    except ValueError as error:
        raise ParameterError(f"{path} is not JSON ({error}).", remedy) from error
    if isinstance(found, dict):
        found = found.get("rates", found)
    names = [field.name for field in fields(Rates)]
    # A bool is an int.
    if (
        not isinstance(found, dict)
        or set(found) != set(names)
        or not all(type(value) in (int, float) and value > 0 for value in found.values())
    ):
        raise ParameterError(
            f"{path} holds {found!r}, but numbers above 0 for {', '.join(names)} are needed.",
            remedy,
        )
    return Rates(**found)


def _scale_rates(rates: Rates, factor: float) -> Rates:
    """Return the rates of a worker with `factor` times the threads and the same storage."""
    scaled = {name: factor * rate for name, rate in vars(rates).items()}
    return Rates(**scaled | {"bytes": rates.bytes})
