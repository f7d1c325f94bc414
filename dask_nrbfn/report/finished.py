"""The records of a finished run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.errors import MissingDataError
from dask_nrbfn.fit import stages_of_run
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.report.formats import label_texts
from dask_nrbfn.stages import cells_record, judged_record
from dask_nrbfn.stages.bases import with_neighbors
from dask_nrbfn.stages.basis import CONFIDENCES
from dask_nrbfn.stages.refine import read_held_out_confusion
from dask_nrbfn.stages.validation import read_draw
from dask_nrbfn.storage.group import attributes_of
from dask_nrbfn.storage.model import open_model_group
from dask_nrbfn.storage.run import Run

HELD_OUT_ROWS = "Held-out rows"


def counts_rows(record: Mapping[str, Any]) -> bool:
    """Return whether a "confusion" counts rows; otherwise it sums their weights.

    After an update of many rows it is of fewer than the "n_rows" of the record.
    """
    confusion = np.asarray(record["confusion"])
    return bool((confusion % 1 == 0).all() and confusion.sum() <= record["n_rows"])


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The records of a run that has a model, in order; `params` are those that a tuning chose.

    labels: the classes as text. names: the names of numeric targets, None for classes.
    """

    run: Run
    stages: dict[str, dict[str, Any]]
    params: FitParams
    labels: list[str]
    names: list[str] | None
    evaluation: Evaluation | NumberEvaluation | None = None

    @classmethod
    def of(cls, run: Run, evaluation: Evaluation | NumberEvaluation | None = None) -> Self:
        """Read the records of a run, or raise MissingDataError if it is not finished."""
        # Other jobs may have changed the run since it was opened.
        run = Run.open(run.location)
        stages = run.stages
        expected = [stage.name for stage in stages_of_run(run)]
        if missing := [name for name in expected if name not in stages]:
            raise MissingDataError(
                f"the run {run.location} is not finished: it has no {missing[0]} yet.",
                f"Finish the run with {run.begun_by} and the parameters of its first call.",
            )
        return cls(
            run,
            {name: stages[name] for name in expected},
            run.chosen_params,
            label_texts(run.read("model/classes").tolist()),
            run.attributes["target_names"],
            evaluation,
        )

    @property
    def cells(self) -> dict[str, Any]:
        """The record of the cells; empty if one network is fitted to all rows."""
        return cells_record(self.stages)

    @property
    def fitted(self) -> dict[str, Any]:
        """The latest record with the fitting error; empty if embedded."""
        fitted = self.cells or self.stages.get("weights", {})
        versions = self.run.versions
        return fitted | (versions[-1] if versions else {})

    @property
    def criterion(self) -> str:
        """The name of the figure by which models are compared."""
        return "error_rate" if self.names is None else "relative_error"

    @cached_property
    def judged_rows(self) -> dict[str, dict[str, Any]]:
        """The figures of held-out and of evaluated rows."""
        held_out, evaluation = dict(judged_record(self.stages, self.run.versions)), self.evaluation
        confusion = None if self.run.embeds else read_held_out_confusion(self.run)
        if confusion is not None:
            held_out["confusion"] = confusion
        evaluated = {} if evaluation is None else evaluation.figures()
        return {HELD_OUT_ROWS: held_out, "Evaluated rows": evaluated}

    def rows_of_classes(self, rows: str) -> list[float]:
        """Return how many of some `judged_rows` each class has; empty if only weights are known."""
        record = self.judged_rows[rows]
        if counts_rows(record):
            supports: list[float] = np.asarray(record["confusion"]).sum(axis=1).tolist()
            return supports
        draw = read_draw(self.run, self.run.latest_place) if rows == HELD_OUT_ROWS else None
        return [] if draw is None else draw.totals[:, 0].sum(axis=0).tolist()

    @cached_property
    def unlike(self) -> tuple[Floats, Floats] | None:
        """The `unlike` of drawn held-out rows (m,) and their weights (m,); None without any."""
        draw = read_draw(self.run, self.run.latest_place)
        if draw is None or not len(draw.codes):
            return None
        far = attributes_of(open_model_group(self.run.location))["far"]
        return draw.distances / far, draw.weights

    @cached_property
    def confidences(self) -> Floats | None:
        """The confidence of every row that was searched (n,); None if the run has none."""
        if "confidence" not in self.stages:
            return None
        return CONFIDENCES.read(with_neighbors(self.run))
