"""Everything a report says about a finished run, in sections: what decides stands first.

The text of `fit` and `tune`, the page of `report` and its JSON are made of these sections. Figures
have the names that `inspect` and `--json` use.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dask_nrbfn.commands.describe import describe_run
from dask_nrbfn.report import tables
from dask_nrbfn.report.concerns import find_concerns
from dask_nrbfn.report.finished import Confidences, FinishedRun
from dask_nrbfn.report.formats import Section, Table, schema_table, shown
from dask_nrbfn.stages.bases import source_of

# Figures of held-out rows, which decide.
_JUDGED = (
    *("error_rate", "relative_error", "fold_deviation", "r2", "rmse", "mae", "log_loss"),
    *("expected_calibration_error", "temperature"),
)
_FITTED = ("training_r2", "fitting_error", "spectral_risk", "recall")

_NETWORK = (
    *("n_rows", "n_unlabelled", "n_features", "n_classes", "target_names", "n_cells", "n_basis"),
    *("n_kept", "width", "alpha", "penalty", "locality", "components", "n_partitions", "version"),
)
_CHOSEN = (
    *("scale", "basis", "basis_rows", "features", "kernel", "width_factor", "loss"),
    *("class_weight", "confidence_threshold", "n_neighbors"),
)
# Number of the most frequent confusions that stand next to the error.
_CONFUSED = 3

_COST = ("seconds", "peak_bytes", "predicted_bytes", "n_workers", "threads", "memory_bytes")


def summary(finished: FinishedRun) -> list[Section]:
    """Return the results of a run, its warnings, its network and its cost."""
    figures = describe_run(finished.run)
    taken = sum(record["seconds"] for record in finished.stages.values())
    places = [member["dataset"] for member in finished.attributes["members"]]
    network = {"run": str(finished.run.location), "dataset": places}
    chosen = {**finished.params.to_dict(), "basis_rows": basis_rule(finished)}
    cost = {**figures, **finished.attributes["environment"], "seconds": taken}
    confused = tables.confused(finished)
    result = _some(figures, _JUDGED) | _frequent(confused, "Held-out rows")
    evaluated = _evaluated(finished) | _frequent(confused, "Evaluated rows")
    return [
        Section("Result", result | _some(figures, _FITTED)),
        Section("Evaluation", evaluated),
        Section("Confused classes", tables=[each[0] for each in confused.values()]),
        Section("What to do next", concerns=find_concerns(finished)),
        Section(
            "Data and network",
            network | _some(figures, _NETWORK) | _some(chosen, _CHOSEN),
        ),
        Section("Time and memory", _some(cost, _COST)),
    ]


def details(finished: FinishedRun, confidences: Confidences | None) -> list[Section]:
    """Return the tables about targets, tuning, confidence, columns, cells and stages."""
    schema = finished.attributes["schema"]
    of_classes = [table for each in tables.confused(finished).values() for table in each[1:]]
    found: dict[str, Sequence[Table]] = {
        "Classes": of_classes,
        "Probabilities": [],
        "Predicted and true numbers": tables.target_tables(finished),
        "Tuning": [] if finished.run.tuning is None else tables.tuning_tables(finished),
        "Confidence of the rows": tables.confidence_tables(confidences),
        "Coordinates of the rows": [],
        "Weights of the features": tables.feature_tables(finished),
        "Cells": tables.cell_tables(finished),
        "Columns": [] if schema is None else [schema_table(schema)],
        "Stages": [tables.stage_table(finished)],
    }
    return [Section(title, tables=each) for title, each in found.items()]


def basis_rule(finished: FinishedRun) -> str | None:
    """Return the rule that chose the basis rows; None for cells."""
    if finished.cells:
        return None
    params, record = finished.params, finished.stages["basis"]
    n_below = record.get("n_below_threshold")
    filled = n_below is not None and record["n_basis"] > n_below
    return source_of(params.basis).described(params, record.get("cap") is not None, filled)


def _frequent(confused: Mapping[str, Sequence[Table]], rows: str) -> dict[str, Any]:
    """Return the most frequent confusions of some rows as texts."""
    texts = [
        f"{pair['class']} as {pair['predicted']} ({shown('of_class', pair['of_class'])})"
        for table in confused.get(rows, ())[:1]
        for pair in table.rows[:_CONFUSED]
    ]
    return {"confused": texts} if texts else {}


def _evaluated(finished: FinishedRun) -> dict[str, Any]:
    """Return the figures of evaluated rows that are not tables."""
    figures = {} if finished.evaluation is None else finished.evaluation.figures()
    tabled = ("classes", "per_class", "confusion", "reliability", "target_names")
    return {name: value for name, value in figures.items() if name not in tabled}


def _some(figures: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: figures[name] for name in names if figures.get(name) is not None}
