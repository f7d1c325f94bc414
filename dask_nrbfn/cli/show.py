"""Figures on standard output, as lines or as JSON."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from dask_nrbfn.report.formats import schema_text

# Figures of every class, which the commands print as tables with headings.
_TABLES = ("per_class", "confusion", "reliability")

_UNITS = (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("kiB", 2**10))


def show(figures: Mapping[str, Any], as_json: bool) -> None:
    """Print figures on standard output.

    as_json: print one JSON object, otherwise a line for each figure.
    """
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        if name in _LINES:
            lines = _LINES[name](value)
        elif isinstance(value, dict):
            lines = (_line(key, _readable(key, item)) for key, item in value.items())
        else:
            shown = value is not None and name not in _TABLES
            lines = [_line(name, _readable(name, value))] if shown else []
        for line in lines:
            click.echo(line)


def _line(label: str, text: str) -> str:
    return f"{label:<18} {text}"


def _version_line(record: Mapping[str, Any]) -> str:
    training_r2 = record.get("training_r2")
    r2 = "" if training_r2 is None else f", R2 {_readable('r2', training_r2)}"
    return _line(
        f"version {record['version']}",
        f"{record['action']} {record['n_rows']} rows, "
        f"fitting error {record['fitting_error']:.4f}{r2}",
    )


def _cell_line(number: int, cell: Mapping[str, Any]) -> str:
    figures = ", ".join(
        f"{name.removeprefix('n_').replace('_', ' ')} {_readable(name, value)}"
        for name, value in cell.items()
        if name != "splits"
    )
    return _line(f"cell {number}", f"{', '.join(cell['splits']) or 'all rows'}: {figures}")


_LINES: dict[str, Callable[[Any], Iterable[str]]] = {
    "stages": lambda stages: (
        _line(f"stage {name}", f"{record['seconds']:.1f} s") for name, record in stages.items()
    ),
    "versions": lambda versions: map(_version_line, versions),
    "problems": lambda problems: (_line("problem", each) for each in problems or ["none"]),
    "reasons": lambda reasons: (_line("reason", each) for each in reasons or ["none"]),
    "heaviest": lambda weights: (
        _line(f"weight of {name}", f"{weight:.4g}") for name, weight in weights.items()
    ),
    "cells": lambda cells: (_cell_line(*each) for each in enumerate(cells)),
    "schema": lambda schema: [schema_text(schema)],
}
"""The lines of figures with their own layout."""


def readable_bytes(n_bytes: int) -> str:
    """Return a size as `dask.utils.format_bytes` does, without importing dask.

    >>> readable_bytes(3 * 2**29)
    '1.50 GiB'
    """
    for unit, size in _UNITS:
        if n_bytes >= 0.9 * size:
            return f"{n_bytes / size:.2f} {unit}"
    return f"{n_bytes} B"


def _readable(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return readable_bytes(value)
    if name == "error_rate":
        return f"{100 * value:.2f} %"
    if isinstance(value, list):
        shown = ", ".join(_readable(name, item) for item in value[:20]) or "none"
        return shown if len(value) <= 20 else f"{shown}, ... ({len(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
