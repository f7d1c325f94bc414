"""The decision of what each column of a table becomes, made from statistics of its cells."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Column, Kind, Schema
from dask_nrbfn.sources.options import Roles, TableOptions
from dask_nrbfn.sources.survey import MOST_TEXTS, Cells, number_kind

# Name of an index column that pandas wrote to a file, as pandas or DuckDB name it when reading.
_INDEX = re.compile(r"(Unnamed: 0(\.\d+)*|column0+)?")
# Name that pandas gives to an index without a name in Parquet and Arrow.
_STORED_INDEX = re.compile(r"__index_level_\d+__")
# Share of texts that are numbers or dates, from which a few others may be mistakes.
_MOST = 0.5
# Texts with several numbers, a currency or a unit.
_FORMS = re.compile(r"[-+]?([$€£¥]\s?)?\d+(([.,/:' ]\d+)+\s?\w{0,3}|\s?[%$€£¥]|\s[a-zA-Z]{1,3})")


class Remedies(NamedTuple):
    """Remedies: {0} is a column, {1} an option, {2} a text in the column."""

    gap: str
    label_gap: str
    text_id: str
    number_id: str
    misspelt: str
    others: str
    forms: str


FOR_FILES = Remedies(
    "Pass `missing`='impute' to fill in missing values, or `missing`='drop' to leave out every row "
    "that lacks a value. In text tables, texts such as NA and None mark a missing value; pass "
    "`missing_values`='' if they are values.",
    "Pass `unlabelled`='' to keep rows without a label ('nan' for numeric targets), and "
    "`missing`='impute' to fill in features. Or pass `missing`='drop' to leave out every row that "
    "lacks any value.",
    "Pass `id`={0!r} to use the column as an id, or `categorical`={0!r} to use it as a feature.",
    "pass `drop`={0!r} to leave the column out, or `id`={0!r} to use it as an id.",
    "If {2!r} is a mistake, pass `{1}`={0!r} for an error that names its row; if {2!r} marks a "
    "missing value, pass it in `missing_values`. Other texts are converted with SQL.",
    " (`max_categories`)",
    "Convert them with `sql`, as \"SELECT * REPLACE (replace({0}, ',', '.')::DOUBLE AS {0}) FROM "
    'source" or with strptime.',
)
FOR_FRAMES = Remedies(
    "Fill in missing values, as networks do with `missing`='impute', or leave out rows that lack a "
    "value.",
    "Fill in missing values, or leave out rows that lack a value.",
    "Convert the column to numbers to use it as a feature.",
    "leave the column out if it is an id.",
    "If {2!r} is a mistake, correct it or make it missing, and convert the column to numbers or "
    "dates.",
    "",
    "Convert the column to numbers or dates.",
)


class Decision(NamedTuple):
    """The schema of a table, log lines about choices that no option made, and warnings."""

    schema: Schema
    lines: tuple[str, ...]
    warnings: tuple[str, ...]


def decide(
    cells: Mapping[str, Cells],
    roles: Roles,
    options: TableOptions,
    *,
    ignored: tuple[str, ...] = (),
    label_gaps: Mapping[str, int] = MappingProxyType({}),
    remedies: Remedies = FOR_FILES,
    origin: object = "the table",
) -> Decision:
    """Return the schema of a table, with lines about choices that no option made.

    cells: statistics of each column that may become a feature, by name and in order.
    ignored: further columns that the table has.
    label_gaps: number of rows without a value in the label or target columns, by name.
    """
    lines, warnings, columns, left_out = [], [], [], []
    gaps = {name: count for name, count in label_gaps.items() if count}
    for name, given in cells.items():
        kind = options.kinds.get(name) or number_kind(given) or "category"
        own = given if kind == given.kind else _read_as(given, kind)
        if name not in options.kinds:
            warnings += _other_form(name, own, remedies)
        if reason := _reason_against(name, own, options, remedies):
            lines.append(f"{name or repr(name)} is left out: {reason}")
            left_out.append(name)
        elif own.n_missing and options.missing == "error":
            gaps[name] = own.n_missing
        else:
            column, further = _decided(name, own, options, remedies)
            columns.append(column)
            lines += [*_misspelt(name, given, own, remedies), *further]
    if gaps:
        raise _gaps_error(
            gaps, remedies.label_gap if any(label_gaps.values()) else remedies.gap, origin
        )
    schema = Schema(
        tuple(columns),
        **roles._asdict(),
        id=options.id,
        ignored=(*ignored, *left_out),
        missing=options.missing,
    )
    return Decision(schema, tuple(lines), tuple(warnings))


def _read_as(cells: Cells, kind: Kind) -> Cells:
    return replace(cells, kind="category") if kind == "category" else cells.read_as(kind)


def _gaps_error(gaps: Mapping[str, int], remedy: str, origin: object) -> DataError:
    counts = ", ".join(f"{name!r} {count}" for name, count in gaps.items())
    columns = "a column" if len(gaps) == 1 else f"{len(gaps)} columns"
    return DataError(f"{origin} has no value in some rows of {columns}: {counts}.", remedy)


def _reason_against(
    name: str, cells: Cells, options: TableOptions, remedies: Remedies
) -> str | None:
    """Return the reason why a column does not become a feature; None if it does."""
    if not cells.n_values:
        return "it has no value in any row."
    if _INDEX.fullmatch(name) and name not in options.columns and cells.counts_rows:
        return "it counts the rows, as an index of pandas does."
    if _STORED_INDEX.fullmatch(name) and name not in options.columns:
        return "it is an index of pandas."
    if cells.kind != "category":
        return None
    asked = name in options.categorical
    if asked and cells.texts is None:
        raise DataError(
            f"Column {name!r} has more than {MOST_TEXTS} different values.",
            f"Pass `drop`={name!r} to leave the column out, or write fewer categories.",
        )
    if asked or not (cells.texts is None or cells.looks_like_id):
        return None
    many = f"more than {MOST_TEXTS}" if cells.texts is None else f"{len(cells.texts)}"
    return (
        f"{many} different texts in {cells.n_values} rows look like ids or free text. "
        f"{remedies.text_id.format(name)}"
    )


def _other_form(name: str, cells: Cells, remedies: Remedies) -> list[str]:
    """Return the warning about text that may be numbers or dates of another form."""
    texts = sorted(cells.texts or ())
    formed = [text for text in texts if _FORMS.fullmatch(text)]
    if cells.kind != "category" or len(formed) < 2 or len(formed) <= _MOST * len(texts):
        return []
    return [
        f"{name} has texts such as {formed[0]!r}, which may be numbers or dates of another form. "
        f"{remedies.forms.format(name)}"
    ]


def _misspelt(name: str, given: Cells, own: Cells, remedies: Remedies) -> list[str]:
    """Return the message about text that is mostly numbers or dates, with a possible mistake."""
    if given.kind != "text" or own.kind != "category" or not given.texts:
        return []
    option, noun, n_read = "numeric", "numbers", given.n_numbers
    if given.n_dates > n_read:
        option, noun, n_read = "date", "dates", given.n_dates
    if n_read <= _MOST * given.n_values:
        return []
    other = min(given.texts, key=lambda text: (any(mark.isdigit() for mark in text), text))
    mend = remedies.misspelt.format(name, option, other)
    return [
        f"{name} is read as text: {n_read} of {given.n_values} values are {noun}, but {other!r} is "
        f"not. {mend}"
    ]


def _decided(
    name: str, cells: Cells, options: TableOptions, remedies: Remedies
) -> tuple[Column, list[str]]:
    """Return the schema's column, and messages about it."""
    imputes = options.missing == "impute"
    missing = cells.n_missing / cells.n_rows if imputes else 0.0
    if cells.kind != "category":
        fill = cells.median if imputes else 0.0
        assert cells.kind != "text"
        column = Column(name, cells.kind, fill=fill, missing=missing, times=cells.times_vary)
        if cells.kind != "number" or name in options.numeric or not cells.looks_like_id:
            return column, []
        return column, [
            f"{name} looks like an id: nearly all of its {cells.n_values} whole numbers differ. "
            f"The column is used as a number; {remedies.number_id.format(name)}"
        ]
    texts = cells.texts or {}
    by_rows = sorted(texts, key=lambda text: (-texts[text], text))
    shown = tuple(sorted(by_rows[: options.max_categories]))
    others = len(shown) < len(by_rows)
    column = Column(name, "category", shown, others=others, missing=missing)
    return column, [
        f"{name} has {len(by_rows)} categories: the {len(shown)} most frequent have a feature "
        f"each, all others share one feature{remedies.others}."
    ] * others
