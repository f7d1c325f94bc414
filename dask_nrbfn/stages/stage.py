"""The `Stage` interface: one step of a fit."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dask_nrbfn.engine import Engine
from dask_nrbfn.params import FitParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run


@dataclass(frozen=True, eq=False)
class StageJob:
    """The input of a stage whose earlier stages are finished."""

    run: Run
    dataset: Dataset
    engine: Engine
    validation: Dataset | None = None
    # Returns the maximum number of basis rows that the workers' memory allows in every stage.
    largest_basis: Callable[[], int] = lambda: 0
    # Expected seconds of the stage; seconds that are left to try, if the fit then goes on with so
    # many basis rows.
    needed_s: float = 0.0
    left_s: Callable[..., float] = lambda n_basis=None: math.inf


# Why a tuning tries nothing more.
OVERTIME = "the time limit"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of a fit: it reads arrays of earlier stages and stores its own."""

    # Name of its group in the run, of its parts, and of its line in a plan and in the log.
    name: str
    # Stores the arrays of the stage, and returns its record: JSON values that the run keeps.
    compute: Callable[[StageJob], dict[str, Any]]
    cost: Callable[[FitSizes], StageCost]
    wanted: Callable[[Spec], bool] = lambda spec: True
    # Raises an error if a fit with the stage cannot succeed; reads no rows.
    check: Callable[[FitContext], None] = lambda context: None
    labelled_only: bool = False
    # Whether its memory grows with the basis; if not, what to change if it does not fit.
    grows_with_basis: bool = False
    remedy: Callable[[FitParams], str] = lambda params: "Ingest with a smaller `chunk_rows`"
    # Whether its parts are kept until the fit ends: because later stages read the parts, or so that
    # a damaged chunk of a result with a value for every row needs only one part again.
    keeps_parts: bool = False
    # The arrays of a finished run that are read again at the end, and computed again if damaged.
    leaves: Callable[[Run], tuple[str, ...]] = lambda run: ()
    # Groups that are deleted after the stage; a name that ends with "-" is a prefix of groups.
    scratch: tuple[str, ...] = ()

    def cost_in(self, context: FitContext) -> StageCost:
        """Return the cost of the stage in a fit whose neighbour search is planned."""
        return self.cost(context.labelled_sizes if self.labelled_only else context.sizes)

    def recorded(self, run: Run) -> SimpleNamespace:
        """Return the record of this stage in a run that has finished the stage."""
        return SimpleNamespace(**run.stages[self.name])


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
