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

# Names that pandas gives to an index without a name: in text, where DuckDB may add the second, and
# in Parquet and Arrow.
_INDEX = re.compile(r"(Unnamed: 0(\.\d+)*|column0+)?|__index_level_\d+__")
# Texts of at least `_FEW_ROWS` rows look like ids if this share of them differs.
_FEW_ROWS, _IDS_DIFFER = 50, 0.9
# Times of day that differ by less than this share of a day, a tenth of a second, are equal.
_EQUAL_TIMES = 1e-6
# Share of texts that look like numbers or dates, from which a few others may be mistakes.
_MOST = 0.5
# Numbers and dates, also with a currency or a unit.
_FORMS = re.compile(
    r"[-+]?([$€£¥]\s?)?\d+([.,/:' ]\d+)*(\s?[%$€£¥]|\s[a-zA-Z]{1,3})?|\d{4}-\d\d-\d\d.*"
)
GAP = (
    "Pass `missing`='impute' to fill in missing features, or leave out every row that lacks a "
    "value, as ingest does with `missing`='drop'. Pass `unlabelled`='' to keep rows without a "
    "label ('nan' for numeric targets). In text tables, texts such as NA and None mark a missing "
    "value; pass `missing_values`='' if they are values."
)


def decide(cells: Mapping[str, Cells], reading: Reading, roles: Schema, origin: str) -> Schema:
    """Return `roles` with columns decided by statistics; log choices that no option made."""
    columns, left_out = [], dict[str, str]()
    for name, own in cells.items():
        if reason := _reason_against(name, own, reading):
            logger.info("%s", Advice(f"{name or repr(name)} is left out: {reason}"))
            left_out[name] = reason
        else:
            columns.append(_decided(name, own, reading))
        if doubt := _doubt(name, own, reading):
            logger.warning("%s", Advice(doubt))
    if not columns:
        name, reason = next(iter(left_out.items()))
        raise DataError(f"{origin} has no feature: {name} is left out: {reason}", "Add columns.")
    ignored = (*roles.ignored, *left_out)
    return replace(roles, columns=tuple(columns), ignored=ignored, missing=reading.missing)


def check_gaps(cells: Mapping[str, Cells], origin: str) -> None:
    """Raise DataError if any of the columns lacks a value in some rows."""
    gaps = {name: own.n_missing for name, own in cells.items() if own.n_missing}
    if gaps:
        counts = ", ".join(f"{name!r} {count}" for name, count in gaps.items())
        of = "a column" if len(gaps) == 1 else f"{len(gaps)} columns"
        raise DataError(f"{origin} has no value in some rows of {of}: {counts}.", GAP)


def _reason_against(name: str, cells: Cells, reading: Reading) -> str | None:
    """Return the reason why a column does not become a feature; None if it does."""
    if not cells.n_values:
        return "it has no value in any row."
    # An index in text counts the rows from 0 or 1.
    ends = (cells.low, cells.high - cells.n_rows + 1)
    counts = cells.kind == "number" and cells.are_whole and ends in ((0, 0), (1, 1))
    is_index = _INDEX.fullmatch(name) and (counts or name.startswith("__"))
    if is_index and name not in reading.columns:
        return "it is an index of pandas."
    if cells.kind != "category":
        return None
    if name in reading.categorical:
        if cells.texts is None:
            raise DataError(
                f"Column {name!r} has more than {MOST_TEXTS} different values.",
                f"Pass `drop`={name!r} to leave the column out, or write fewer categories.",
            )
        return None
    differ = cells.texts is None or len(cells.texts) > _IDS_DIFFER * cells.n_values
    if cells.n_rows < _FEW_ROWS or not differ:
        return None
    many = f"more than {MOST_TEXTS}" if cells.texts is None else f"{len(cells.texts)}"
    return (
        f"{many} different texts in {cells.n_values} rows look like ids or free text. Pass "
        f"`categorical`={name!r} to use them as a feature, `numeric` or `date` to convert them."
    )


def _doubt(name: str, cells: Cells, reading: Reading) -> str | None:
    """Return a warning about a text column that may be numbers or dates."""
    texts = sorted(cells.texts or ())
    formed = [text for text in texts if _FORMS.fullmatch(text)]
    if name in reading.kinds or len(formed) < 2 or len(formed) <= _MOST * len(texts):
        return None
    others = [text for text in texts if not _FORMS.fullmatch(text)][:1]
    mark = "," if formed[0].rfind(",") > formed[0].rfind(".") else "."
    digits = f"regexp_replace({name}, '[^0-9{mark}-]', '', 'g')"
    return (
        f"{name} is read as text: it has {formed[0]!r}, which may be a number or a date"
        + "".join(f", but also {other!r}" for other in others)
        + f". Convert numbers by `sql`=\"SELECT * REPLACE (replace({digits}, ',', '.')::DOUBLE AS "
        f'{name}) FROM source", and dates by strptime. Pass texts that mark missing values in '
        "`missing_values`, and the name of a column of codes in `categorical`."
    )


def _decided(name: str, cells: Cells, reading: Reading) -> Column:
    """Return the schema's column."""
    imputes = reading.missing == "impute"
    missing = cells.n_missing / cells.n_rows if imputes else 0.0
    if cells.kind != "category":
        fill = cells.median if imputes else 0.0
        vary = cells.kind == "date" and cells.times[1] - cells.times[0] > _EQUAL_TIMES
        return Column(name, cells.kind, fill=fill, missing=missing, times=vary)
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
