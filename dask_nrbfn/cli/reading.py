"""Options that say how files are read."""

from typing import Any

import click

from dask_nrbfn.cli.options import together

x_option = click.option(
    "--x",
    metavar="NAME",
    help="The features. Array of .npz or Zarr [default: X]; X, raw/X, layers/NAME or obsm/NAME of "
    "AnnData.",
)

# Targets and weights of the rows.
target_options = together(
    click.option(
        "--y",
        metavar="NAME",
        help="The labels. Array of .npz [default: y] or Zarr; an .npy file or a directory of them; "
        "obs/NAME of AnnData.",
    ),
    click.option(
        "--label", metavar="COLUMN", help="Label column of a table, or variable of a scene."
    ),
    click.option(
        "--target",
        metavar="NAME",
        help='Numeric targets instead of labels: columns A,B of a table, with "" around a name '
        "that has a comma; arrays as with --y; obs/A,obs/B of AnnData; variables of a scene.",
    ),
    click.option(
        "--weights",
        metavar="NAME",
        help="One weight above 0 per row: a column of a table, else as with --y.  [default: every "
        "row weighs the same]",
    ),
    click.option(
        "--unlabelled",
        metavar="VALUE",
        help='Marker of a missing label or target: "" for an empty cell, or nan for numbers. '
        "Unlabelled rows take part in the choice of basis, scale and width of a fit; update and "
        "evaluate leave them out.  [default: for ingest, every row has a label; else that of the "
        "training rows]",
    ),
)

# A query, and how text tables are written.
written_options = together(
    click.option(
        "--sql",
        metavar="QUERY",
        help='Read the rows of a query, such as "FROM source WHERE fare > 0"; source is the given '
        "file. A query of a DuckDB or SQLite file names its tables. SQLite files take the SQL of "
        "SQLite.",
    ),
    click.option(
        "--delimiter",
        metavar="MARK",
        help="Delimiter of a text table.  [default: by the first lines]",
    ),
    click.option(
        "--no-header",
        is_flag=True,
        help="The first line of a text table is a row; the columns are column0, column1, ...  "
        "[default: by the first lines]",
    ),
    click.option(
        "--missing-values",
        metavar="MARKS",
        help="Markers of a missing value besides empty text, such as ?,-  [default: in "
        "text tables ?, NA, N/A, NaN, nan, null, NULL, None, #N/A, n/a, <NA>]",
    ),
)

# Where the pixels of a scene are.
scene_options = together(
    click.option(
        "--variable",
        metavar="NAMES",
        help="Variable of a scene: Zarr, netCDF or another file that xarray opens. Its pixels are "
        "rows. NAME,NAME: each variable is a feature, or has a feature for each coordinate of "
        "--feature-dim.",
    ),
    click.option(
        "--feature-dim",
        metavar="DIMENSIONS",
        help="Dimension of the features, such as band; time,band: a feature for each band of each "
        "time; not needed with several variables.",
    ),
)

id_option = click.option(
    "--id",
    metavar="COLUMN",
    help="Column with the ids of rows, which is copied to the predictions. It is not a feature, "
    "unless RUN has this feature.",
)

# The columns of a table.
table_options = together(
    click.option(
        "--columns",
        metavar="COLUMNS",
        help="Columns of a table that are features: COLUMN or COLUMN,COLUMN, here and below.  "
        "[default: all others]",
    ),
    click.option("--drop", metavar="COLUMNS", help="Columns of a table to leave out."),
    id_option,
    click.option(
        "--categorical",
        metavar="COLUMNS",
        help="Columns of categories, also if they are numbers.  [default: columns of text, except "
        "columns in which nearly all rows differ]",
    ),
    click.option(
        "--numeric",
        metavar="COLUMNS",
        help="Columns of numbers, even if the first rows are not.",
    ),
    click.option(
        "--date", metavar="COLUMNS", help="Columns of dates, even if the first rows are not."
    ),
    click.option(
        "--missing",
        type=click.Choice(["error", "drop", "impute"]),
        default="error",
        show_default=True,
        help="Rows with a missing value: error; drop, also if the label or target is missing; or "
        "impute features with the median.",
    ),
    click.option(
        "--max-categories",
        type=int,
        default=100,
        show_default=True,
        help="Largest number of categories of a column with a feature each; all rarer categories "
        "share one feature.",
    ),
    click.option(
        "--schema",
        metavar="PLACE",
        help="Schema of the columns: a .toml or .json file, or a dataset, run or model of such a "
        "table.  [default: by the table]",
    ),
    click.option(
        "--write-schema",
        metavar="FILE",
        help="Write the schema of the columns to a .toml or .json file.",
    ),
)


_NAMES = (
    *("x", "y", "label", "target", "weights", "unlabelled", "id"),
    *("sql", "delimiter", "no_header", "missing_values"),
)


def take_reading(options: dict[str, Any]) -> dict[str, Any]:
    """Take the reading options out of the options of a command."""
    return {name: options.pop(name) for name in _NAMES if name in options}
