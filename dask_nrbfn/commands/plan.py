"""Plan: flops, bytes and seconds of a fit before it begins, at the measured speed of a worker."""

import json
import logging
import math
import time
import timeit
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_nrbfn.engine import Engine, EngineOptions, InlineEngine, connect, describe_engine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.fit import check_fit, planned, stage_costs
from dask_nrbfn.neighbors.exact import nearest_rows
from dask_nrbfn.numeric.device import bytes_of_square
from dask_nrbfn.numeric.moments import MomentSums
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.rows import Rows, dense, is_csr
from dask_nrbfn.numeric.targets import ClassTargets
from dask_nrbfn.numeric.threads import task_threads
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.cells import cells_basis
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.cost import Clock, Rates, StageCost, expected_s
from dask_nrbfn.stages.resolve import planned_cells
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import Location

logger = logging.getLogger(__name__)

# Calls of each measured kernel; its most rows, in a plan and before a tuning; its most basis rows.
_REPEATS = 3
_ROWS, _FEW_ROWS, _MAX_BASIS = 4096, 1024, 1500
_MAX_ELEMENTS = 2**23
# Most compared values: the differences of all pairs of rows take a fraction of a second.
_MAX_COMPARED = 2**32


class PlannedStage(NamedTuple):
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
        The given or the largest possible number of basis rows; with cells, of all cells together.
    n_cells : int
        Cells that have a network each; 1 for one network.
    n_candidates : int or None
        Rows whose neighbours are searched; None: all.
    n_partitions : int
    method : {"exact", "approximate"}
    n_workers, threads, memory_bytes : int
        Number of workers, and the threads and the memory of each.
    rates : Rates
    gpu_bytes_of_square : int
        Bytes of sums and of a solution on a GPU, over the squared number of basis rows.
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
    gpu_bytes_of_square: int

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
    context = planned(context)
    assert context.search is not None
    stages = tuple(
        PlannedStage(name, cost, expected_s(cost, rates, engine.n_workers))
        for name, cost in stage_costs(context).items()
    )
    spec, params = context.spec, context.spec.params
    n_basis, n_cells = context.n_basis, 1
    if params.asks_for_cells:
        n_rows = dataset.of_labelled().n_rows
        n_basis, n_cells = cells_basis(params, n_rows), planned_cells(params, n_rows)
    full = "kernel" in spec.penalties or any(spec.localities)
    return Plan(
        stages,
        n_basis=n_basis,
        n_cells=n_cells,
        **asdict(context.search),
        n_workers=engine.n_workers,
        memory_bytes=engine.memory_bytes,
        rates=rates,
        gpu_bytes_of_square=bytes_of_square(spec.n_sums, full_penalty=full),
    )


def expect_tuning(context: FitContext, time_limit: float | None) -> FitContext:
    """Log the work and the seconds that a tuning needs; return its context with a clock."""
    rates = measure_rates(context, n_rows=min(context.dataset.n_rows, _FEW_ROWS))
    ends = time.monotonic() + (math.inf if time_limit is None else time_limit)
    clock = Clock(ends=ends, rates=rates, n_workers=context.engine.n_workers)
    costs = stage_costs(planned(context)).values()
    n_systems = sum(sum(cost.systems.values()) for cost in costs)
    logger.info(
        "tune: about %.0f s expected: %s systems, %.0f GFLOP, %.1f billion exponentials",
        clock.needed_s(costs),
        f"{n_systems:,.0f}",
        sum(cost.flops for cost in costs) / 1e9,
        sum(cost.exponentials for cost in costs) / 1e9,
    )
    return replace(context, clock=clock)


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

    Rates that no file has are measured on a worker of the scheduler, or else in this process.
    """
    if n_rows is not None and n_rows < 1:
        raise ParameterError(f"`n_rows` is {n_rows}.", "Give a number above 0.")
    rows = dataset if n_rows is None else dataset.with_n_rows(n_rows)
    context = FitContext.resolve(rows, params, InlineEngine(), tuning)
    check_fit(context)
    given = None if rates is None else read_rates(rates)
    runs = options.scheduler or options.scheduler_file
    with connect(options) if runs else nullcontext(describe_engine(options)) as engine:
        given = given or measure_rates(replace(context, engine=engine))
        # After the rates are measured, because the planned GPU need not exist.
        engine.device = options.device
        return plan_fit(rows, params, engine, given, tuning)


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as values that `json.dumps` accepts."""
    counts = ("flops", "exponentials", "read_bytes", "written_bytes")
    return vars(plan) | {
        "predicted_bytes": max(stage.cost.held_bytes for stage in plan.stages),
        "seconds": round(sum(stage.seconds for stage in plan.stages), 2),
        "fits": plan.fits,
        "stages": [
            {"stage": name, "systems": sum(cost.systems.values())}
            | {count: getattr(cost, count) for count in counts}
            | {"bytes": cost.held_bytes, "seconds": round(seconds, 3)}
            for name, cost, seconds in plan.stages
        ],
        "rates": vars(plan.rates),
    }


