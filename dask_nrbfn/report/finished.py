"""The records of a finished run, and the confidence of its rows."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.errors import MissingDataError, NRBFNError
from dask_nrbfn.fit import stages_of_run
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.report.formats import label_texts
from dask_nrbfn.stages import cells_record
from dask_nrbfn.stages.confidence import codes_of_places, name_rows
from dask_nrbfn.stages.neighbor_search import of_searched
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
    """The records of a run that has a model; `params` are those that a tuning chose.

    Stages are in the order of their execution, labels in that of the scores; empty for numbers.
    """

    run: Run
    attributes: dict[str, Any]
    stages: dict[str, dict[str, Any]]
    params: FitParams
    labels: list[str]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Read the records of a run, or raise MissingDataError if it is not finished."""
        # Other jobs may have changed the run since it was opened.
        run = Run.open(run.location)
        attributes = run.attributes
        stages = attributes["stages"]
        names = [stage.name for stage in stages_of_run(run)]
        missing = [name for name in names if name not in stages]
        if missing:
            raise MissingDataError(
                f"the run {run.location} is not finished: it has no {missing[0]} yet.",
                f"Finish the run with {run.begun_by} and the parameters of its first call.",
            )
        ordered = {name: stages[name] for name in names}
        labels = label_texts(run.read("model/classes").tolist())
        return cls(run, attributes, ordered, run.chosen_params, labels)

    @property
    def versions(self) -> list[dict[str, Any]]:
        """Records of the versions after the fit."""
        return versions_of(self.attributes)

    @property
    def tuning(self) -> TuneParams | None:
        """Parameters of the tuning; None for a run without one."""
        return self.run.tuning

    @property
    def fitted(self) -> dict[str, Any]:
        """The record with the fitting error: that of the weights, or of the cells."""
        return self.stages["weights" if "weights" in self.stages else "cells"]

    @property
    def is_of_cells(self) -> bool:
        """Whether cells have networks of their own."""
        return bool(cells_record(self.stages))

    @property
    def n_searched(self) -> int:
        """Number of rows that have a confidence."""
        return of_searched(self.run).n_rows

    @property
    def searched(self) -> str:
        """The word for a row with a confidence: "row" or "candidate"."""
        return "row" if self.n_searched == self.n_labelled else "candidate"

    @property
    def ridge(self) -> Ridge:
        """The penalty of the model."""
        return Ridge.in_params(self.params)

    @property
    def n_labelled(self) -> int:
        """Number of rows of the fit that have a target."""
        return self.run.of_labelled().n_rows

    def tuned(self) -> dict[str, Any]:
        """Return the result of `describe_tuning`; raises MissingDataError without a tuning."""
        if self.tuning is None:
            raise MissingDataError(
                f"the run {self.run.location} was fitted without tuning.",
                "Give a run that tune made.",
            )
        return describe_tuning(self.run)

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


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Rows (m,), their confidence, labels and, if the dataset is still there, ids."""

    rows: NDArray[np.int64]
    values: Floats
    labels: tuple[str, ...] = ()
    ids: tuple[str, ...] | None = None

    @classmethod
    def none(cls) -> Self:
        """Return no rows."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0))

    def least(self, start: int, values: Floats) -> Self:
        """Return the rows of smallest value among these and the rows from `start`."""
        own = np.argsort(values, kind="stable")[:_NAMED]
        rows = np.concatenate([self.rows, start + own])
        merged = np.concatenate([self.values, values[own]])
        order = np.argsort(merged, kind="stable")[:_NAMED]
        return type(self)(rows[order], merged[order])

    def named(self, finished: FinishedRun) -> Self:
        """Return rows that are given by places among searched rows, with labels and ids."""
        run, dataset = of_searched(finished.run), finished.dataset()
        rows, ids = name_rows(run, self.rows), None
        if dataset is not None and dataset.ids is not None:
            ids = tuple(str(dataset.ids[row]) for row in rows.tolist())
        labels = tuple(finished.labels[code] for code in codes_of_places(run, self.rows))
        return type(self)(rows, self.values, labels, ids)


@dataclass(frozen=True, eq=False)
class Confidences:
    """Counts (1000,) of confidences in equal bins from 0 to 1, and the ten least confident rows.

    `n_certain` rows have a confidence of exactly 1: all neighbours share their label. `rows` is the
    word for the rows: "rows" or "candidates".
    """

    counts: NDArray[np.int64]
    n_certain: int
    least: NamedRows
    rows: str = "rows"

    @classmethod
    def of(cls, finished: FinishedRun) -> Self | None:
        """Read the confidence of the rows, a part at a time; None if the run has none."""
        if "confidence" not in finished.stages:
            return None
        counts, n_certain = np.zeros(_BINS, dtype=np.int64), 0
        least = NamedRows.none()
        run = of_searched(finished.run)
        for start, stop in run.spans:
            values = run.read("confidence/values", start, stop)
            counts += np.histogram(values, bins=_BINS, range=(0.0, 1.0))[0]
            n_certain += int(np.count_nonzero(values == 1.0))
            least = least.least(start, values)
        return cls(counts, n_certain, least.named(finished), f"{finished.searched}s")
