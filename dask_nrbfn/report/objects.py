"""Text and HTML about a dataset, a run or a model for consoles and notebooks, from metadata."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dask.utils import format_bytes

from dask_nrbfn.commands.describe import dataset_figures, describe_model, run_figures
from dask_nrbfn.errors import plural
from dask_nrbfn.report import formats
from dask_nrbfn.report.formats import TextTable, count, decimals, listed, number, seconds
from dask_nrbfn.report.templates import template_named
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

_TEMPLATE = "object.html.jinja"
_WIDTH = 100

# Number of classes that are listed; JSON has all.
_MOST_CLASSES = 20


class Summary(NamedTuple):
    """The size, the main facts in a line, all other facts by name, and tables by title."""

    size: str
    short: list[str]
    facts: dict[str, str]
    tables: dict[str, TextTable]


def represent(shown: Any, *, as_html: bool = False, **figures: Any) -> str:
    """Return up to three lines of text about an object, or HTML with tables that can be opened.

    Parameters
    ----------
    shown : Dataset, Run or Model
    as_html : bool
    **figures
        Further figures of a model, by the names of `describe`.

    Returns
    -------
    str
    """
    if isinstance(shown, Dataset):
        summary = _of_dataset(shown)
    elif isinstance(shown, Run):
        summary = _of_run(shown)
    else:
        summary = _of_model({**describe_model(shown), **figures})
    kind, place = f"dask_nrbfn.{type(shown).__name__}", str(getattr(shown, "location", ""))
    if as_html:
        return template_named(_TEMPLATE).render(kind=kind, place=place, **summary._asdict())
    lines = [_cut(f"<{kind}> {summary.size}"), _cut(f"  {', '.join(summary.short)}")]
    if place:
        # The end of a path is the most informative part.
        kept = _WIDTH - len("  ...")
        lines.append(f"  {place}" if len(place) <= kept else f"  ...{place[-kept:]}")
    return "\n".join(lines)


def _cut(line: str) -> str:
    """Return a line that fits a console; names of targets may have any characters."""
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def _of_dataset(dataset: Dataset) -> Summary:
    figures, chunk_rows = dataset_figures(dataset), dataset.chunk_rows
    chunks = f"{plural(-(-dataset.n_rows // chunk_rows), 'chunk')} of {plural(chunk_rows, 'row')}"
    all_bytes, chunk_bytes = (
        format_bytes(round(n_rows * dataset.row_bytes)) for n_rows in (dataset.n_rows, chunk_rows)
    )
    sparse = f"sparse, {count(dataset.row_values)} values per row"
    facts = {
        "features": f"{dataset.dtype}, {sparse if dataset.is_sparse else 'dense'}",
        "size": f"{all_bytes} in memory",
        "chunks": f"{chunks}, {chunk_bytes} each",
        "row weights": "their own" if dataset.has_weights else "none",
    }
    short = [str(dataset.dtype), *(["sparse"] * dataset.is_sparse), f"{all_bytes} in {chunks}"]
    return Summary(_rows(figures), short, facts, _classes(figures) | _columns(figures))


def _of_run(run: Run) -> Summary:
    figures = run_figures(run)
    records = figures["stages"]
    state = "finished" if figures["complete"] else f"not finished, {plural(len(records), 'stage')}"
    if figures["versions"]:
        state = f"version {figures['version']}"
    network, judged = _network(figures), _judged(figures)
    time = seconds(sum(record["seconds"] for record in records.values()))
    short = [
        state,
        *([f"basis of {network['basis']}"] if "basis" in network else []),
        *(f"{name} {value}" for name, value in judged.items()),
        time,
    ]
    facts = {"state": state, **network, **judged, "time": time}
    rows = [
        [name, seconds(record["seconds"]), format_bytes(peak) if peak else formats.NO_NUMBER]
        for name, record in records.items()
        for peak in [record["peak_bytes"]]
    ]
    stages = TextTable("", ["stage", "time", "peak memory"], rows)
    return Summary(_rows(figures), short, facts, {"Stages": stages} | _columns(figures))


def _of_model(figures: dict[str, Any]) -> Summary:
    network = _network(figures)
    short = [f"basis of {network['basis']}", f"width {network['width']}", network["penalty"]]
    facts = network | _judged(figures)
    return Summary(_size(figures), short, facts, _classes(figures) | _columns(figures))


def _rows(figures: Mapping[str, Any]) -> str:
    n_unlabelled = figures.get("n_unlabelled")
    unlabelled = f", {plural(n_unlabelled, 'row')} without a label" if n_unlabelled else ""
    return f"{plural(figures['n_rows'], 'row')} x {_size(figures)}{unlabelled}"


def _size(figures: Mapping[str, Any]) -> str:
    names, n_classes = figures.get("target_names"), figures.get("n_classes")
    # An embedding learns no targets, so its model has none.
    targets = plural(n_classes, "class") if n_classes else "no targets"
    if names is not None:
        targets = f"target{'' if len(names) == 1 else 's'} {listed(names)}"
    return f"{plural(figures['n_features'], 'feature')}, {targets}"


def _network(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a network that are known."""
    n_basis, n_kept = figures["n_basis"], figures.get("n_kept")
    kernel, eps = figures["params"]["kernel"], figures["fitting_error"]
    alpha = figures["alpha"]
    return {
        **({} if n_basis is None else {"basis": plural(n_kept or n_basis, "row")}),
        **({} if (width := figures["width"]) is None else {"width": f"{number(width)}, {kernel}"}),
        **({"cells": count(figures["n_cells"])} if "n_cells" in figures else {}),
        "penalty": figures["penalty"] + ("" if alpha is None else f", alpha {alpha:g}"),
        **({} if eps is None else {"fitting error": f"eps {number(eps)}"}),
    }


def _judged(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the error, or R2, of held-out rows; empty without a tuning."""
    error, r2 = figures.get("error_rate"), figures.get("r2")
    return {
        **({} if error is None else {"held-out error": formats.percent(error)}),
        **({} if r2 is None else {"held-out R2": listed([*map(decimals, r2)])}),
    }


def _classes(figures: Mapping[str, Any]) -> dict[str, TextTable]:
    labels = formats.label_texts(figures.get("classes", []))
    if not labels:
        return {}
    columns = {"class": labels}
    if "class_counts" in figures:
        columns["rows"] = [*map(count, figures["class_counts"])]
    rows = [list(row) for row in zip(*columns.values(), strict=True)][:_MOST_CLASSES]
    further = f"and {count(len(labels) - len(rows))} more" if len(rows) < len(labels) else ""
    return {"Classes": TextTable(further, list(columns), rows)}


def _columns(figures: Mapping[str, Any]) -> dict[str, TextTable]:
    return {"Columns": formats.schema_table(figures["schema"])} if "schema" in figures else {}
