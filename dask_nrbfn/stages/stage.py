"""The `Stage` interface, its costs, the rates of a worker and the job object of a stage."""

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Generic, TypeVar

from dask_nrbfn.engine import Engine
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """The expected cost of one stage.

    flops: floating-point operations of the products and factorizations of all tasks.
    read_bytes, written_bytes: bytes that all tasks read and write.
    held_bytes: peak memory of one worker, including its process.
    n_tasks: tasks that share `work` and can run at the same time.
    work: amounts of work of all tasks by the name of their rate, see `Rates`.
    alone: amounts of work of the tasks that run alone.
    fixed_s: seconds of every worker that do not depend on the rates.
    """

    flops: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    held_bytes: int
    n_tasks: int = 1
    work: Mapping[str, float] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)
    fixed_s: float = 0.0


@dataclass(frozen=True, eq=False)
class StageJob:
    """The input of a stage whose earlier stages are finished.

    largest_basis: maximum number of basis rows that the workers' memory allows in every stage.
    validation: validation rows that are used instead of folds.
    """

    run: Run
    dataset: Dataset
    engine: Engine
    largest_basis: int = 0
    validation: Dataset | None = None


def _fields(record: Any) -> tuple[Field[Any], ...]:
    return fields(record)


@dataclass(frozen=True, kw_only=True)
class Stage(Generic[Record]):
    """One step of a fit: it reads arrays of earlier stages and stores its own.

    name: name of its group in the run, of its parts, and of its line in a plan and in the log.
    record: A dataclass of JSON values that the metadata of the run keeps.
    compute: takes a `StageJob`, stores the arrays of the stage and returns its record.
    cost: takes `FitSizes`, returns a `StageCost`.
    check: takes `FitContext`, raises an error if a fit with the stage cannot succeed; reads no
        rows.
    wanted: takes `FitParams`, `TuneParams` or None, and whether the targets are numbers; returns
        whether a fit needs the stage.
    labelled_only: whether the stage sees only the labelled rows.
    grows_with_basis: whether the memory of the stage grows with the basis.
    remedy: takes `FitParams`, returns what to change if the stage does not fit into memory; not
        used if the memory grows with the basis.
    keeps_parts: whether its parts are kept until the fit ends: because later stages read the parts,
        or so that a damaged chunk of a result with a value for every row needs only one part again.
    needs: arrays, groups and parts of earlier stages that the stage may read.
    leaves: takes the run, returns the names of the arrays that a finished run provides. These
        arrays are read again at the end, and damaged arrays are computed again.
    passes: arrays and groups that the stage stores only for later stages.
    scratch: groups that are deleted after the stage; a name that ends with "-" is a prefix of
        groups.
    """

    name: str
    record: type[Record]
    compute: Callable[[StageJob], Record]
    cost: Callable[[FitSizes], StageCost]
    wanted: Callable[[FitParams, TuneParams | None, bool], bool] = lambda *asked: True
    check: Callable[[FitContext], None] = lambda context: None
    labelled_only: bool = False
    grows_with_basis: bool = False
    remedy: Callable[[FitParams], str] = lambda params: "Ingest with a smaller `chunk_rows`"
    keeps_parts: bool = False
    needs: tuple[str, ...] = ()
    leaves: Callable[[Run], tuple[str, ...]] = lambda run: ()
    passes: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()

    def cost_in(self, context: FitContext) -> StageCost:
        """Return the cost of the stage in a fit whose neighbour search is planned."""
        return self.cost(FitSizes.of(context, labelled_only=self.labelled_only))

    def written(self, record: Record) -> dict[str, Any]:
        """Return the fields of a record that a run stores: all except a default of None."""
        values = {each.name: getattr(record, each.name) for each in _fields(record)}
        absent = {each.name for each in _fields(record) if each.default is None}
        return {
            name: value for name, value in values.items() if name not in absent or value is not None
        }

    def recorded(self, run: Run) -> Record:
        """Return the record of this stage in a run that has finished the stage."""
        written: dict[str, Any] = run.stages[self.name]
        names = [each.name for each in _fields(self.record)]
        return self.record(**{name: written[name] for name in names if name in written})


# Seconds of overhead of a part, from its submission to its record: the scheduler, opening the run
# and the dataset, writing the part. And seconds of overhead of a task that works alone.
_PART_S, _TASK_S = 0.06, 0.03


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The amounts of work that one worker does in a second.

    moments_flops: symmetric products of activations, and distances to a basis.
    solve_flops: cholesky factorization.
    activations: normalized exponentials.
    roots: summed distances.
    column_values: values that enter column statistics.
    pairs: pairs of rows in an exact search, with the columns of the dataset.
    audited_pairs: pairs of rows in an exact search of a thousand rows among many.
    updates: candidate values of NNDescent.
    measured_values: differences of neighbours.
    selected_rows: rows that enter the choice of a basis.
    routed_distances: distances to the centroids of partitions.
    weighed_neighbors: neighbours that enter a confidence.
    read_bytes: rows of the dataset, decoded.
    scratch_bytes: arrays of a run, written or read.
    """

    moments_flops: float
    solve_flops: float
    activations: float
    roots: float
    column_values: float
    hashed_values: float
    pairs: float
    audited_pairs: float
    updates: float
    measured_values: float
    merged_candidates: float
    selected_rows: float
    routed_distances: float
    weighed_neighbors: float
    read_bytes: float
    scratch_bytes: float


def expected_s(cost: StageCost, rates: Rates, n_workers: int) -> float:
    """Return the expected seconds of a stage."""
    # The last round of tasks may leave workers idle. Work of one task alone has no rounds.
    rounds = math.ceil(cost.n_tasks / n_workers) if cost.work else 0
    share = rounds / cost.n_tasks
    shared = _work_s(cost.work, rates) * share + rounds * _PART_S
    return shared + _work_s(cost.alone, rates) + _TASK_S + cost.fixed_s


def _work_s(work: Mapping[str, float], rates: Rates) -> float:
    return sum(amount / getattr(rates, name) for name, amount in work.items())
