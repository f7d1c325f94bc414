"""What the columns of a table are, as a table."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from dask_nrbfn.report.formats import MISSING, TextTable, number, percent, plural

# All are in JSON.
_MOST_COLUMNS = 40


def schema_table(schema: Mapping[str, Any]) -> TextTable:
    """Return what the first columns are, a row for each; the title says how many more there are."""
    shown = list(schema["columns"].items())[:_MOST_COLUMNS]
    fills = schema.get("missing") == "impute"
    rows = [_column_row(name, column, fills=fills) for name, column in shown]
    roles = {
        "label": [schema.get("label")],
        "target": schema.get("targets", []),
        "weight": [schema.get("weights")],
        "id": [schema.get("id")],
        "ignored": schema.get("ignored", [])[:_MOST_COLUMNS],
    }
    rows += [
        [name, role, *[MISSING] * 3] for role, names in roles.items() for name in names if name
    ]
    further = len(schema["columns"]) - len(shown)
    return TextTable(
        f"and {plural(further, 'column')} more" if further else "",
        ["column", "kind", "values", "missing", "filled with"],
        rows,
    )


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return `schema_table` as lines of text.

    >>> number = {"kind": "number", "fill": 3.5, "missing": 0.25}
    >>> print(schema_text({"columns": {"age": number}, "label": "y", "missing": "impute"}))
      column  kind    values  missing  filled with
      age     number       -   25.0 %          3.5
      y       label        -        -            -
    """
    table = schema_table(schema)
    return f"{table.text}\n  {table.title}" if table.title else table.text


def _column_row(name: str, column: Mapping[str, Any], *, fills: bool) -> list[str]:
    """Return name, kind, number of categories or form, share of gaps and what fills them."""
    kind, share = column["kind"], column.get("missing", 0.0)
    values, fill = column.get("written", MISSING), MISSING
    if kind == "category":
        values = f"{len(column.get('categories', []))}{' and others' * column.get('others', False)}"
    elif fills:
        value = column.get("fill", 0.0)
        day = date(1970, 1, 1) + timedelta(days=round(value)) if kind == "date" else None
        fill = number(value) if day is None else str(day)
    return [name or "(empty)", kind, values, percent(share, 1) if share else MISSING, fill]
