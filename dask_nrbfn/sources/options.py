"""The options of `ingest`, each with its definition: how rows are read, and how they are stored.

This module loads no numpy, so that the help of a command starts fast.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from dask_nrbfn.params import Params, anything, count, flag, names, word

if TYPE_CHECKING:
    from dask_nrbfn.numeric.schema import Kind

MISSING_VALUES = ("?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A", "n/a", "<NA>")
"""Markers of a missing value in text tables, besides empty text."""

Names = str | Sequence[str] | None
"""Names of columns, or marks: a text with commas, or a sequence."""


def named_columns(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of an option, each of them once; in text between commas or quotes."""
    if not isinstance(given, str):
        return () if given is None else tuple(dict.fromkeys(given))
    # The csv module finds no cell in empty text.
    return tuple(dict.fromkeys(next(csv.reader([given], skipinitialspace=True)))) or ("",)


def joined_names(names: Iterable[str]) -> str:
    """Return names as one text, from which `named_columns` returns them."""
    text = StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def _name(help: str, *, none: str = "", metavar: str = "NAME") -> Any:
    return word(None, "", help, none=none, metavar=metavar)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Params):
    """How the rows of a source are read. Names that are given as text become tuples."""

    x: str | None = _name(
        "Features: an array of the file or Zarr group; of AnnData X, raw/X, layers/NAME or "
        "obsm/NAME.",
        none="X",
    )
    y: str | None = _name(
        "Labels: an array of the file or Zarr group; for .npy and sparse .npz, an .npy file or "
        "a directory of them; obs/NAME of AnnData.",
        none="the array y of an .npz file, else no labels",
    )
    label: str | None = _name("Label column of a table, or variable of a scene.", metavar="COLUMN")
    target: Names = word(
        None,
        "",
        'Numeric targets instead of labels: columns A,B of a table, with "" around a name that has '
        "a comma; arrays as with `y`; obs/A,obs/B of AnnData; variables of a scene. In Python also "
        "a sequence of names.",
        none="",
        metavar="NAME",
    )
    weights: str | None = _name(
        "One weight above 0 for each row: a column of a table, else as with `y`.",
        none="every row weighs the same",
    )
    unlabelled: str | int | float | None = anything(
        'Marker of a missing label, such as -1, or "" for an empty cell. For numeric targets, a '
        "marker such as nan that must be set for every target of a row. Unlabelled rows take part "
        "in the choice of basis, scale and width of a fit; update and evaluate leave them out.",
        none="of ingest: every row has a label; of other commands: as in the training rows",
        metavar="VALUE",
    )
    sql: str | None = _name(
        'Read the rows of a query, such as "FROM source WHERE fare > 0"; source is the given file. '
        "A query of a DuckDB or SQLite file names its tables. SQLite files take the SQL of SQLite.",
        metavar="QUERY",
    )
    delimiter: str | None = _name(
        "Delimiter of a text table. Read decimal commas by `sql` with read_csv.",
        none="by the first lines",
        metavar="MARK",
    )
    encoding: str | None = word(
        None,
        "utf-8|utf-16|latin-1",
        "Encoding of a text table.",
        none="of ingest: utf-8; of other commands: as in the training rows",
    )
    no_header: bool = flag(
        "The first line of a text table is a row; the columns are column0, column1, ... Without "
        "this option the first lines decide."
    )
    missing_values: Names = names(
        "Markers of a missing value besides empty text, such as ?,-",
        none=f"in text tables {', '.join(MISSING_VALUES)}",
        metavar="MARKS",
    )
    columns: Names = names(
        "Columns of a table that are features. Here and below, several names have commas between "
        'them, and "" around a name that has a comma; in Python also a sequence.',
        none="all others",
    )
    drop: Names = names("Columns of a table to leave out.")
    id: str | None = _name(
        "Column or Zarr array with the ids of rows, which is copied to the predictions. It is not "
        "a feature, unless the model has this feature.",
        metavar="COLUMN",
    )
    categorical: Names = names(
        "Columns of categories, also if they are numbers.",
        none="columns of text, except columns in which nearly all rows differ",
    )
    numeric: Names = names("Columns of numbers, even if the first rows are not.")
    date: Names = names("Columns of dates, even if the first rows are not.")
    missing: str = word(
        "error",
        "error|drop|impute",
        "Rows with a missing value: error; drop, also if the label, target or weight is missing; "
        "or impute numbers, booleans and dates with the median, with an indicator feature where "
        "more than 1 % of the rows lack the value.",
    )
    max_categories: int = count(
        100,
        "Largest number of categories of a column with a feature each; all rarer categories share "
        "one feature.",
    )
    # A `Schema` once a source is opened.
    schema: Any = anything(
        "Dataset, run or model whose columns the table has: their kinds and fills are taken.",
        none="by the table",
        metavar="SCHEMA",
    )
    variable: Names = names(
        "Variable of a scene: Zarr, netCDF or another file that xarray opens. Its pixels are rows, "
        "without those that lack a feature, and without training rows that lack a label unless "
        "these are marked. NAME,NAME: each variable is a feature, or has a feature for each "
        "coordinate of `feature_dim`.",
        metavar="NAMES",
    )
    feature_dim: Names = names(
        "Dimension of the features, such as band; time,band: a feature for each band of each time; "
        "not needed with several variables.",
        metavar="DIMENSIONS",
    )

    def __post_init__(self) -> None:
        if isinstance(self.target, Iterable) and not isinstance(self.target, str):
            object.__setattr__(self, "target", joined_names(self.target) or None)
        for name, option in self.options().items():
            given = getattr(self, name)
            if option.several and isinstance(given, Iterable):
                object.__setattr__(self, name, named_columns(given) or None)
        super().__post_init__()

    @property
    def label_name(self) -> str | None:
        """The label column of a table, by an option or the schema."""
        return self.label or (None if self.schema is None else self.schema.label)

    @property
    def kinds(self) -> "dict[str, Kind]":
        """The kinds of columns that options give."""
        kinds: dict[str, Kind] = dict.fromkeys(named_columns(self.categorical), "category")
        kinds |= dict.fromkeys(named_columns(self.numeric), "number")
        return kinds | dict.fromkeys(named_columns(self.date), "date")

    def marks(self, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the texts that mean a missing value, as given now or at the fit."""
        recorded = {} if self.schema is None else self.schema.written
        return tuple(self.missing_values or recorded.get("missing_values", default))


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Params):
    """How a dataset is written."""

    sparse: str = word(
        "auto",
        "auto|yes|no",
        "Store rows as sparse (CSR); auto: those of sparse matrices, and of categories above 256 "
        "MiB, with 256 features or more, if that takes less than half as many bytes.",
    )
    chunk_rows: int | None = count(None, "Rows of a chunk.", none="16 MiB of rows")
    copy: bool = flag(
        "Copy dense rows that are in Zarr. Without this option the dataset refers to them, with a "
        "digest of every chunk, unless their chunks are larger than 128 MiB."
    )
    overwrite: bool = flag("Replace an existing output once the new one is complete.")


@dataclass(frozen=True, kw_only=True)
class IngestOptions(WriteOptions, ReadOptions):
    """How the rows of a source are read, and how their dataset is written."""
