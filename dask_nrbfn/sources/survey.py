"""What the columns of a table are: every cell looked at once, then decided."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.bins import Bins, median
from dask_nrbfn.numeric.hashing import splitmix
from dask_nrbfn.numeric.schema import Column, Kind, Schema
from dask_nrbfn.sources.cells import encoded, kind_of, stored_values
from dask_nrbfn.sources.dtypes import NUMBER

MISSING_VALUES = ("?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A")
"""What stands in text for no value, beside nothing at all."""

# Texts of a column that are counted: some MiB of them.
_MOST_TEXTS = 2**16
# The least hashes that are kept: they tell how many numbers differ, to 1.6 %.
_MOST_HASHES = 2**12
# A column of at least so many rows looks like an id if so large a share of its values differ.
_FEW_ROWS = 50
_TEXTS_OF_IDS, _NUMBERS_OF_IDS = 0.9, 0.95
# What says of columns that they are of a kind.
_OPTIONS_OF_KINDS: dict[Kind, str] = {
    "category": "categorical",
    "number": "numeric",
    "date": "date",
    "boolean": "boolean",
}


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a person says of the columns of a table.

    Attributes
    ----------
    columns : tuple of str
        Those that become features; empty: all that are nothing else.
    drop : tuple of str
        Those that are left out.
    id : str or None
        What is carried along and names the rows.
    categorical, numeric, date, boolean : tuple of str
        Columns of that kind, whatever they look like.
    missing : {"error", "impute", "drop"}
        What becomes of rows without a value: refused, filled or left out.
    missing_values : tuple of str
        What stands in text for no value, beside nothing at all.
    max_categories : int
        The most frequent ones that have a feature of their own.

    Raises
    ------
    ParameterError
        If a column is named for two things, or a value is none that is allowed.
    """

    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    id: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    boolean: tuple[str, ...] = ()
    missing: str = "error"
    missing_values: tuple[str, ...] = MISSING_VALUES
    max_categories: int = 100

    def __post_init__(self) -> None:
        if self.missing not in ("error", "impute", "drop"):
            raise ParameterError(f"`missing` is {self.missing!r}.", "Give error, impute or drop.")
        if self.max_categories < 1:
            raise ParameterError(
                f"`max_categories` is {self.max_categories}.", "Give an integer of at least 1."
            )
        kept = {"columns": self.columns, "drop": self.drop}
        for groups in (kept, {"drop": self.drop, **self.kinds}):
            seen: dict[str, str] = {}
            for option, names in groups.items():
                for name in names:
                    if seen.setdefault(name, option) != option:
                        raise ParameterError(
                            f"`{seen[name]}` and `{option}` both name {name!r}.",
                            "Name a column for one of them.",
                        )

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The columns whose kind is said, by the option that says it."""
        return {option: getattr(self, option) for option in _OPTIONS_OF_KINDS.values()}

    def beside(self, schema: Schema) -> Self:
        """Return the options with which a table of a schema is read.

        Raises
        ------
        ParameterError
            If they say of its columns what the schema has decided.
        """
        for option in self.said:
            if option not in ("id", "missing_values"):
                raise ParameterError(
                    f"`{option}` and `schema` are both given.",
                    f"Leave `{option}` out, or decide anew without the schema.",
                )
        marks = tuple(schema.written.get("missing_values", self.missing_values))
        return self if "missing_values" in self.said else replace(self, missing_values=marks)

    def like(self, schema: Schema) -> Self:
        """Return the options that ask for the columns and kinds of a schema, and for no more."""
        of_kind: dict[str, Any] = {
            option: tuple(column.name for column in schema.columns if column.kind == kind)
            for kind, option in _OPTIONS_OF_KINDS.items()
        }
        return replace(
            self,
            columns=tuple(column.name for column in schema.columns),
            missing=schema.missing,
            id=self.id or schema.id,
            **of_kind,
        )

    @property
    def said(self) -> dict[str, Any]:
        """What is not by default."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            each.name: values[each.name]
            for each in fields(self)
            if values[each.name] != each.default
        }

    def kind(self, name: str, types: Iterable[pa.DataType]) -> Kind | None:
        """Return the kind of a column that has these types; None if there is none for it."""
        for said, option in _OPTIONS_OF_KINDS.items():
            if name in getattr(self, option):
                return said
        kinds = {kind_of(each) for each in types if not pa.types.is_null(each)}
        if kinds == {"number", "boolean"}:
            return "number"
        if None in kinds:
            return None
        return kinds.pop() if len(kinds) == 1 else "category"


