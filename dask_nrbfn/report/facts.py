"""Everything a report says about a finished run, in sections: what decides stands first.

The text of `fit` and `tune` and the page of `report` are made of these sections. Figures have the
names that `inspect` and `--json` use.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.commands.describe import describe_cells, describe_run, describe_tuning
from dask_nrbfn.commands.evaluate import Evaluation
from dask_nrbfn.errors import Advice, NRBFNError, plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.params import PAPER_ALPHA, FitParams
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import Concern, Section, Table, schema_table, shown
from dask_nrbfn.stages.bases import with_neighbors
from dask_nrbfn.stages.basis import codes_of_places, name_rows
from dask_nrbfn.stages.cells import ERRORS
from dask_nrbfn.stages.model import read_model
from dask_nrbfn.stages.refine import guess_as_good
from dask_nrbfn.storage.dataset import Dataset

_RESULT = (
    *("error_rate", "relative_error", "fold_deviation", "r2", "rmse", "mae", "training_r2"),
    *("expected_calibration_error", "log_loss", "n_judged", "seconds", "n_basis"),
)
_METHOD = ("fitting_error", "spectral_risk", "temperature", "recall")
_NETWORK = (
    *("run", "dataset", "n_rows", "n_unlabelled", "n_features", "n_classes", "target_names"),
    *("n_cells", "n_kept", "width", "alpha", "penalty", "locality", "components"),
    *("n_partitions", "version", "scale", "basis", "features", "kernel"),
    *("width_factor", "loss", "class_weight", "confidence_threshold", "n_neighbors", "options"),
)
_TABLED = {"classes", "per_class", "confusion", "reliability", "target_names"}
_COST = ("seconds", "peak_bytes", "predicted_bytes", "n_workers", "threads", "memory_bytes")

# With more classes, the confusion is not drawn, and only the worst classes are listed; the label of
# rows whose class the model does not know.
MOST_CLASSES, UNKNOWN = 30, "(unknown)"

# Combinations of one kind differ in the basis and its width.
KIND = ("scale", "features", "kernel")

# Figures by which a tuning compares; each record has some.
_COMPARED = ("error_rate", "relative_error", "behind_best", "r2", "log_loss")
Record = dict[str, Any]  # parameters that were tried, and their figures

# Number of confusions, and of the worst cells and rows.
_MOST_PAIRS, _MOST_CELLS, _MOST_UNSURE = 20, 10, 50

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
        **finished.attributes["environment"],
        **describe_run(finished.run),
        "run": str(finished.run.location),
        "dataset": [member["dataset"] for member in finished.attributes["members"]],
        "options": as_options(finished),
        "seconds": sum(record["seconds"] for record in finished.stages.values()),
    }
    evaluated = {} if finished.evaluation is None else finished.evaluation.figures()
    names = sorted(evaluated.keys() - _TABLED, key=[*_RESULT, *evaluated].index)

    def some(names: Sequence[str]) -> dict[str, Any]:
        return {name: figures[name] for name in names if figures.get(name) is not None}

    return [
        Section("Result", some(_RESULT)),
        Section("Evaluation", {k: evaluated[k] for k in names if evaluated[k] is not None}),
        Section("Confused classes", tables=[each[0] for each in confused(finished).values()]),
        Section("What to do next", concerns=find_concerns(finished, spell)),
        Section("Data and network", some(_NETWORK)),
        Section("Time and memory", some(_COST[1:])),
        Section("For the method", some(_METHOD)),
    ]


def details(finished: FinishedRun) -> list[Section]:
    """Return the tables about targets, tuning, confidence, columns, cells and stages."""
    schema, stages = finished.attributes["schema"], finished.stages.items()
    costs = [{"stage": stage} | {name: each[name] for name in _COST[:3]} for stage, each in stages]
    found: dict[str, Sequence[Table]] = {
        "Classes": [table for each in confused(finished).values() for table in each[1:]],
        "Probabilities": [],
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
    unset |= dict.fromkeys(("scale", "basis", "features"))
    chooses = run.begun.is_judged and params.loss == FitParams.loss and params.prune is None
    unset |= {"alpha": params.alpha} if chooses else {}
    given = ((n, v) for n, v in params.to_dict().items() if v not in (None, unset[n]))
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given)


def confused(finished: FinishedRun) -> dict[str, list[Table]]:
    """Return the tables of held-out and of evaluated rows by the name of the rows."""
    return {
        rows: confusion_tables(rows, finished.labels, record["confusion"])
        for rows, record in finished.judged_rows.items()
        if "confusion" in record
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
    columns: dict[str, Any] = {
        "target": finished.names or [],
        "training r2": finished.fitted.get("training_r2"),
    }
    for which, record in finished.judged_rows.items():
        if "r2" in record:
            columns |= {f"{which.lower()}: {key}": record[key] for key in ("r2", "rmse", "mae")}
    return [_of_columns("Each target", columns)] if len(columns["target"]) > 1 else []


def _of_columns(title: str, columns: Mapping[str, Any]) -> Table:
    rows = zip(*columns.values(), strict=True)
    return Table(title, [dict(zip(columns, row, strict=True)) for row in rows])


def tuning_tables(finished: FinishedRun) -> list[Table]:
    """Return the combinations, basis sizes, penalties and losses that were tried."""
    run, params = finished.run, finished.params
    if not run.begun.is_judged:
        return []
    tuned, search, found = describe_tuning(run), finished.stages.get("search", {}), []
    for key, what in (("tried", "tried"), ("finals", "compared")):
        if records := _ranked(finished, tuned[key]):
            first, title = records[0], f"{plural(len(records), 'combination')} {what} on "
            title += f"{plural(first['n_rows'], 'row')} with a basis of {first['n_basis']:,}"
            names, chosen = [*search["chosen"], "alpha"], search["chosen"]
            if key == "tried":
                title += f", in {shown('seconds', search['seconds'])}; the best of each kind"
                title += f"; ended: {search['stopped']}" if "stopped" in search else ""
                kinds = {tuple(each[name] for name in KIND): each for each in records[::-1]}
                records = sorted(kinds.values(), key=records.index)
                names = [*KIND, "basis", "width_factor", "n_rows", "n_basis"]
                chosen = {name: chosen[name] for name in KIND}
            elif "linear" in search:
                title += f"; linear model: {shown(finished.criterion, search['linear'], 4)}"
            found.append(_tried(title, records, names, chosen))
    if len(curve := tuned["curve"]) > 1:
        chosen = {"basis": params.basis, "n_basis": params.basis_size}
        title = "By size of the basis. The smallest size with errors close to the best is chosen. "
        title += "Of close sizes up to 256 rows, the one with the smallest error is chosen"
        found.append(_tried(title, curve, chosen, chosen))
    if path := tuned["path"]:
        folds = plural(run.begun.n_held_out, "fold")
        how = "a validation dataset" if run.begun.validation else folds
        alphas = plural(len({each["alpha"] for each in path}), "alpha")
        n_rows = plural(finished.stages["validation"]["n_rows"], "held-out row")
        title, names = f"{alphas} compared on {n_rows}, {how}", [*Ridge._fields]
        found.append(_tried(title, path, names, Ridge.in_params(params)._asdict()))
    if losses := tuned["losses"]:
        title = f"{plural(len(losses), 'loss')} compared on the same rows"
        names = ["loss", "n_passes", "taken", "stopped"]
        found.append(_tried(title, losses, names, {"loss": params.loss}))
    return found


def _tried(title: str, records: list[Record], names: Iterable[str], chosen: Record) -> Table:
    """Return the names that vary among records, and figures of held-out rows; mark the chosen."""
    varied = [n for n in names if n == "alpha" or len({each.get(n) for each in records}) > 1]
    rows = [{n: each[n] for n in (*varied, *_COMPARED) if n in each} for each in records]
    marked = [all(each[n] == chosen[n] for n in chosen.keys() & each) for each in records]
    return Table(title, rows, marked)


def _ranked(finished: FinishedRun, records: list[Record]) -> list[Record]:
    """Return combinations of the last round first; "behind_best" compares those of its round."""
    error, sizes = finished.criterion, finished.stages.get("search", {}).get("rounds", [])
    found = [sizes[each.get("round", -1)] | each for each in records]
    found.sort(key=lambda each: (each[error] is None, each[error], each.get("log_loss") or 0.0))
    found.sort(key=lambda each: -each.get("round", 0))
    for own in found:
        same = own[error] is not None and own.get("round") == found[0].get("round")
        own["behind_best"] = shown(error, round(own[error] - found[0][error], 6)) if same else None
    return found


def confidence_tables(finished: FinishedRun) -> list[Table]:
    """Return the least confident rows."""
    if (values := finished.confidences) is None:
        return []
    run, attributes = with_neighbors(finished.run), finished.attributes
    places = np.argsort(values, kind="stable")[:_MOST_UNSURE]
    rows, ids = name_rows(run, places), {}
    with suppress(NRBFNError):
        dataset = Dataset.open(attributes["dataset"])
        if dataset.ids is not None and dataset.fingerprint == attributes["fingerprint"]:
            ids = {"id": np.asarray(dataset.ids.oindex[rows]).tolist()}
    columns = {"row": rows.tolist(), **ids} | {
        "label": [finished.labels[code] for code in codes_of_places(run, places)],
        "confidence": values[places].tolist(),
    }
    return [_of_columns("The least confident rows, counted from 0; look for wrong labels", columns)]


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
    judged = _of_classes(finished) if finished.names is None else _of_numbers(finished)
    found = [*_of_versions(finished), *judged, *_of_tuning(finished)]
    return [Concern(*(Advice(text).spelled(spell) for text in each)) for each in found]


def _of_versions(finished: FinishedRun) -> Iterator[Concern]:
    if finished.versions:
        remedy = "The tables of the tuning and of the cells describe the fit."
        yield Concern(f"{plural(len(finished.versions), 'update')} came after the fit.", remedy)
    if finished.versions and finished.versions[-1]["refresh_due"]:
        reasons = {reason: None for each in finished.versions for reason in each["reasons"]}
        yield Concern(f"A refresh is due: {'; '.join(reasons)}.", "Run dask-nrbfn refresh.")


def _of_classes(finished: FinishedRun) -> Iterator[Concern]:
    balanced = finished.params.class_weight is not None
    tuned = finished.run.begun.is_judged
    tunes = "" if tuned else "Let a tuning choose the scale and a larger basis. "
    if (guess := guess_as_good(finished.run)) is not None:
        error, guessing = (shown("error_rate", each) for each in guess)
        small = ' For small classes, pass `class_weight`="balanced".'
        yield Concern(
            f"The held-out error is {error}; always predicting the largest class has an error of "
            f"{guessing}.",
            f'Columns in different units need `scale`="standard".{"" if balanced else small}',
        )
    for rows, record in finished.judged_rows.items():
        if "confusion" not in record:
            continue
        figures = class_figures(finished.labels, record["confusion"])
        recalls, supports = ([each[name] for each in figures] for name in ("recall", "support"))
        if missed := _below("recall", finished.labels, recalls, _LOW_RECALL):
            yield Concern(
                f"Less than half of the {rows.lower()} of these classes are right: {missed}.",
                f'{tunes}`class_weight`="balanced" raises their recall, and often the total error.',
            )
        is_weighted = record.get("total_weight") is not None
        if not is_weighted and (small := _below("support", finished.labels, supports, _FEW_ROWS)):
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


def _below(figure: str, names: Sequence[str], values: Sequence[float | None], limit: float) -> str:
    """Return the classes or targets with a figure below a limit."""
    pairs = zip(names, values, strict=False)
    low = [(name, value) for name, value in pairs if value is not None and value < limit]
    return shown("", [f"{name} ({shown(figure, value)})" for name, value in low]) if low else ""


def _of_numbers(finished: FinishedRun) -> Iterator[Concern]:
    assert finished.names is not None
    held_out = finished.judged_rows["Held-out rows"].get("r2", ())
    if missed := _below("r2", finished.names, held_out, _NO_R2):
        yield Concern(
            f"Always predicting the mean is as good on held-out rows, by R2: {missed}.",
            'Columns in different units need `scale`="standard".',
        )
    if missed := _below("r2", finished.names, finished.fitted["training_r2"], _SMALL_R2):
        yield Concern(
            f"Less than half of the variance of the training rows is fitted, by R2: {missed}.",
            "Unless the rest is noise, try a smaller alpha, a larger basis, or another "
            "`width_factor`.",
        )


def _of_tuning(finished: FinishedRun) -> Iterator[Concern]:
    """Yield concerns about chosen values at the border of those that were tried."""
    begun, params = finished.run.begun, finished.params
    if not begun.is_judged:
        return
    search = finished.stages.get("search", {"curve": (), "tried": (), "finals": ()})
    records = [*search["tried"], *search["finals"]]
    factors = [r["width_factor"] for r in records if r["kernel"] == params.kernel]
    for name, option, tried in (
        # After a search only some of the alphas are tried with the whole basis, and of cells none.
        ("alpha", "alphas", [entry["alpha"] for entry in describe_tuning(finished.run)["path"]]),
        ("locality", "localities", begun.localities),
        ("components", "components", begun.components),
        ("width_factor", "width_factors", factors),
    ):
        chosen, known = getattr(params, name), {*tried}
        # No alpha or locality is below 0 or above 1, and no alpha need be below the paper's.
        limited = name != "width_factor" and chosen in (0.0, PAPER_ALPHA, 1.0)
        if len(known) < 2 or limited or chosen not in (min(known), max(known)):
            continue
        side, beyond = ("smallest", "smaller") if chosen == min(known) else ("largest", "larger")
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
