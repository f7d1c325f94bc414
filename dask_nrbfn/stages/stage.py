"""The `Stage` interface, its costs, the rates of a worker and the job object of a stage."""

import math
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
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

    products, exponentials, pairs: work of all tasks, see `Rates`; only the largest terms.
    pair_flops: floating-point operations of a pair.
    read_bytes, written_bytes: bytes that all tasks read and write.
    held_bytes: peak memory of one worker, including its process.
    n_tasks: tasks that share the work and can run at the same time.
    shared_s, fixed_s: seconds of all tasks, and of every worker, that do not depend on the rates.
    """

    products: float = 0.0
    exponentials: float = 0.0
    pairs: float = 0.0
    pair_flops: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    held_bytes: int
    n_tasks: int = 1
    shared_s: float = 0.0
    fixed_s: float = 0.0

    @property
    def flops(self) -> float:
        """Floating-point operations of all tasks."""
        return self.products + self.pairs * self.pair_flops


@dataclass(frozen=True, eq=False)
class StageJob:
    """The input of a stage whose earlier stages are finished.

    largest_basis: maximum number of basis rows that the workers' memory allows in every stage.
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
# and the dataset, writing the part.
_PART_S = 0.06


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The amounts of work that one worker does in a second.

    products: floating-point operations of matrix products and factorizations.
    exponentials: activations, without their products.
    pairs: pairs of rows in an exact search, with the columns of the dataset.
    """

    products: float
    exponentials: float
    pairs: float
    bytes: float


def expected_s(cost: StageCost, rates: Rates, n_workers: int) -> float:
    """Return the expected seconds of a stage."""
    shared = (
        cost.products / rates.products
        + cost.exponentials / rates.exponentials
        + cost.pairs / rates.pairs
        + (cost.read_bytes + cost.written_bytes) / rates.bytes
        + cost.shared_s
    )
    # The last round of tasks may leave workers idle.
    rounds = math.ceil(cost.n_tasks / n_workers)
    return shared * rounds / cost.n_tasks + rounds * _PART_S + cost.fixed_s
