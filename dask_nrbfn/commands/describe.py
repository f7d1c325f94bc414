"""Descriptions of a dataset, run, model, map or predictions."""

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import NRBFNError
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.spec import Combination
from dask_nrbfn.stages import cells_record, judged_record
from dask_nrbfn.storage.chunks import fingerprint, summarize_chunk
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, attributes_of, open_group
from dask_nrbfn.storage.run import Run

if TYPE_CHECKING:
    from dask_nrbfn.storage.model import Model

_CHOSEN = (*(each.name for each in fields(Combination)), *Ridge._fields, "loss")

# Figures of the training rows.
_FITTED = (
    "n_basis", "n_kept", "width", "fitting_error", "spectral_risk", "reciprocal_condition",
    "recall", "recall_standard_error", "n_partitions",
)  # fmt: skip

# Figures of held-out rows.
_JUDGED_CLASSES = (
    "error_rate", "fold_deviation", "log_loss", "expected_calibration_error", "temperature",
    "log_slope", "biases",
)  # fmt: skip
_JUDGED_NUMBERS = ("relative_error", "fold_deviation", "r2", "rmse", "mae")

_MOST_HEAVIEST = 10


def describe(location: Location, *, verify: bool = False) -> dict[str, Any]:
    """Return the sizes and figures of the data that this package stored at `location`.

    Parameters
    ----------
    location : Location
    verify : bool
        Read every chunk of a dataset, and list its "problems". A sound dataset has none.

    Raises
    ------
    MissingDataError, DamagedDataError
        If `location` is missing, or holds other data.
    """
    kinds = "dataset" if verify else "dataset or run or model or predictions or map"
    kind = attributes_of(open_group(location, kind=kinds))["kind"].removeprefix("dask_nrbfn.")
    figures: dict[str, Any] = {}
    if kind == "dataset":
        dataset = Dataset.open(location)
        figures = describe_dataset(dataset)
        if verify:
            n_chunks = -(-dataset.n_rows // dataset.chunk_rows)
            figures |= {"n_chunks": n_chunks, "problems": problems_of(dataset)}
    elif kind == "run":
        figures = describe_run(Run.open(location))
    elif kind != "model":
        figures = _describe_results(location, kind)
    if kind == "model" or (figures.get("complete") and "n_cells" in figures):
        # Imports scipy, which the description of a dataset or another run does not need.
        from dask_nrbfn.storage.model import Model

        model = Model.load(location)
        if kind == "model":
            figures = describe_model(model)
        if model.cells is not None:
            figures["cells"] = describe_cells(model)
    return {"kind": kind, **figures}


def problems_of(dataset: Dataset) -> list[str]:
    """Return the problems that reading every chunk of a dataset finds, one line each."""
    problems, summaries = [], []
    for index in range(-(-dataset.n_rows // dataset.chunk_rows)):
        try:
            X, y, weights, _ = dataset.read_chunk(index)
            summaries.append(summarize_chunk(X, y, weights, unlabelled=dataset.unlabelled))
        except NRBFNError as error:
            problems.append(error.problem)
    found = fingerprint(dataset.X, summaries, dataset.unlabelled, dataset.schema)
    if not problems and found != dataset.fingerprint:
        targets = "targets" if dataset.of_numbers else "labels"
        problems.append(f"rows, {targets} or weights differ from those that ingest wrote.")
    return problems


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return the sizes of a dataset."""
    figures = {
        "n_rows": dataset.n_rows,
        "n_features": dataset.n_features,
        **describe_targets(dataset.n_classes, dataset.target_names),
    }
    if not dataset.of_numbers:
        figures["classes"] = dataset.classes.tolist()
        figures["class_counts"] = dataset.class_counts.tolist()
    if dataset.unlabelled is not None:
        figures["n_unlabelled"] = dataset.n_unlabelled
    figures["dtype"] = str(dataset.dtype)
    if dataset.is_sparse:
        figures["values_per_row"] = dataset.row_values
    return figures | {
        "chunk_rows": dataset.chunk_rows,
        "has_weights": dataset.sample_weights is not None,
        "fingerprint": dataset.fingerprint,
        **_schema_of(dataset.schema),
    }


def _schema_of(schema: Schema | None) -> dict[str, Any]:
    return {} if schema is None else {"schema": schema.to_dict()}


def _heaviest(weights: dict[str, float] | None) -> dict[str, Any]:
    """Return the learned weights of the first columns, which are the heaviest."""
    return {} if weights is None else {"heaviest": dict(islice(weights.items(), _MOST_HEAVIEST))}


def describe_targets(n_classes: int, target_names: Sequence[str] | None) -> dict[str, Any]:
    """Return the number of classes, or the names of numeric targets."""
    if target_names is None:
        return {"n_classes": n_classes}
    return {"target_names": list(target_names)}


def describe_run(run: Run) -> dict[str, Any]:
    """Return parameters, figures and seconds of a run; None for stages that it has not reached."""
    # Other jobs may have changed the run since it was opened.
    run = Run.open(run.location)
    attributes, stages, params = run.attributes, run.stages, run.chosen_params
    versions, cells = run.versions, cells_record(stages)
    fitted: dict[str, Any] = {}
    # Later records are of more rows.
    for name in ("neighbors", "recall", "basis", "width", "prune", "weights"):
        fitted |= stages.get(name, {})
    fitted |= cells
    if versions:
        fitted |= versions[-1]
    figures: dict[str, Any] = {"n_rows": run.n_rows_held}
    n_unlabelled = run.n_rows - run.of_labelled().n_rows
    if n_unlabelled:
        figures["n_unlabelled"] = n_unlabelled
    figures |= {
        "n_features": attributes["n_features"],
        **_schema_of(Schema.of_record(attributes["schema"])),
        **describe_targets(attributes["n_classes"], attributes["target_names"]),
        **Ridge.in_params(params)._asdict(),
    }
    if cells:
        # Each cell has its own alpha.
        figures |= {"n_cells": cells["n_cells"], "alpha": None}
    figures |= {name: fitted.get(name) for name in _FITTED}
    if run.of_numbers:
        figures["training_r2"] = fitted.get("training_r2")
    figures |= _held_out_figures(run)
    figures |= {
        "complete": bool(versions) or "model" in stages,
        "version": len(versions),
        "n_parts": run.layout.n_parts,
    }
    if params.scale == LEARNED:
        # A tuning with another scale may have left the weights that it tried.
        figures |= _heaviest(stages.get("metric", {}).get("heaviest"))
    figures["params"] = params.to_dict()
    for name in ("peak_bytes", "predicted_bytes"):
        figures[name] = max((record[name] for record in stages.values()), default=None)
    return figures | {"stages": stages, "versions": versions}


def _held_out_figures(run: Run) -> dict[str, Any]:
    """Return the figures of held-out rows, and their number; each is None if it is not known."""
    judged = judged_record(run.stages, run.versions)
    names = _JUDGED_NUMBERS if run.of_numbers else _JUDGED_CLASSES
    return {name: judged.get(name) for name in names} | {"n_judged": judged.get("n_rows")}


def describe_tuning(run: Run) -> dict[str, Any]:
    """Return the choices of a tuning, tried and chosen, and the figures of held-out classes."""
    # Imports scipy and the stages, which the description of a dataset or a run does not need.
    from dask_nrbfn.numeric.held_out import class_figures
    from dask_nrbfn.stages.refine import read_held_out_confusion

    stages, confusion = run.stages, read_held_out_confusion(run)
    search = stages.get("search", {})
    chosen = {name: getattr(run.chosen_params, name) for name in _CHOSEN}
    # Without these stages, every cell has its own penalty.
    none: dict[str, Any] = {"path": []}
    risks = {Ridge.of(entry): entry for entry in stages.get("path", none)["path"]}
    path = []
    for judged in stages.get("validation", none)["path"]:
        ridge = Ridge.of(judged)
        path.append({**judged, **risks.get(ridge, {}), **ridge._asdict()})
    per_class = None
    if confusion is not None:
        per_class = class_figures(run.read("model/classes").tolist(), confusion)
    return {
        "chosen": chosen | _held_out_figures(run),
        "tried": search.get("tried", []),
        "curve": search.get("curve", []),
        "finals": search.get("finals", []),
        "path": path,
        "losses": stages.get("refine", {}).get("tried", []),
        "per_class": per_class,
    }


def describe_cells(model: "Model") -> list[dict[str, Any]]:
    """Return the splits, such as "age <= 30.5", rows, basis rows and width of every cell."""
    cells = model.cells
    assert cells is not None
    p = model.basis.shape[1]
    names = model.feature_names or [f"column {column}" for column in range(p)]
    sizes = np.diff(cells.starts)

    @cache
    def unscaled(column: int, threshold: float) -> float:
        row = np.zeros((1, p))
        row[0, column] = threshold
        return float(model.scaling.restore(row)[0, column])

    return [
        {
            "splits": [
                f"{names[each.column]} {'>' if each.above else '<='} "
                f"{unscaled(each.column, each.threshold):.6g}"
                for each in splits
            ],
            "n_rows": int(cells.n_rows[cell]),
            "n_basis": int(sizes[cell]),
            "width": float(cells.widths[cell]),
        }
        for cell, splits in enumerate(cells.tree.splits())
    ]


def describe_model(model: "Model") -> dict[str, Any]:
    """Return the sizes and figures of a model."""
    figures = {
        "n_features": model.n_features,
        **describe_targets(len(model.classes), model.target_names),
        "n_basis": model.n_basis,
        "width": model.width,
        **Ridge.in_params(model.params)._asdict(),
    }
    if model.cells is not None:
        figures |= {"n_cells": model.n_cells, "alpha": None}
    figures |= {"fitting_error": model.fitting_error, "spectral_risk": model.spectral_risk}
    figures |= {"temperature": None, "log_slope": None, "biases": None}
    if model.calibration is not None:
        figures |= vars(model.calibration)
    if model.target_names is None:
        figures["classes"] = model.classes.tolist()
    return {
        **figures,
        **_heaviest(model.heaviest_columns),
        **_schema_of(model.schema),
        "params": model.params.to_dict(),
    }


def _describe_results(location: Location, kind: str) -> dict[str, Any]:
    """Return the sizes of predictions or a map."""
    group = open_group(location, kind=kind)
    attributes = attributes_of(group)
    sizes: dict[str, int] = {}
    for name in attributes["results"]:
        layout: Any = group[name]
        sizes |= dict(zip(layout.metadata.dimension_names, layout.shape, strict=True))
    wanted = ("classes", "target_names", "of_model")
    own = {name: attributes[name] for name in wanted if name in attributes}
    return {"results": attributes["results"], "sizes": sizes, **own}
