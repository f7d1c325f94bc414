"""The tables of a report: classes, targets, tuning, confidence, columns, cells and stages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.commands.describe import describe_cells, describe_tuning
from dask_nrbfn.commands.version import read_model
from dask_nrbfn.errors import MissingDataError, plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.report.finished import Confidences, FinishedRun
from dask_nrbfn.report.formats import Table

MOST_CLASSES = 30
"""With more classes, the confusion is not drawn, and only the worst classes are listed."""

UNKNOWN = "(unknown)"
"""The label of the rows whose class the model does not know."""

_CURVE = (
    "One combination with bases of several sizes, on a sample; the smallest basis within one "
    "standard error of the best is chosen"
)

# Number of confusions, of the best combinations of a tuning, and of the worst cells.
_MOST_PAIRS, _MOST_TRIED, _MOST_CELLS = 20, 10, 10


def confused(finished: FinishedRun) -> dict[str, list[Table]]:
    """Return the tables of held-out and of evaluated rows by the name of the rows."""
    return {
        rows: confusion_tables(rows, finished.labels, confusion)
        for rows, confusion in finished.confusions.items()
    }


def confusion_tables(title: str, labels: Sequence[str], confusion: ArrayLike) -> list[Table]:
    """Return the most frequent confusions, and the figures of each class, of the rows `title`.

    confusion (K, K) or (K + 1, K): counts; row K + 1 is of classes that `labels` lacks.
    """
    counts = np.asarray(confusion, dtype=np.float64)
    own, totals = [*labels, UNKNOWN], counts.sum(axis=1)
    wrong = counts * (1 - np.eye(*counts.shape))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
    pairs = [
        {
            "class": own[true],
            "predicted": own[given],
            "rows": float(wrong[true, given]),
            "of_class": float(wrong[true, given] / totals[true]),
        }
        for true, given in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, given]
    ]
    figures = class_figures(labels, counts)
    what = f"{title}: precision, recall and F1 of each class"
    if len(figures) > MOST_CLASSES:
        what = f"{title}: the {MOST_CLASSES} of {plural(len(figures), 'class')} with the lowest F1"
        figures.sort(key=lambda of_class: (of_class["f1"] is None, of_class["f1"]))
    none = dict.fromkeys(("precision", "recall", "f1"))
    unknown = [{"class": UNKNOWN, **none, "support": total} for total in totals[len(labels) :]]
    frequent = Table(f"{title}: the most frequent confusions", pairs)
    return [frequent, Table(what, [*figures[:MOST_CLASSES], *unknown])]


def target_tables(finished: FinishedRun) -> list[Table]:
    """Return R2 of training, held-out and evaluated rows, and the mean errors, of many targets."""
    evaluation = finished.evaluation
    evaluated = {} if evaluation is None else evaluation.figures()
    judged = {"held-out": finished.judged, "evaluated": evaluated}
    rows = [
        {"target": name, "training r2": finished.fitted["training_r2"][place]}
        | {
            f"{which} {key}": record[key][place]
            for which, record in judged.items()
            for key in ("r2", "rmse", "mae")
            if record
        }
        for place, name in enumerate(finished.names or ())
    ]
    return [Table("Each target", rows)] if len(rows) > 1 else []


def tuning_tables(finished: FinishedRun) -> list[Table]:
    """Return the combinations, penalties and losses that were tried."""
    run = finished.run
    if run.tuning is None:
        raise MissingDataError(
            f"the run {run.location} was fitted without tuning.", "Give a run that tune made."
        )
    tuned, search, found = describe_tuning(run), finished.stages.get("search", {}), []
    if tried := tuned["tried"]:
        of_all = f" ({_MOST_TRIED} best)" if len(tried) > _MOST_TRIED else ""
        ended = f"; ended: {search['stopped']}" if search["stopped"] else ""
        what = f"{plural(len(tried), 'combination')} tried{of_all} on"
        found.append(_compared(finished, what, search["n_basis"], ended, tried))
    if finals := tuned["finals"]:
        what = f"{plural(len(finals), 'combination')} compared on"
        found.append(_compared(finished, what, finals[0]["n_basis"], "", finals))
    if len(curve := tuned["curve"]) > 1:
        rows = [
            {name: each[name] for name in ("basis", "n_basis")} | _judged(finished, each)
            for each in curve
        ]
        chosen = finished.params.basis, finished.params.basis_size
        marked = [(each["basis"], each["n_basis"]) == chosen for each in curve]
        found.append(Table(_CURVE, rows, marked))
    if path := tuned["path"]:
        found.append(_penalties(finished, path))
    if losses := tuned["losses"]:
        rows = [
            {name: each[name] for name in ("loss", "n_passes", "taken", "stopped")}
            | _judged(finished, each)
            for each in losses
        ]
        title = f"{plural(len(losses), 'loss')} compared on the same rows"
        marked = [each["loss"] == finished.params.loss for each in losses]
        found.append(Table(title, rows, marked))
    return found


def _compared(
    finished: FinishedRun, what: str, n_basis: int, ended: str, records: list[dict[str, Any]]
) -> Table:
    """Return a table of the best combinations, with the parameters that vary among all."""
    search = finished.stages["search"]
    title = f"{what} {plural(search['n_rows'], 'row')} with a basis of {n_basis:,}{ended}"

    def rank(record: Mapping[str, Any]) -> tuple[Any, ...]:
        # Combinations that were tried on most rows come first, those without an error last.
        size = search["rounds"][record["round"]] if "round" in record else search
        error = record[finished.criterion]
        figures = error or 0.0, record.get("log_loss") or 0.0
        return -size["n_rows"], -size["n_basis"], error is None, *figures

    # A basis size is chosen later.
    chosen = {name: value for name, value in search["chosen"].items() if name in records[0]}
    varied = [name for name in chosen if len({record[name] for record in records}) > 1]
    best = sorted(records, key=rank)[:_MOST_TRIED]
    rows = [
        {name: record[name] for name in [*varied, "alpha"]} | _judged(finished, record)
        for record in best
    ]
    marked = [all(record[name] == chosen[name] for name in chosen) for record in best]
    return Table(title, rows, marked)


def _penalties(finished: FinishedRun, path: list[dict[str, Any]]) -> Table:
    tuning, record = finished.run.tuning, finished.stages["validation"]
    assert tuning is not None
    how = "a validation dataset" if tuning.validation else plural(tuning.folds, "fold")
    tried = {name: {entry[name] for entry in path} for name in Ridge._fields}
    varied = [name for name, values in tried.items() if name != "alpha" and len(values) > 1]
    alphas, n_rows = plural(len(tried["alpha"]), "alpha"), record["n_rows"]
    title = f"{alphas} compared on {plural(n_rows, 'held-out row')}, {how}"
    rows = [
        {name: entry[name] for name in [*varied, "alpha"]}
        | _judged(finished, entry)
        | {name: entry[name] for name in ("fitting_error", "spectral_risk")}
        for entry in path
    ]
    ridge = Ridge.in_params(finished.params)
    return Table(title, rows, [Ridge.of(entry) == ridge for entry in path])


def _judged(finished: FinishedRun, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the held-out figures of a combination or a penalty; the search does not calibrate."""
    names = (finished.criterion, *(("r2",) if finished.of_numbers else ("log_loss", "temperature")))
    return {name: record[name] for name in names if name in record}


