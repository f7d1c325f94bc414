"""Figures on standard output, as lines or as JSON."""

import json
from collections.abc import Mapping
from typing import Any

import click

from dask_nrbfn.report.formats import schema_text

# Of every class: shown as tables, with headings, by who has them.
_TABLES = ("per_class", "confusion", "reliability")

_UNITS = (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("kiB", 2**10))


def show(figures: Mapping[str, Any], as_json: bool) -> None:
    """Print figures on standard output.

    Parameters
    ----------
    figures : mapping of str to Any
    as_json : bool
        Print one JSON object, otherwise a line for each figure.
    """
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
            click.echo(schema_text(value))
        elif isinstance(value, dict):
            for key, item in value.items():
                label = f"drift {key}" if name == "drift" else key
                click.echo(f"{label:<18} {_readable(key, item)}")
        elif value is not None and name not in _TABLES:
            click.echo(f"{name:<18} {_readable(name, value)}")


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