class ColumnSurvey:
    """What the cells of one column are; adds over rows.

    Parameters
    ----------
    kind : {"number", "boolean", "category", "date"}
        What its cells are read as.
    fills : bool
        Whether the median will be wanted: 0.5 MiB at most, which many columns would add up.

    Attributes
    ----------
    n_rows, n_missing : int
        Rows, and those without a value.
    texts : dict or None
        Rows of each text of a category; None once there were more than 65,536.
    bins : Bins
        Rows by what is stored of a number, boolean or date; of none unless it `fills`.
    are_whole : bool
        Whether all numbers are whole.

    Notes
    -----
    The same for all divisions of the rows: counts add, bins do (`Bins`), and the least hashes of
    all rows are among the least of each of their parts (Bar-Yossef et al. 2002).

    Examples
    --------
    >>> survey = ColumnSurvey("number")
    >>> survey.add(pa.array([1, None, 3, 3]))
    >>> survey.n_rows, survey.n_missing, survey.n_different, survey.median
    (4, 1, 2, 3.0)
    """

    def __init__(self, kind: Kind, *, fills: bool = True) -> None:
        self.kind: Kind = kind
        self.fills = fills
        self.n_rows = self.n_missing = 0
        self.texts: dict[str, int] | None = {}
        self.bins = Bins.of_sorts(1)
        self.are_whole = True
        self._hashes = np.zeros(0, dtype=np.uint64)

    def add(self, values: pa.Array) -> None:
        """Add the cells of further rows, (b,) of any type that can be read as the kind.

        Raises
        ------
        CellError
            If a cell cannot.
        """
        if self.kind == "category":
            codes, texts = encoded(values)
            counts = np.bincount(codes + 1, minlength=len(texts) + 1)
            self._add_counts(len(values), counts[0])
            self._add_texts(zip(texts.to_pylist(), counts[1:].tolist(), strict=True))
        else:
            numbers = stored_values(values, Column("", self.kind))
            self.add_numbers(numbers)

    def add_numbers(self, stored: np.ndarray) -> None:
        """Add what is stored, float64 (b,), of further rows of a number, boolean or date."""
        numbers = stored[~np.isnan(stored)]
        self._add_counts(len(stored), len(stored) - len(numbers))
        if self.fills:
            self.bins += Bins.of_values(numbers, np.ones((len(numbers), 1), dtype=np.int64))
        self.are_whole = self.are_whole and bool((numbers == np.floor(numbers)).all())
        self._keep_hashes(numbers)

    def __add__(self, other: Self) -> Self:
        both = copy.copy(self)
        both.texts = None if self.texts is None else dict(self.texts)
        both._add_counts(other.n_rows, other.n_missing)
        both._add_texts(None if other.texts is None else other.texts.items())
        both.bins = self.bins + other.bins
        both.are_whole = self.are_whole and other.are_whole
        both._hashes = both._least(other._hashes)
        return both

    @property
    def n_values(self) -> int:
        """Rows that have a value."""
        return self.n_rows - self.n_missing

    @property
    def n_different(self) -> int:
        """How many different texts or whole numbers there are; of many numbers an estimate."""
        if self.kind == "category":
            return _MOST_TEXTS + 1 if self.texts is None else len(self.texts)
        if len(self._hashes) < _MOST_HASHES:
            return len(self._hashes)
        return min(self.n_values, round((_MOST_HASHES - 1) * 2.0**64 / float(self._hashes[-1])))

    @property
    def median(self) -> float:
        """Median of what is stored, of at least one value."""
        return median(self.bins)

    @property
    def looks_like_id(self) -> bool:
        """Whether nearly every row has another text, or whole number."""
        if self.kind == "category" and self.texts is None:
            return True
        share = {"category": _TEXTS_OF_IDS, "number": _NUMBERS_OF_IDS}.get(self.kind, np.inf)
        enough = self.n_values >= _FEW_ROWS and self.are_whole
        return enough and self.n_different >= share * self.n_values

    def _add_counts(self, n_rows: int, n_missing: int) -> None:
        self.n_rows += n_rows
        self.n_missing += int(n_missing)

    def _add_texts(self, counts: Iterable[tuple[str | None, int]] | None) -> None:
        if counts is None or self.texts is None:
            self.texts = None
            return
        for text, count in counts:
            if count and text is not None:
                self.texts[text] = self.texts.get(text, 0) + count
        if len(self.texts) > _MOST_TEXTS:
            self.texts = None

    def _keep_hashes(self, numbers: np.ndarray) -> None:
        if self.kind == "number" and self.are_whole:
            hashes = splitmix((numbers + 0.0).view(np.uint64))
        else:
            hashes = self._hashes[:0]
        self._hashes = self._least(hashes)

    def _least(self, hashes: np.ndarray) -> np.ndarray:
        """Return the least hashes of those held and others; none of what is no whole number."""
        if not self.are_whole:
            return hashes[:0]
        if len(self._hashes) == _MOST_HASHES:
            hashes = hashes[hashes < self._hashes[-1]]
        if not len(hashes):
            return self._hashes
        return np.unique(np.append(self._hashes, hashes))[:_MOST_HASHES]


