"""Everything a report says about a finished run, in sections: what decides stands first.

The text of `fit` and `tune` and the page of `report` are made of these sections. Figures have the
names that `inspect` and `--json` use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dask_nrbfn.commands.describe import describe_cells, describe_run, describe_tuning
from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.errors import Advice, NRBFNError, plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.trials import figures_of
from dask_nrbfn.params import PAPER_ALPHA, FitParams
from dask_nrbfn.report.finished import HELD_OUT_ROWS, FinishedRun, counts_rows
from dask_nrbfn.report.formats import TABLED, Concern, Section, Table, schema_table, shown
from dask_nrbfn.stages.bases import with_neighbors
from dask_nrbfn.stages.basis import codes_of_places, name_rows
from dask_nrbfn.stages.cells import ERRORS
from dask_nrbfn.stages.model import read_model
from dask_nrbfn.storage.dataset import Dataset

_RESULT = (
    "error_rate", "relative_error", "fold_deviation", "r2", "rmse", "mae", "training_r2",
    "expected_calibration_error", "log_loss", "n_judged", "seconds", "n_basis",
)  # fmt: skip
_METHOD = ("fitting_error", "spectral_risk", "temperature", "recall")
_NETWORK = (
    "run", "dataset", "n_rows", "n_unlabelled", "n_features", "n_classes", "target_names",
    "n_cells", "n_kept", "width", "alpha", "penalty", "locality", "components",
    "n_partitions", "version", "scale", "basis", "features", "kernel", "width_factor", "loss",
    "class_weight", "confidence_threshold", "n_neighbors", "options",
)  # fmt: skip
_MEMORY = ("peak_bytes", "predicted_bytes")
_COST = (*_MEMORY, "n_workers", "threads", "memory_bytes")

# With more classes, the confusion is not drawn, and only the worst classes are listed.
MOST_CLASSES = 30

# The title of the section of intervals and of distances from the basis.
SURENESS = "How sure predictions are"

# The label of rows whose class the model does not know.
UNKNOWN = "(unknown)"

# Combinations of one kind differ in the basis and its width.
KIND = ("scale", "features", "kernel")

# Figures by which a tuning compares; each record has some.
_COMPARED = ("brier_score", "error_rate", "relative_error", "behind_best", "r2", "log_loss")

# What else than the combination a trial has.
_OF_TRIAL = ("penalty", "n_basis", "alpha")

Record = dict[str, Any]
"""Parameters that were tried, and their figures."""

# Number of confusions, of the worst cells and rows, and of the most important columns.
_MOST_PAIRS, _MOST_CELLS, _MOST_UNSURE, _MOST_IMPORTANT = 20, 10, 50, 10

# With fewer rows, one error changes the error rate of a class by more than 5 points. Below this
# recall, most rows of a class get the label of another class.
_FEW_ROWS, _LOW_RECALL = 20, 0.5

# Above this fitting error, the squared residuals are larger than the squared scores. Below these
# R2, the mean is as good, and less than half of the variance of a target is fitted.
_LARGE_FITTING_ERROR, _NO_R2, _SMALL_R2 = 2.0, 1e-6, 0.5


def summary(finished: FinishedRun, spell: Callable[[str], str] = str) -> list[Section]:
    """Return the results of a run, its warnings, its network and its cost."""
    figures: dict[str, Any] = {
        **finished.params.to_dict(),
        **finished.run.attributes["environment"],
        **describe_run(finished.run),
        "run": str(finished.run.location),
        "dataset": [member["dataset"] for member in finished.run.attributes["members"]],
        "options": as_options(finished),
        "seconds": sum(record["seconds"] for record in finished.stages.values()),
    }
    evaluated = {}
    if finished.evaluation is not None:
        evaluated = finished.evaluation.figures()
    order = [*_RESULT, *evaluated]
    names = sorted(evaluated.keys() - {*TABLED, "classes", "target_names"}, key=order.index)
    evaluated = {name: evaluated[name] for name in names if evaluated[name] is not None}

    def known(names: Sequence[str]) -> dict[str, Any]:
        return {name: figures[name] for name in names if figures.get(name) is not None}

    return [
        Section("Result", known(_RESULT)),
        Section("Evaluation", evaluated),
        Section("Confused classes", tables=[pairs for pairs, _ in confused(finished).values()]),
        Section("What to do next", concerns=find_concerns(finished, spell)),
        Section("Data and network", known(_NETWORK)),
        Section("Time and memory", known(_COST)),
        Section("For the method", known(_METHOD)),
    ]


def details(finished: FinishedRun) -> list[Section]:
    """Return the tables about targets, intervals, tuning, confidence, columns, cells, stages."""
    schema = finished.run.attributes["schema"]
    costs = [
        {"stage": stage} | {name: record[name] for name in ("seconds", *_MEMORY)}
        for stage, record in finished.stages.items()
    ]
    found: dict[str, Sequence[Table]] = {
        "Classes": [of_classes for _, of_classes in confused(finished).values()],
        "Probabilities": [],
        SURENESS: interval_tables(finished.evaluation),
        "Columns that matter": importance_tables(finished.evaluation),
        "Predicted and true numbers": target_tables(finished),
        "Tuning": tuning_tables(finished),
        "Confidence of the rows": confidence_tables(finished),
        "Coordinates of the rows": [],
        "Cells": cell_tables(finished),
        "Columns": [] if schema is None else [schema_table(schema)],
        "Stages": [Table("Time, and measured and predicted peak memory of a worker", costs)],
    }
    return [Section(title, tables=each) for title, each in found.items()]


def as_options(finished: FinishedRun) -> str | None:
    """Return options of `fit` for the same network; None for an embedding or a given basis."""
    run, params = finished.run, finished.params
    if run.embeds or params.basis_is_given:
        return None
    unset = FitParams().resolve_auto(numbers=False).to_dict()
    # A fit would choose these by itself.
    unset |= dict.fromkeys(["scale", "basis", "features", "kernel"])
    if run.begun.is_judged and params.loss == FitParams.loss and params.prune is None:
        unset["alpha"] = params.alpha
    return " ".join(
        f"--{name.replace('_', '-')} {value}"
        for name, value in params.to_dict().items()
        if value not in (None, unset[name])
    )


def confused(finished: FinishedRun) -> dict[str, tuple[Table, Table]]:
    """Return the tables of held-out and of evaluated rows by the name of the rows."""
    return {
        rows: confusion_tables(rows, finished.labels, record)
        for rows, record in finished.judged_rows.items()
        if "confusion" in record
    }


def confusion_tables(
    title: str, labels: Sequence[str], record: Mapping[str, Any]
) -> tuple[Table, Table]:
    """Return the most frequent confusions, and the figures of each class, of the rows `title`.

    The "confusion" of the record is (K, K) or (K + 1, K); row K + 1 is of classes that `labels`
    lacks.
    """
    counts = np.asarray(record["confusion"], dtype=np.float64)
    unit = "rows" if counts_rows(record) else "weight"
    own, totals = [*labels, UNKNOWN], counts.sum(axis=1)
    wrong = counts * (1 - np.eye(*counts.shape))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
    pairs = [
        {
            "class": own[true],
            "predicted": own[given],
            unit: float(wrong[true, given]),
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
    shown_figures = figures[:MOST_CLASSES]
    for total in totals[len(labels) :]:
        none = {"precision": None, "recall": None, "f1": None}
        shown_figures.append({"class": UNKNOWN, **none, "support": total})
    return Table(f"{title}: the most frequent confusions", pairs), Table(what, shown_figures)


def target_tables(finished: FinishedRun) -> list[Table]:
    """Return R2 of training, held-out and evaluated rows, and the mean errors, of many targets."""
    if finished.names is None or len(finished.names) == 1 or finished.run.embeds:
        return []
    columns: dict[str, Any] = {
        "target": finished.names,
        "training r2": finished.fitted.get("training_r2"),
    }
    for rows, record in finished.judged_rows.items():
        if "r2" in record:
            for figure in ("r2", "rmse", "mae"):
                columns[f"{rows.lower()}: {figure}"] = record[figure]
    return [_table_of_columns("Each target", columns)]


def interval_tables(evaluation: Evaluation | NumberEvaluation | None) -> list[Table]:
    """Return how many evaluated rows are in their intervals or sets of labels, and how wide."""
    if evaluation is None or not evaluation.intervals:
        return []
    title, width = "sets of labels", "mean_size"
    named: list[Record] = [{}]
    if isinstance(evaluation, NumberEvaluation):
        title, width = "intervals", "mean_width"
        named = [{"target": name} for name in evaluation.target_names]
    rows = [
        {
            **target,
            "coverage": of_coverage["coverage"],
            "covered": of_coverage["covered"][place],
            width: of_coverage[width][place],
        }
        for place, target in enumerate(named)
        for of_coverage in evaluation.intervals
    ]
    return [Table(f"Evaluated rows: {title}", rows)]


def importance_tables(evaluation: Evaluation | NumberEvaluation | None) -> list[Table]:
    """Return the ten most important columns."""
    rows = [] if evaluation is None else evaluation.importances[:_MOST_IMPORTANT]
    title = "the most important columns, by the increase of the errors if a column is permuted"
    return [Table(f"Evaluated rows: {title}", rows)]


def _table_of_columns(title: str, columns: Mapping[str, Any]) -> Table:
    rows = zip(*columns.values(), strict=True)
    return Table(title, [dict(zip(columns, row, strict=True)) for row in rows])


def tuning_tables(finished: FinishedRun) -> list[Table]:
    """Return the combinations, basis sizes, penalties and losses that were tried."""
    run, params = finished.run, finished.params
    if not run.begun.is_judged:
        return []
    tuned, tables = describe_tuning(run), []
    if tuned["tried"]:
        tables.append(_searched_table(finished, tuned["tried"]))
    if tuned["finals"]:
        tables.append(_compared_table(finished, tuned["finals"]))
    if len(tuned["curve"]) > 1:
        chosen = {"basis": params.basis, "n_basis": params.basis_size}
        title = "By size of the basis. The smallest size with errors close to the best is chosen. "
        title += "Of close sizes up to 256 rows, the largest is chosen"
        tables.append(_table_of_tried(title, tuned["curve"], list(chosen), chosen))
    if tuned["path"]:
        folds = plural(run.begun.n_held_out, "fold")
        how = "a validation dataset" if run.begun.validation else folds
        alphas = plural(len({each["alpha"] for each in tuned["path"]}), "alpha")
        n_rows = plural(finished.stages["validation"]["n_rows"], "held-out row")
        title = f"{alphas} compared on {n_rows}, {how}"
        chosen = Ridge.in_params(params)._asdict()
        tables.append(_table_of_tried(title, tuned["path"], Ridge._fields, chosen))
    if tuned["losses"]:
        title = f"{plural(len(tuned['losses']), 'loss')} compared on the same rows"
        names = ["loss", "n_passes", "taken", "stopped"]
        tables.append(_table_of_tried(title, tuned["losses"], names, {"loss": params.loss}))
    return tables


def _searched_table(finished: FinishedRun, tried: list[Record]) -> Table:
    """Return the best combination of each kind, of all that a search tried."""
    search, records = finished.stages["search"], _ranked(finished, tried)
    n_rows, n_basis = plural(records[0]["n_rows"], "row"), records[0]["n_basis"]
    title = f"{plural(len(records), 'combination')} tried on {n_rows} with a basis of {n_basis:,}, "
    title += f"in {shown('seconds', search['seconds'])}; the best of each kind"
    if "stopped" in search:
        title += f"; ended: {search['stopped']}"
    best: dict[tuple[Any, ...], Record] = {}
    for record in records:
        best.setdefault(tuple(record[name] for name in KIND), record)
    names = [*KIND, "basis", "width_factor", "n_rows", "n_basis"]
    chosen = {name: search["chosen"][name] for name in KIND}
    return _table_of_tried(title, list(best.values()), names, chosen)


def _compared_table(finished: FinishedRun, finals: list[Record]) -> Table:
    """Return the combinations that a search compared at last."""
    search, records = finished.stages["search"], _ranked(finished, finals)
    title = f"{plural(len(records), 'combination')} compared on the same held-out rows"
    if "linear" in search:
        title += f"; linear model: {shown(finished.criterion, search['linear'], 4)}"
    chosen = {name: each for name, each in search["chosen"].items() if name != "basis_size"}
    # With another penalty or size of the basis, the chosen combination may be here again.
    own = (each for each in records if all(each[name] == chosen[name] for name in chosen))
    best = next(own, {})
    chosen |= {name: best.get(name) for name in _OF_TRIAL}
    return _table_of_tried(title, records, [*chosen], chosen)


def _table_of_tried(
    title: str, records: list[Record], names: Iterable[str], chosen: Record
) -> Table:
    """Return the names that vary among records, and figures of held-out rows; mark the chosen."""
    varied = [
        name
        for name in names
        if name == "alpha" or len({record.get(name) for record in records}) > 1
    ]
    shown_names = [*varied, *_COMPARED]
    rows = [{name: record[name] for name in shown_names if name in record} for record in records]
    marked = [
        all(record[name] == value for name, value in chosen.items() if name in record)
        for record in records
    ]
    return Table(title, rows, marked)


def _ranked(finished: FinishedRun, records: list[Record]) -> list[Record]:
    """Return combinations of the last round first; "behind_best" compares those of its round."""
    error, _ = figures_of(of_numbers=finished.names is not None)
    rounds = finished.stages["search"]["rounds"]
    ranked = [rounds[record.get("round", -1)] | record for record in records]
    ranked.sort(key=lambda each: (each[error] is None, each[error]))
    ranked.sort(key=lambda each: -each.get("round", 0))
    best = ranked[0]
    for record in ranked:
        record["behind_best"] = None
        if record[error] is not None and record.get("round") == best.get("round"):
            record["behind_best"] = shown(error, round(record[error] - best[error], 6))
    return ranked


def confidence_tables(finished: FinishedRun) -> list[Table]:
    """Return the least confident rows."""
    values = finished.confidences
    if values is None:
        return []
    run, attributes = with_neighbors(finished.run), finished.run.attributes
    places = np.argsort(values, kind="stable")[:_MOST_UNSURE]
    rows = name_rows(run, places)
    columns: dict[str, Any] = {"row": rows.tolist()}
    with suppress(NRBFNError):
        dataset = Dataset.open(attributes["dataset"])
        if dataset.ids is not None and dataset.fingerprint == attributes["fingerprint"]:
            columns["id"] = np.asarray(dataset.ids.oindex[rows]).tolist()
    columns["label"] = [finished.labels[code] for code in codes_of_places(run, places)]
    columns["confidence"] = values[places].tolist()
    title = "The least confident rows, counted from 0; look for wrong labels"
    return [_table_of_columns(title, columns)]


def cell_tables(finished: FinishedRun) -> list[Table]:
    """Return the cells of the fit with the largest errors."""
    if not finished.cells:
        return []
    errors = ERRORS.read(finished.run).tolist()
    cells = describe_cells(read_model(finished.run, ""))
    rows = [
        {**cell, "splits": cell["splits"] or "all rows", finished.criterion: error}
        for cell, error in zip(cells, errors, strict=True)
    ]
    rows.sort(key=lambda row: -row[finished.criterion])
    title = f"The largest held-out errors of the {plural(len(cells), 'cell')}"
    return [Table(title, rows[:_MOST_CELLS])]


def find_concerns(finished: FinishedRun, spell: Callable[[str], str] = str) -> list[Concern]:
    """Return the concerns about a run, with `spell` applied to the names of parameters."""
    if finished.run.embeds:
        return []
    found = list(_concerns_of_versions(finished))
    if finished.names is None:
        found += _concerns_of_classes(finished)
    else:
        found += _concerns_of_numbers(finished)
    found += _concerns_of_tuning(finished)
    return [Concern(*(Advice(text).spelled(spell) for text in each)) for each in found]


def _concerns_of_versions(finished: FinishedRun) -> Iterator[Concern]:
    versions = finished.run.versions
    if not versions:
        return
    yield Concern(
        f"{plural(len(versions), 'update')} came after the fit.",
        "The tables of the tuning and of the cells describe the fit.",
    )
    if versions[-1]["refresh_due"]:
        reasons = dict.fromkeys(reason for each in versions for reason in each["reasons"])
        yield Concern(f"A refresh is due: {'; '.join(reasons)}.", "Run dask-nrbfn refresh.")


def _concerns_of_classes(finished: FinishedRun) -> Iterator[Concern]:
    held_out = finished.judged_rows[HELD_OUT_ROWS]
    if (confusion := held_out.get("confusion")) is not None:
        # The error of always predicting the largest class.
        guessing = float(1.0 - confusion.sum(axis=1).max() / confusion.sum())
        if held_out["error_rate"] >= guessing:
            remedy = 'Columns in different units need `scale`="standard".'
            if finished.params.class_weight is None:
                remedy += ' For small classes, pass `class_weight`="balanced".'
            error, of_guess = (shown("error_rate", x) for x in (held_out["error_rate"], guessing))
            yield Concern(
                f"The held-out error is {error}; always predicting the largest class has an error "
                f"of {of_guess}.",
                remedy,
            )
    for rows, record in finished.judged_rows.items():
        if "confusion" not in record:
            continue
        figures = class_figures(finished.labels, record["confusion"])
        recalls = [of_class["recall"] for of_class in figures]
        if missed := _names_below("recall", finished.labels, recalls, _LOW_RECALL):
            remedy = (
                "Compare their probabilities with a lower threshold. "
                '`class_weight`="balanced" raises their recall, and often the total error.'
            )
            if not finished.run.begun.is_judged:
                remedy = f"Let a tuning choose the scale and a larger basis. {remedy}"
            yield Concern(
                f"Less than half of the {rows.lower()} of these classes are right: {missed}.",
                remedy,
            )
        counts = finished.rows_of_classes(rows)
        if small := _names_below("support", finished.labels, counts, _FEW_ROWS):
            yield Concern(
                f"Classes with fewer than {_FEW_ROWS} {rows.lower()}: {small}.",
                "The error rates of these classes are uncertain. Add rows of these classes.",
            )
    if (error := finished.fitted["fitting_error"]) > _LARGE_FITTING_ERROR:
        yield Concern(
            f"The fitting error eps is {error:.4g}: the residuals exceed the scores.",
            "Try a smaller alpha, a larger basis, or another `width_factor`.",
        )
    evaluation = finished.evaluation
    if isinstance(evaluation, Evaluation) and (unknown := evaluation.n_unknown_labels):
        yield Concern(
            f"{unknown:,} of {plural(evaluation.n_rows, 'evaluated row')} have labels "
            "that the model does not know.",
            "Rows with unknown labels count as errors. Train on rows of these classes too.",
        )


def _names_below(
    figure: str, names: Sequence[str], values: Sequence[float | None], limit: float
) -> str:
    """Return the classes or targets with a figure below a limit."""
    pairs = zip(names, values, strict=False)
    low = [
        f"{name} ({shown(figure, value)})"
        for name, value in pairs
        if value is not None and value < limit
    ]
    return shown("", low) if low else ""


def _concerns_of_numbers(finished: FinishedRun) -> Iterator[Concern]:
    assert finished.names is not None
    held_out = finished.judged_rows[HELD_OUT_ROWS].get("r2", ())
    if missed := _names_below("r2", finished.names, held_out, _NO_R2):
        yield Concern(
            f"Always predicting the mean is as good on held-out rows, by R2: {missed}.",
            'Columns in different units need `scale`="standard".',
        )
    if missed := _names_below("r2", finished.names, finished.fitted["training_r2"], _SMALL_R2):
        yield Concern(
            f"Less than half of the variance of the training rows is fitted, by R2: {missed}.",
            "Unless the rest is noise, try a smaller alpha, a larger basis, or another "
            "`width_factor`.",
        )


def _concerns_of_tuning(finished: FinishedRun) -> Iterator[Concern]:
    """Yield concerns about chosen values at the border of those that were tried."""
    begun, params = finished.run.begun, finished.params
    if not begun.is_judged:
        return
    search = finished.stages.get("search", {"curve": (), "tried": (), "finals": ()})
    # Alphas that a search has ruled out are not tried again. Those of cells are their own.
    alphas = begun.alphas if "validation" in finished.stages else ()
    factors = [
        record["width_factor"]
        for record in (*search["tried"], *search["finals"])
        if record["kernel"] == params.kernel
    ]
    for name, option, tried in (
        ("alpha", "alphas", alphas),
        ("locality", "localities", begun.localities),
        ("components", "components", begun.components),
        ("width_factor", "width_factors", factors),
    ):
        chosen, known = getattr(params, name), set(tried)
        # No alpha or locality is below 0 or above 1, and no alpha need be below the paper's.
        is_limit = name != "width_factor" and chosen in (0.0, PAPER_ALPHA, 1.0)
        if len(known) < 2 or is_limit:
            continue
        if chosen == min(known):
            side, beyond = "smallest", "smaller"
        elif chosen == max(known):
            side, beyond = "largest", "larger"
        else:
            continue
        yield Concern(
            f"`{name}`={chosen:g} is the {side} that was tried.",
            f"Give {beyond} values of `{option if begun.tunes else name}` in a new run.",
        )
    sizes = [record["n_basis"] for record in search["curve"]]
    if len(sizes) > 1 and params.basis_size == max(sizes):
        yield Concern(
            f"`basis_size`={max(sizes)} is the largest that was tried, and the loss still fell.",
            "Give a larger `basis_size` in a new run, up to the number of distinct rows. Twice as "
            "many basis rows take four times as long.",
        )
