"""The decision of what each column of a table becomes, made from statistics of its cells."""

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dask_nrbfn.errors import Advice, DataError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources.source import Reading
from dask_nrbfn.sources.survey import MOST_TEXTS, Cells

logger = logging.getLogger(__name__)

# Name of an index column that pandas wrote to a file, as pandas or DuckDB name it when reading.
_INDEX = re.compile(r"(Unnamed: 0(\.\d+)*|column0+)?")
# Name that pandas gives to an index without a name in Parquet and Arrow.
_STORED_INDEX = re.compile(r"__index_level_\d+__")
# Share of texts that look like numbers or dates, from which a few others may be mistakes.
_MOST = 0.5
# Numbers and dates, also with a currency or a unit.
_FORMS = re.compile(
    r"[-+]?([$€£¥]\s?)?\d+([.,/:' ]\d+)*(\s?[%$€£¥]|\s[a-zA-Z]{1,3})?|\d{4}-\d\d-\d\d.*"
)
GAP = (
    "Pass `missing`='impute' to fill in missing values, or leave out every row that lacks a value, "
    "as ingest does with `missing`='drop'. In text tables, texts such as NA and None mark a "
    "missing value; pass `missing_values`='' if they are values."
)
_LABEL_GAP = (
    "Pass `unlabelled`='' to keep rows without a label ('nan' for numeric targets), and "
    "`missing`='impute' to fill in features. Or pass `missing`='drop' to leave out every row that "
    "lacks any value."
)


def decide(
    cells: Mapping[str, Cells], reading: Reading, roles: Schema, origin: str, place: str = ""
) -> Schema:
    """Return `roles` with the columns of a schema; log choices that no option made.

    cells: statistics of each column that may become a feature, in order.
    place: what log lines begin with.
    """
    columns, left_out = [], dict[str, str]()
    for name, own in cells.items():
        if reason := _reason_against(name, own, reading):
            logger.info("%s%s", place, Advice(f"{name or repr(name)} is left out: {reason}"))
            left_out[name] = reason
        else:
            columns.append(_decided(name, own, reading))
        for line in _doubts(name, own, reading) if name not in left_out or own.texts else ():
            logger.warning("%s%s", place, Advice(line))
    if not columns:
        name, reason = next(iter(left_out.items()))
        raise DataError(f"{origin} has no feature: {name} is left out: {reason}", "Add columns.")
    ignored = (*roles.ignored, *left_out)
    return replace(roles, columns=tuple(columns), ignored=ignored, missing=reading.missing)


def check_gaps(cells: Mapping[str, Cells], origin: str, schema: Schema) -> None:
    """Raise DataError if any of the columns lacks a value in some rows."""
    gaps = {name: own.n_missing for name, own in cells.items() if own.n_missing}
    if gaps:
        counts = ", ".join(f"{name!r} {count}" for name, count in gaps.items())
        of = "a column" if len(gaps) == 1 else f"{len(gaps)} columns"
        labels = {schema.label, *(schema.targets or ())}
        raise DataError(
            f"{origin} has no value in some rows of {of}: {counts}.",
            GAP if labels.isdisjoint(gaps) else _LABEL_GAP,
        )


def _reason_against(name: str, cells: Cells, reading: Reading) -> str | None:
    """Return the reason why a column does not become a feature; None if it does."""
    if not cells.n_values:
        return "it has no value in any row."
    if _INDEX.fullmatch(name) and name not in reading.columns and cells.counts_rows:
        return "it counts the rows, as an index of pandas does."
    if _STORED_INDEX.fullmatch(name) and name not in reading.columns:
        return "it is an index of pandas."
    asked = name in reading.categorical
    if cells.kind != "category" or not (cells.looks_like_id or asked):
        return None
    if asked and cells.texts is None:
        raise DataError(
            f"Column {name!r} has more than {MOST_TEXTS} different values.",
            f"Pass `drop`={name!r} to leave the column out, or write fewer categories.",
        )
    if asked:
        return None
    many = f"more than {MOST_TEXTS}" if cells.texts is None else f"{len(cells.texts)}"
    return (
        f"{many} different texts in {cells.n_values} rows look like ids or free text. Pass "
        f"`categorical`={name!r} to use them as a feature, `numeric` or `date` if they are some."
    )


def _doubts(name: str, cells: Cells, reading: Reading) -> list[str]:
    """Return warnings about a column that may be meant otherwise."""
    if name in reading.kinds:
        return []
    if cells.kind == "number" and cells.looks_like_id:
        return [
            f"{name} looks like an id: nearly all of its {cells.n_values} whole numbers differ. "
            f"The column is used as a number; leave it out (`drop`={name!r}) if it is an id."
        ]
    texts = sorted(cells.texts or ())
    formed = [text for text in texts if _FORMS.fullmatch(text)]
    if cells.kind != "category" or len(formed) < 2 or len(formed) <= _MOST * len(texts):
        return []
    others = [text for text in texts if not _FORMS.fullmatch(text)][:1]
    return [
        f"{name} is read as text: it has {formed[0]!r}, which may be a number or a date"
        + "".join(f", but also {other!r}" for other in others)
        + f". Convert the column, as \"SELECT * REPLACE (replace({name}, ',', '.')::DOUBLE AS "
        f'{name}) FROM source" or strptime does in SQL; or pass its name in `numeric` or `date`, '
        "and texts that mark missing values in `missing_values`."
    ]


def _decided(name: str, cells: Cells, reading: Reading) -> Column:
    """Return the schema's column."""
    imputes = reading.missing == "impute"
    missing = cells.n_missing / cells.n_rows if imputes else 0.0
    if cells.kind != "category":
        fill = cells.median if imputes else 0.0
        return Column(name, cells.kind, fill=fill, missing=missing, times=cells.times_vary)
    texts = cells.texts or Counter()
    by_rows = sorted(texts, key=lambda text: (-texts[text], text))
    shown = tuple(sorted(by_rows[: reading.max_categories]))
    others = len(shown) < len(by_rows)
    if others:
        logger.info(
            "%s",
            Advice(
                f"{name} has {len(by_rows)} categories: the {len(shown)} most frequent have a "
                "feature each, all others share one feature (`max_categories`)."
            ),
        )
    return Column(name, "category", shown, others=others, missing=missing)
