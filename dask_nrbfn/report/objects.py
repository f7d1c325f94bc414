"""Text about an open dataset, run or model for consoles, from metadata."""

from collections.abc import Mapping
from typing import Any

from dask.utils import format_bytes

from dask_nrbfn.commands.describe import dataset_figures, describe_model, run_figures
from dask_nrbfn.errors import plural
from dask_nrbfn.report.formats import (
    decimals,
    listed,
    number,
    percent,
    seconds,
    target_names_text,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

_WIDTH = 100


def represent(shown: Any) -> str:
    """Return up to three lines of text about a dataset, run or model."""
    if isinstance(shown, Dataset):
        size, facts = _of_dataset(shown)
    elif isinstance(shown, Run):
        size, facts = _of_run(shown)
    else:
        size, facts = _of_model(describe_model(shown))
    lines = [_cut(f"<dask_nrbfn.{type(shown).__name__}> {size}"), _cut(f"  {', '.join(facts)}")]
    if place := str(getattr(shown, "location", "")):
        # The end of a path is the most informative part.
        kept = _WIDTH - len("  ...")
        lines.append(f"  {place}" if len(place) <= kept else f"  ...{place[-kept:]}")
    return "\n".join(lines)


def _cut(line: str) -> str:
    """Return a line that fits a console; names of targets may have any characters."""
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def _of_dataset(dataset: Dataset) -> tuple[str, list[str]]:
    n_chunks = -(-dataset.n_rows // dataset.chunk_rows)
    chunks = f"{plural(n_chunks, 'chunk')} of {plural(dataset.chunk_rows, 'row')}"
    size = f"{format_bytes(round(dataset.n_rows * dataset.row_bytes))} in {chunks}"
    return _rows(dataset_figures(dataset)), [
        str(dataset.dtype),
        *(["sparse"] * dataset.is_sparse),
        size,
    ]


def _of_run(run: Run) -> tuple[str, list[str]]:
    figures = run_figures(run)
    records, n_basis = figures["stages"], figures["n_kept"] or figures["n_basis"]
    state = "finished" if figures["complete"] else f"not finished, {plural(len(records), 'stage')}"
    if figures["versions"]:
        state = f"version {figures['version']}"
    error, r2 = figures.get("error_rate"), figures.get("r2")
    return _rows(figures), [
        state,
        *([] if n_basis is None else [f"basis of {plural(n_basis, 'row')}"]),
        *([] if error is None else [f"held-out error {percent(error)}"]),
        *([] if r2 is None else [f"held-out R2 {listed([*map(decimals, r2)])}"]),
        seconds(sum(record["seconds"] for record in records.values())),
    ]


def _of_model(figures: Mapping[str, Any]) -> tuple[str, list[str]]:
    alpha = figures["alpha"]
    return _size(figures), [
        f"basis of {plural(figures['n_basis'], 'row')}",
        f"width {number(figures['width'])}, {figures['params']['kernel']}",
        figures["penalty"] + ("" if alpha is None else f", alpha {alpha:g}"),
    ]


def _rows(figures: Mapping[str, Any]) -> str:
    n_unlabelled = figures.get("n_unlabelled")
    unlabelled = f", {plural(n_unlabelled, 'row')} without a label" if n_unlabelled else ""
    return f"{plural(figures['n_rows'], 'row')} x {_size(figures)}{unlabelled}"


def _size(figures: Mapping[str, Any]) -> str:
    names, n_classes = figures.get("target_names"), figures.get("n_classes")
    # An embedding learns no targets, so its model has none.
    targets = plural(n_classes, "class") if n_classes else "no targets"
    if names is not None:
        targets = target_names_text(names)
    return f"{plural(figures['n_features'], 'feature')}, {targets}"
