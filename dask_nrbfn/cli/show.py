"""Figures on standard output, as lines or as JSON."""

import json
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import click

from dask_nrbfn.report.formats import MISSING, columns, number, percent, plural

# Of every class: shown as tables, with headings, by who has them.
_TABLES = ("per_class", "confusion")

# Of a schema; all are in JSON.
_MOST_COLUMNS = 40

_UNITS = (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("kiB", 2**10))


def show(figures: Mapping[str, Any], as_json: bool) -> None:
    """Print figures by name."""
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        if name == "stages":
            for stage, record in value.items():
                click.echo(f"{'stage ' + stage:<18} {record['seconds']:.1f} s")
        elif name == "versions":
            for record in value:
                training_r2 = record.get("training_r2")
                r2 = "" if training_r2 is None else f", R2 {_readable('r2', training_r2)}"
                click.echo(
                    f"{'version ' + str(record['version']):<18} {record['action']} "
                    f"{record['n_rows']} rows, fitting error {record['fitting_error']:.4f}{r2}"
                )
        elif name in ("problems", "reasons"):
            for item in value or ["none"]:
                click.echo(f"{name[:-1]:<18} {item}")
        elif name == "heaviest":
            for feature, weight in value.items():
                click.echo(f"{'weight of ' + feature:<18} {weight:.4g}")
        elif name == "schema":
            click.echo(schema_table(value))
        elif isinstance(value, dict):
            for key, item in value.items():
                label = f"drift {key}" if name == "drift" else key
                click.echo(f"{label:<18} {_readable(key, item)}")
        elif value is not None and name not in _TABLES:
            click.echo(f"{name:<18} {_readable(name, value)}")


def schema_table(schema: Mapping[str, Any]) -> str:
    """Return what each column of a table is, a line for each.

    >>> number = {"kind": "number", "fill": 3.5, "missing": 0.25}
    >>> print(schema_table({"columns": {"age": number}, "label": "y", "missing": "impute"}))
      column  kind    values  missing  filled with
      age     number       -   25.0 %          3.5
      y       label        -        -            -
    """
    shown = list(schema["columns"].items())[:_MOST_COLUMNS]
    lines = [
        _column_line(name, column, fills=schema.get("missing") == "impute")
        for name, column in shown
    ]
    roles = {
        "label": [schema.get("label")],
        "target": schema.get("targets", []),
        "weight": [schema.get("weights")],
        "id": [schema.get("id")],
        "ignored": schema.get("ignored", [])[:_MOST_COLUMNS],
    }
    lines += [
        [name, role, *[MISSING] * 3] for role, names in roles.items() for name in names if name
    ]
    header = ["column", "kind", "values", "missing", "filled with"]
    table, further = columns(header, lines, [False] * len(lines)), len(schema["columns"])
    further -= len(shown)
    return table if not further else f"{table}\n  and {plural(further, 'column')} more"


def _column_line(name: str, column: Mapping[str, Any], *, fills: bool) -> list[str]:
    """Return name, kind, number of categories, share of gaps and what fills them."""
    kind, share = column["kind"], column.get("missing", 0.0)
    values, fill = MISSING, MISSING
    if kind == "category":
        values = f"{len(column.get('categories', []))}{' and others' * column.get('others', False)}"
    elif fills:
        value = column.get("fill", 0.0)
        day = date(1970, 1, 1) + timedelta(days=round(value)) if kind == "date" else None
        fill = number(value) if day is None else str(day)
    return [name or "(empty)", kind, values, percent(share, 1) if share else MISSING, fill]


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
