"""The `Stage` interface: one step of a fit, and what it leaves in a run."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

from dask_nrbfn.engine import Engine
from dask_nrbfn.params import FitParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run, RunArray


@dataclass(frozen=True, eq=False)
class StageJob:
    """The input of a stage whose earlier stages are finished."""

    run: Run
    dataset: Dataset
    engine: Engine
    validation: Dataset | None = None
    # Returns the maximum number of basis rows that the workers' memory allows in every stage.
    largest_basis: Callable[[], int] = lambda: 0
    # Expected seconds of the stage; seconds that are left to try after steps with some costs, if
    # the fit then goes on with chosen parameters, by default with those of the least work.
    needed_s: float = 0.0
    left_s: Callable[..., float] = lambda chosen=None, steps=(): math.inf


# Why a tuning tries nothing more.
OVERTIME = "the time limit"


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """The results of a finished stage as values for JSON, which the run keeps unless None.

    chosen: the parameters of the fit that the stage has chosen.
    narrowed: the values that are left to try, by the names of `TUNES`.
    """

    chosen: dict[str, Any] | None = None
    narrowed: dict[str, Any] | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Return the record that `to_dict` has returned; other values are left out."""
        return cls(**{each.name: stored[each.name] for each in fields(cls) if each.name in stored})

    def to_dict(self) -> dict[str, Any]:
        """Return the values that are not None."""
        return known(**vars(self))


@dataclass(frozen=True, kw_only=True)
class HeldOutRecord(StageRecord):
    """The figures of a network on held-out rows, those of classes or those of numbers."""

    error_rate: float | None = None
    log_loss: float | None = None
    temperature: float | None = None
    log_slope: float | None = None
    biases: list[float] | None = None
    expected_calibration_error: float | None = None
    reliability: list[dict[str, Any]] | None = None
    relative_error: float | None = None
    r2: list[float] | None = None
    rmse: list[float] | None = None
    mae: list[float] | None = None
    residual_sums: dict[str, Any] | None = None


Record = TypeVar("Record", bound=StageRecord)


@dataclass(frozen=True, kw_only=True)
class Stage(Generic[Record]):
    """One step of a fit: it reads arrays of earlier stages and stores its own."""

    # Name of its group in the run, of its parts, and of its line in a plan and in the log.
    name: str
    # Stores the arrays of the stage, and returns its record.
    compute: Callable[[StageJob], Record]
    record: type[Record]
    arrays: tuple[RunArray, ...] = ()
    cost: Callable[[FitSizes], StageCost]
    wanted: Callable[[Spec], bool] = lambda spec: True
    # Raises an error if a fit with the stage cannot succeed; reads no rows.
    check: Callable[[FitContext], None] = lambda context: None
    labelled_only: bool = False
    # Whether its memory grows with the basis; if not, what to change if it does not fit.
    grows_with_basis: bool = False
    remedy: Callable[[FitParams], str] = lambda params: "Ingest with a smaller `chunk_rows`"
    # Whether every update of the run reads its arrays, so that copies of the fit keep them. Moments
    # are read by the first update alone, because each version has its own.
    read_by_updates: bool = False
    # Whether its parts are kept until the end of the fit is verified: because later stages read the
    # parts, or so that a damaged chunk of a result for every row needs only one part again.
    keeps_parts: bool = False
    # Returns the names of the arrays of parts that updates read, which are verified too.
    verified_parts: Callable[[Run], Iterable[str]] = lambda run: ()
    # Groups that are deleted after the stage; a name that ends with "-" is a prefix of groups.
    scratch: tuple[str, ...] = ()

    def cost_in(self, context: FitContext) -> StageCost:
        """Return the cost of the stage in a fit whose neighbour search is planned."""
        return self.cost(context.labelled_sizes if self.labelled_only else context.sizes)

    def recorded(self, run: Run) -> Record:
        """Return the record of this stage in a run that has finished the stage."""
        return self.record.of(run.stages[self.name])

    def stored(self, run: Run) -> list[str]:
        """Return the names of the arrays of the stage that a run has."""
        groups = {each.name.rpartition("/")[0] for each in self.arrays}
        found = {f"{group}/{name}" for group in groups for name in run.member_names(group)}
        return [each.name for each in self.arrays if each.name in found]


def known(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, for a record."""
    return {name: value for name, value in values.items() if value is not None}


def in_words(figures: Mapping[str, Any]) -> str:
    """Return the figures that are not None, rounded: "error rate 0.2174, r2 0.7681 0.3"."""
    texts = []
    for name, value in known(**figures).items():
        many = value if isinstance(value, list) else [value]
        shown = (f"{each:.4g}" if isinstance(each, float) else str(each) for each in many)
        texts.append(" ".join((name.replace("_", " "), *shown)))
    return ", ".join(texts)
