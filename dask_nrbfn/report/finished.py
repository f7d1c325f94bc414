"""The records of a finished run, and the confidence of its rows."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.errors import MissingDataError, NRBFNError
from dask_nrbfn.fit import stages_of_run
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.report.formats import label_texts
from dask_nrbfn.stages import cells_record, judged_record
from dask_nrbfn.stages.bases import with_neighbors
from dask_nrbfn.stages.neighbors import codes_of_places, name_rows
from dask_nrbfn.stages.refine import read_held_out_confusion
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import local_path
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import versions_of

# Bins of the confidence, so that thresholds have steps of 0.001.
_BINS = 1000

# Number of listed rows with the lowest confidence.
_NAMED = 10


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The records of a run that has a model, in order; `params` are those that a tuning chose.

    labels: the classes as text. names: the names of numeric targets, None for classes.
    evaluation: the figures of the model on other rows.
    """

    run: Run
    attributes: dict[str, Any]
    stages: dict[str, dict[str, Any]]
    params: FitParams
    labels: list[str]
    names: list[str] | None
    versions: list[dict[str, Any]]
    evaluation: Evaluation | NumberEvaluation | None = None

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation | NumberEvaluation | None = None) -> Self:
        """Read the records of a run, or raise MissingDataError if it is not finished."""
        # Other jobs may have changed the run since it was opened.
        run = Run.open(run.location)
        attributes = run.attributes
        stages = attributes["stages"]
        expected = [stage.name for stage in stages_of_run(run)]
        missing = [name for name in expected if name not in stages]
        if missing:
            raise MissingDataError(
                f"the run {run.location} is not finished: it has no {missing[0]} yet.",
                f"Finish the run with {run.begun_by} and the parameters of its first call.",
            )
        return cls(
            run,
            attributes,
            {name: stages[name] for name in expected},
            run.chosen_params,
            label_texts(run.read("model/classes").tolist()),
            attributes["target_names"],
            versions_of(attributes),
            evaluation,
        )

    @property
    def cells(self) -> dict[str, Any]:
        """The record of the cells; empty if one network is fitted to all rows."""
        return cells_record(self.stages)

    @property
    def fitted(self) -> dict[str, Any]:
        """The record with the fitting error, of the weights or of the cells; empty if embedded."""
        return self.cells or self.stages.get("weights", {})

    @property
    def judged(self) -> dict[str, Any]:
        """The record with the errors of held-out rows; empty without a tuning."""
        return judged_record(self.stages)

    @property
    def of_numbers(self) -> bool:
        """Whether the targets are numbers."""
        return self.names is not None

    @property
    def criterion(self) -> str:
        """The name of the figure by which models are compared."""
        return "relative_error" if self.of_numbers else "error_rate"

    @property
    def confusions(self) -> dict[str, Floats]:
        """The confusion (K, K) or (K + 1, K) of held-out and of evaluated rows."""
        counts = {
            "Held-out rows": None if self.run.embeds else read_held_out_confusion(self.run),
            "Evaluated rows": getattr(self.evaluation, "confusion", None),
        }
        return {
            rows: np.asarray(each, dtype=np.float64)
            for rows, each in counts.items()
            if each is not None
        }

    @property
    def reliabilities(self) -> dict[str, list[dict[str, float]]]:
        """The reliability bins of held-out and of evaluated rows."""
        bins = {
            "Held-out rows": self.judged.get("reliability"),
            "Evaluated rows": getattr(self.evaluation, "reliability", None),
        }
        return {rows: each for rows, each in bins.items() if each}

    def dataset(self) -> Dataset | None:
        """Open the dataset of the fit; None unless it is still on a disk of this machine.

        A URL would need its storage options again, and perhaps a network.
        """
        places = [member["dataset"] for member in self.attributes["members"]]
        if len(places) > 1 or local_path(places[0]) is None:
            return None
        try:
            dataset = Dataset.open(places[0])
        except NRBFNError:
            return None
        return dataset if dataset.fingerprint == self.run.fingerprint else None


class Confidences(NamedTuple):
    """Counts (1000,) of confidences in equal bins from 0 to 1, and the ten least confident rows.

    n_certain: number of rows with a confidence of exactly 1: all neighbours share their label.
    rows, values, labels: of the least confident rows; ids: if the dataset is still there.
    """

    counts: NDArray[np.int64]
    n_certain: int
    rows: NDArray[np.int64]
    values: Floats
    labels: tuple[str, ...]
    ids: tuple[str, ...] | None

    @classmethod
    def of(cls, finished: FinishedRun) -> Self | None:
        """Read the confidence of the rows, a part at a time; None if the run has none."""
        if "confidence" not in finished.stages:
            return None
        run = with_neighbors(finished.run)
        counts, n_certain = np.zeros(_BINS, dtype=np.int64), 0
        places, least = np.empty(0, dtype=np.int64), np.empty(0)
        for start, stop in run.spans:
            values = run.read("confidence/values", start, stop)
            counts += np.histogram(values, bins=_BINS, range=(0.0, 1.0))[0]
            n_certain += int(np.count_nonzero(values == 1.0))
            places = np.concatenate([places, np.arange(start, stop)])
            least = np.concatenate([least, values])
            order = np.argsort(least, kind="stable")[:_NAMED]
            places, least = places[order], least[order]
        rows, dataset = name_rows(run, places), finished.dataset()
        labels = tuple(finished.labels[code] for code in codes_of_places(run, places))
        ids = None
        if dataset is not None and dataset.ids is not None:
            ids = tuple(str(dataset.ids[row]) for row in rows.tolist())
        return cls(counts, n_certain, rows, least, labels, ids)
