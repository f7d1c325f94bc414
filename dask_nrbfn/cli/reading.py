"""Options that say how files are read."""

from typing import Any

import click

from dask_nrbfn.cli.options import together
from dask_nrbfn.sources.formats import NAMED_FORMATS, meanings

x_option = click.option(
    "--x",
    metavar="NAME",
    help=f"The features. {meanings('x')}.",
)

# What rows are learned with, and judged by.
target_options = together(
    click.option(
        "--y",
        metavar="NAME",
        help=f"The labels. {meanings('y')}.",
    ),
    click.option(
        "--label", metavar="COLUMN", help="Label column of a table, or variable of a scene."
    ),
    click.option(
        "--target",
        metavar="NAME",
        help='Numbers to be learned instead of labels, with "" around a name that has a comma. '
        f"{meanings('target')}.",
    ),
    click.option(
        "--weights",
        metavar="NAME",
        help="One weight above 0 per row.  [default: every row weighs the same] "
        f"{meanings('weights')}.",
    ),
    click.option(
        "--unlabelled",
        metavar="VALUE",
        help='The label of rows that have none, "" for an empty cell; of numbers what stands for '
        "none, such as nan. Such rows join the basis, scale and width of a fit.  [default: every "
        "row has its label]",
    ),
)

# Of which format a file is, and how CSV is written.
written_options = together(
    click.option(
        "--format",
        metavar="NAME",
        help=f"Format of the files to read: {', '.join(NAMED_FORMATS)}.  [default: what the suffix "
        "says; if it is unknown, what the first lines show]",
    ),
    click.option(
        "--delimiter",
        metavar="MARK",
        help="Between the cells of CSV; tab for a tab, a space for any number of blanks.  "
        "[default: what the first lines show; in doubt a comma, in .tsv a tab]",
    ),
    click.option(
        "--quote",
        metavar="MARK",
        help='Around text in CSV, " or \'.  [default: what the first lines show; in doubt "]',
    ),
    click.option("--decimal", metavar="MARK", help="Before decimals in CSV, . or ,  [default: .]"),
    click.option(
        "--encoding",
        help="Of CSV, such as latin-1.  [default: utf-8, or utf-16 where a file begins with its "
        "mark]",
    ),
    click.option(
        "--no-header",
        is_flag=True,
        help="The first line of CSV is a row; the columns are column_0, column_1 and so on.  "
        "[default: what the first lines show; in doubt it names the columns]",
    ),
    click.option(
        "--missing-values",
        metavar="MARKS",
        help="Markers of a missing value besides empty text, such as ?,-  [default: in "
        "CSV ?, NA, N/A, NaN, nan, null, NULL, None, #N/A]",
    ),
)

# Where the pixels of a scene are.
scene_options = together(
    click.option(
        "--variable",
        metavar="NAMES",
        help="Variable of a scene: Zarr, netCDF or what else xarray opens. Its pixels are rows. "
        "Of NAME,NAME each is a feature, or has one for each coordinate of --feature-dim.  "
        "[default: the only one with a --feature-dim]",
    ),
    click.option(
        "--feature-dim",
        metavar="DIMENSION",
        help="Dimension along which the features lie, such as band; several variables need none.",
    ),
)

id_option = click.option(
    "--id",
    metavar="COLUMN",
    help="What names the rows of a table and is carried along to their predictions; no feature, "
    "unless it is one of RUN.",
)

# What the columns of a table are.
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
        help="Columns of categories, though they may be numbers.  [default: columns of text, but "
        "for those in which nearly all rows differ]",
    ),
    click.option(
        "--numeric",
        metavar="COLUMNS",
        help="Columns of numbers, whatever they begin with, also with a unit or marks.",
    ),
    click.option("--date", metavar="COLUMNS", help="Columns of dates, whatever they begin with."),
    click.option(
        "--date-format",
        metavar="FORMAT",
        multiple=True,
        help="How dates are written, such as %d/%m/%Y, or COLUMN=FORMAT for one column; may be "
        "repeated.  [default: what the values show]",
    ),
    click.option(
        "--missing",
        type=click.Choice(["error", "drop", "impute"]),
        default="error",
        show_default=True,
        help="Rows without a value: refuse, leave out (without a label or target too), or fill "
        "features with the median.",
    ),
    click.option(
        "--max-categories",
        type=int,
        default=100,
        show_default=True,
        help="The most frequent categories of a column that have a feature each; the others have "
        "one together.",
    ),
    click.option(
        "--schema",
        metavar="PLACE",
        help="What the columns are: a .toml or .json file, or a dataset, run or model of such a "
        "table.  [default: what the table has]",
    ),
    click.option(
        "--write-schema",
        metavar="FILE",
        help="Write what the columns are to a .toml or .json file.",
    ),
)


_NAMES = (
    *("x", "y", "label", "target", "weights", "unlabelled", "id"),
    *("format", "delimiter", "quote", "decimal", "encoding", "no_header", "missing_values"),
)


def take_reading(options: dict[str, Any]) -> dict[str, Any]:
    """Take the reading options out of the options of a command."""
    return {name: options.pop(name) for name in _NAMES if name in options}