class Roles(NamedTuple):
    """Names of the columns that are no features but used: those of `Schema`."""

    label: str | None = None
    targets: tuple[str, ...] | None = None
    weights: str | None = None


class Remedies(NamedTuple):
    """What may be done about gaps, and about a column, whose name stands for {0}."""

    gap: str
    text_id: str
    number_id: str
    misspelt: str
    others: str


FOR_FILES = Remedies(
    "Say `missing`: impute fills such cells in, drop leaves their rows out; or fill them in.",
    "Carry it along with id={0}, or take it with categorical={0}.",
    "leave it out with drop={0}, or carry it along with id={0}.",
    "numeric={0} says where it is; if it stands for no value, say so with missing_values.",
    " (max_categories)",
)
FOR_FRAMES = Remedies(
    "Fill such cells in, as networks do whose `missing` is impute, or leave their rows out.",
    "To take it, make numbers of it.",
    "leave it out if it is one.",
    "make it a number, or none, and the column one of numbers.",
    "",
)


class Decision(NamedTuple):
    """What the columns of a table are, and lines that say what was decided without being asked."""

    schema: Schema
    lines: tuple[str, ...]


def decide(
    surveys: Mapping[str, ColumnSurvey],
    roles: Roles,
    options: TableOptions,
    *,
    ignored: tuple[str, ...] = (),
    gap: Callable[[str], str] | None = None,
    remedies: Remedies = FOR_FILES,
) -> Decision:
    """Return what each column is.

    Parameters
    ----------
    surveys : mapping
        Of the columns that may become features, by name, in their order.
    roles : Roles
    options : TableOptions
    ignored : tuple of str
        Further columns that the table has.
    gap : callable, optional
        Returns what is said of the first gap of a column, such as "of rows.csv has no value in
        line 3".
    remedies : Remedies
        What can be done about what is said.

    Raises
    ------
    DataError
        If a row has no value and `missing` is "error", or a category that was asked for has too
        many values.

    Examples
    --------
    >>> survey = ColumnSurvey("category")
    >>> survey.add(pa.array(["m", "f", "m"]))
    >>> decide({"sex": survey}, Roles("y"), TableOptions()).schema.columns[0].categories
    ('f', 'm')
    """
    lines, columns, left_out = [], [], []
    for name, survey in surveys.items():
        reason = _reason_against(name, survey, options, remedies)
        if reason:
            lines.append(f"{name} is left out: {reason}")
            lines += _nearly_numbers(name, survey, remedies)
            left_out.append(name)
            continue
        if survey.n_missing and options.missing == "error":
            where = gap(name) if gap else f"has no value in {survey.n_missing} of its rows"
            raise DataError(f"Column {name!r} {where}.", remedies.gap)
        columns.append(_decided(name, survey, options))
        lines += _remarks(columns[-1], survey, options, remedies)
    schema = Schema(
        tuple(columns),
        **roles._asdict(),
        id=options.id,
        ignored=(*ignored, *left_out),
        missing=options.missing,
    )
    return Decision(schema, tuple(lines))