def read_rates(path: Path) -> Rates:
    """Return the rates in a JSON file: the "rates" of a plan, or an object of their names."""
    names = ", ".join(field.name for field in fields(Rates))
    try:
        found = json.loads(path.read_text())
        rates = Rates(**{name: float(rate) for name, rate in found.get("rates", found).items()})
        if min(vars(rates).values()) > 0:
            return rates
        problem = "a rate is not above 0"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        problem = str(error)
    raise ParameterError(
        f"{path} does not hold numbers above 0 for {names} ({problem}).",
        "Write the file with plan --json on the machine of a worker, or by hand.",
    )


def measure_rates(context: FitContext, *, n_rows: int = _ROWS) -> Rates:
    """Return the rates of a worker of the engine of a fit: those of one thread for each thread."""
    one: Rates = run_task(
        context.engine,
        _measure,
        context.dataset.location,
        context.requested_size or context.dataset.n_rows,
        context.spec.params.k,
        n_rows,
        label="measure speed",
    )
    n_threads = context.engine.threads
    return Rates(
        bytes=one.bytes,
        pairs=n_threads * one.pairs,
        products=n_threads * one.products,
        exponentials=n_threads * one.exponentials,
    )


# Several threads would wait for each other if the machine is busy.
@task_threads(1)
def _measure(location: Location, n_basis: int, n_neighbors: int, most_rows: int) -> Rates:
    """Return the rates of one thread of this process, on at most so many rows of a dataset."""
    dataset = Dataset.open(location)
    chunk = dataset.take(np.arange(min(dataset.chunk_rows, dataset.n_rows)))
    reading_s = _seconds(lambda: dataset.take(np.arange(chunk.shape[0])))
    row_values = max(1, round(dataset.row_values))
    # A value in CSR takes as long as several values of an array.
    n_columns = min(8 * row_values, dataset.n_features)
    compared = math.isqrt(_MAX_COMPARED // n_columns)
    n_rows = max(1, min(2 * most_rows, _MAX_ELEMENTS // row_values, compared))
    rows = chunk[np.arange(n_rows) % chunk.shape[0]].astype(np.float64)
    # Few rows are repeated; this tells them apart.
    values = rows.data if is_csr(rows) else rows
    values /= max(float(np.abs(values).max(initial=0.0)), 1.0)
    values *= 1.0 + 1e-3 * np.random.default_rng(0).standard_normal(values.shape)
    X = dense(rows[: max(1, min(most_rows, _MAX_ELEMENTS // n_columns)), :n_columns])
    n, p = X.shape
    r = min(n_basis, _MAX_BASIS, n)
    basis = X[:r] + 0.5
    features = RadialFeatures.from_basis(basis, float(np.sqrt(p) * X.std() + 1.0))
    Phi, sums = features.activations(X), MomentSums(r, 2)
    T = ClassTargets(2).bordered(np.zeros(n, dtype=np.int64))
    product_s = _seconds(lambda: sums.add(Phi, T))
    exponents_s = _seconds(lambda: row_products(X, basis, out=Phi))
    activations_s = _seconds(lambda: features.activations(X, out=Phi))
    return Rates(
        bytes=chunk.shape[0] * max(1.0, dataset.row_bytes) / reading_s,
        pairs=_pair_rate(rows, min(n_neighbors, rows.shape[0] // 4)),
        products=n * r**2 / product_s,
        exponentials=n * r / max(activations_s - exponents_s, 0.2 * activations_s),
    )


def _pair_rate(X: Rows, k: int) -> float:
    rows = X.astype(np.float32)
    # Without limits, filling the lists takes half of the time for so few rows, but less in a fit.
    within = nearest_rows(rows[:_ROWS], rows, count=k + 1).distances[:, -1]
    all_s = _seconds(lambda: nearest_rows(rows, rows, count=k + 1, within=within))
    return float(rows.shape[0] ** 2 / all_s)


def _seconds(kernel: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few calls, after one that warms up."""
    kernel()
    return min(timeit.repeat(kernel, number=1, repeat=_REPEATS))
