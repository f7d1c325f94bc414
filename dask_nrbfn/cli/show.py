"""Figures on standard output, as lines or as JSON."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from dask_nrbfn.report.formats import TABLED, line, schema_table, shown

# Figures of an update.
_FIGURES = {
    "new_error": "error of new rows",
    "error_rate": "of test rows",
    "started": "at",
    "fitting_error": "fitting error",
    "training_r2": "R2",
}


def show(figures: Mapping[str, Any], as_json: bool) -> None:
    """Print figures on standard output, as one JSON object or as a line for each."""
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        if name in _LINES:
            lines = _LINES[name](value)
        elif isinstance(value, dict):
            lines = (line(key, item) for key, item in value.items())
        elif value is None or name in TABLED:
            continue
        else:
            lines = [line(name, value)]
        for each in lines:
            click.echo(each)


def _version_line(record: Mapping[str, Any]) -> str:
    names = [member["dataset"].rpartition("/")[2] for member in record["members"]]
    text = f"{record['action']} {record['n_rows']} rows of {shown('', names)}"
    for name, title in _FIGURES.items():
        if record.get(name) is not None:
            text += f", {title} {shown(name, record[name], digits=4)}"
    return line(f"version {record['version']}", text)


def _cell_line(number: int, cell: Mapping[str, Any]) -> str:
    figures = ", ".join(
        f"{name.removeprefix('n_').replace('_', ' ')} {shown(name, value)}"
        for name, value in cell.items()
        if name != "splits"
    )
    return line(f"cell {number}", f"{', '.join(cell['splits']) or 'all rows'}: {figures}")


def _schema_lines(schema: Mapping[str, Any]) -> list[str]:
    table = schema_table(schema)
    return [table.text, f"  {table.title}"] if table.title else [table.text]


_LINES: dict[str, Callable[[Any], Iterable[str]]] = {
    "stages": lambda stages: (
        line(f"stage {name}", f"{record['seconds']:.1f} s") for name, record in stages.items()
    ),
    "versions": lambda versions: map(_version_line, versions),
    "problems": lambda problems: (line("problem", each) for each in problems or ["none"]),
    "reasons": lambda reasons: (line("reason", each) for each in reasons or ["none"]),
    "unseen_categories": lambda unseen: (
        line(f"rows with unseen {name}", n_rows) for name, n_rows in unseen.items()
    ),
    "heaviest": lambda weights: (
        line(f"weight of {name}", f"{weight:.4g}") for name, weight in weights.items()
    ),
    "cells": lambda cells: (_cell_line(*each) for each in enumerate(cells)),
    "schema": _schema_lines,
}
"""The lines of figures with their own layout."""