def gap_error(problem: str, *, decided: bool = False) -> DataError:
    """Return the error about a row without a value where there must be one.

    What becomes of gaps may have been decided before.
    """
    if decided:
        return DataError(problem, "Fill it in, or leave the row out, as `skip_bad` does.")
    return DataError(problem, FOR_FILES.gap)


def _reason_against(
    name: str, survey: ColumnSurvey, options: TableOptions, remedies: Remedies
) -> str | None:
    """Return why a column is no feature, if so."""
    if not survey.n_values:
        return "it has no value in any row."
    if survey.kind != "category":
        return None
    asked = name in options.categorical
    if asked and survey.texts is None:
        raise DataError(
            f"Column {name!r} has more than {_MOST_TEXTS} values.",
            f"Leave {name} out with `drop`, or write fewer categories.",
        )
    if asked or not survey.looks_like_id:
        return None
    many = "more than " * (survey.texts is None) + str(min(survey.n_different, _MOST_TEXTS))
    return (
        f"{many} texts in {survey.n_values} rows look like an id or free text. "
        f"{remedies.text_id.format(name)}"
    )


def _nearly_numbers(name: str, survey: ColumnSurvey, remedies: Remedies) -> list[str]:
    """Return what is said of a category of which most rows are numbers: a cell may be misspelt."""
    texts = {} if survey.texts is None else survey.texts
    others = [text for text in texts if not NUMBER.fullmatch(text)]
    n_numbers = survey.n_values - sum(texts[text] for text in others)
    if not others or n_numbers <= survey.n_values / 2:
        return []
    return [
        f"{name} is text, though {n_numbers} of {survey.n_values} values are numbers, but "
        f"{min(others)!r} is none. If that is a mistake, {remedies.misspelt.format(name)}"
    ]


def _decided(name: str, survey: ColumnSurvey, options: TableOptions) -> Column:
    imputes = options.missing == "impute"
    missing = survey.n_missing / survey.n_rows if imputes else 0.0
    if survey.texts is None or survey.kind != "category":
        fill = survey.median if imputes else 0.0
        return Column(name, survey.kind, fill=fill, missing=missing)
    by_rows = sorted(survey.texts.items(), key=lambda each: (-each[1], each[0]))
    shown = [text for text, _ in by_rows[: options.max_categories]]
    others = len(shown) < len(by_rows)
    return Column(name, "category", tuple(sorted(shown)), others=others, missing=missing)


def _remarks(
    column: Column, survey: ColumnSurvey, options: TableOptions, remedies: Remedies
) -> list[str]:
    name = column.name
    lines = [] if name in options.categorical else _nearly_numbers(name, survey, remedies)
    if column.others:
        lines.append(
            f"{name} has {survey.n_different} categories: the {len(column.categories)} most "
            f"frequent have a feature each, the others one together{remedies.others}."
        )
    if column.kind == "number" and survey.looks_like_id and name not in options.numeric:
        lines.append(
            f"{name} looks like an id: {survey.n_different} different whole numbers in "
            f"{survey.n_values} rows. It is taken as a number; {remedies.number_id.format(name)}"
        )
    return lines