def confidence_tables(confidences: Confidences | None) -> list[Table]:
    """Return the least confident rows."""
    if confidences is None:
        return []
    columns: dict[str, Any] = {"row": confidences.rows.tolist(), "id": confidences.ids}
    columns |= {"label": confidences.labels, "confidence": confidences.values.tolist()}
    named = {name: values for name, values in columns.items() if values is not None}
    rows = [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
    return [Table("The least confident rows. Look for wrong labels among them", rows)]


def feature_tables(finished: FinishedRun) -> list[Table]:
    """Return the largest learned weights of columns."""
    if finished.params.scale != LEARNED:
        return []
    metric = finished.stages["metric"]
    rows = [{"column": name, "weight": weight} for name, weight in metric["heaviest"].items()]
    rounds, unused = max(len(metric["rounds"]) - 1, 0), len(metric["unused"])
    title = f"The largest weights in squared distances, of round {metric['kept']} of {rounds}"
    return [Table(f"{title}; {plural(unused, 'column')} without effect", rows)]


def cell_tables(finished: FinishedRun) -> list[Table]:
    """Return the cells of the fit with the largest errors."""
    if not finished.cells:
        return []
    errors = finished.run.read("cells/errors").tolist()
    cells = describe_cells(read_model(finished.run, ""))
    worst = sorted(zip(errors, cells, strict=True), key=lambda each: -each[0])[:_MOST_CELLS]
    rows = [
        {**cell, "splits": cell["splits"] or "all rows", finished.criterion: error}
        for error, cell in worst
    ]
    return [Table(f"The largest held-out errors of the {plural(len(cells), 'cell')}", rows)]


def stage_table(finished: FinishedRun) -> Table:
    """Return the time and the memory of every stage."""
    names = ("seconds", "peak_bytes", "predicted_bytes")
    rows = [
        {"stage": stage, **{name: record[name] for name in names}}
        for stage, record in finished.stages.items()
    ]
    return Table("Time, and measured and predicted peak memory of a worker", rows)
