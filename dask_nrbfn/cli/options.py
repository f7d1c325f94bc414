"""The options of all commands: each is defined once, here or in `dask_nrbfn.params`."""

from collections.abc import Callable, Collection, Iterable, Sequence
from inspect import cleandoc
from itertools import chain
from typing import Any

import click

from dask_nrbfn.cli.job import Job
from dask_nrbfn.engine import EngineOptions
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitParams, Params, TuneParams

# Types of values that are not texts, by their placeholder.
_TYPES: dict[str, Any] = {"INTEGER": int, "N": int}
_TYPES |= {"SHARE": click.FloatRange(0, 1), "NUMBER": click.FloatRange(min=0)}

# Everything but `Params`: usage and help. Options without a value are flags. The functions that get
# the values have the defaults.
_OPTIONS: dict[str, str] = {
    # Where the parts of the rows are.
    "x NAME": "The features. Array of .npz or Zarr [default: X]; X, raw/X, layers/NAME or "
    "obsm/NAME of AnnData.",
    "y NAME": "The labels. Array of .npz [default: y] or Zarr; an .npy file or a directory of "
    "them; obs/NAME of AnnData.",
    "label COLUMN": "Label column of a table, or variable of a scene.",
    "target NAME": 'Numeric targets instead of labels: columns A,B of a table, with "" around a '
    "name that has a comma; arrays as with --y; obs/A,obs/B of AnnData; variables of a scene.",
    "weights NAME": "One weight above 0 per row: a column of a table, else as with "
    "--y.  [default: every row weighs the same]",
    "unlabelled VALUE": 'Marker of a missing label or target: "" for an empty cell, or nan for '
    "numbers. Unlabelled rows take part in the choice of basis, scale and width of a fit; update "
    "and evaluate leave them out.  [default: for ingest, every row has a label; else that of the "
    "training rows]",
    "id COLUMN": "Column with the ids of rows, which is copied to the predictions. It is not a "
    "feature, unless RUN has this feature.",
    "variable NAMES": "Variable of a scene: Zarr, netCDF or another file that xarray opens. Its "
    "pixels are rows. NAME,NAME: each variable is a feature, or has a feature for each coordinate "
    "of --feature-dim.",
    "feature_dim DIMENSIONS": "Dimension of the features, such as band; time,band: a feature for "
    "each band of each time; not needed with several variables.",
    # How a table is read.
    "sql QUERY": 'Read the rows of a query, such as "FROM source WHERE fare > 0"; source is the '
    "given file. A query of a DuckDB or SQLite file names its tables. SQLite files take the SQL "
    "of SQLite.",
    "delimiter MARK": "Delimiter of a text table.  [default: by the first lines]",
    "no_header": "The first line of a text table is a row; the columns are column0, column1, "
    "...  [default: by the first lines]",
    "missing_values MARKS": "Markers of a missing value besides empty text, such as "
    "?,-  [default: in text tables ?, NA, N/A, NaN, nan, null, NULL, None, #N/A, n/a, <NA>]",
    "columns COLUMNS": "Columns of a table that are features: COLUMN or COLUMN,COLUMN, here and "
    "below.  [default: all others]",
    "drop COLUMNS": "Columns of a table to leave out.",
    "categorical COLUMNS": "Columns of categories, also if they are numbers.  [default: columns "
    "of text, except columns in which nearly all rows differ]",
    "numeric COLUMNS": "Columns of numbers, even if the first rows are not.",
    "date COLUMNS": "Columns of dates, even if the first rows are not.",
    "missing error|drop|impute": "Rows with a missing value: error; drop, also if the label or "
    "target is missing; or impute features with the median.  [default: error]",
    "max_categories INTEGER": "Largest number of categories of a column with a feature each; all "
    "rarer categories share one feature.  [default: 100]",
    "schema SCHEMA": "Dataset, run or model whose columns the table has: their kinds and fills "
    "are taken.  [default: by the table]",
    # How a dataset is written.
    "sparse auto|yes|no": "Rows in CSR; auto: of sparse matrices, and of categories above 256 MiB, "
    "with 256 features or more, if that takes less than half as many bytes.  [default: auto]",
    "chunk_rows INTEGER": "Rows of a chunk.  [default: 16 MiB of rows]",
    "copy": "Copy rows that are in Zarr.  [default: DATASET refers to them, with a digest of "
    "every chunk]",
    "overwrite": "Replace an existing output once the new one is complete.",
    # Plans.
    f"tune {'|'.join(TuneParams.options()['effort'].choices)}": "Plan a tuning of this "
    "--effort instead of a fit.",
    "n_rows N": "Number of rows to plan for.  [default: the rows of DATASET]",
    "rates FILE": "JSON with the rates of a worker, as plan --json prints them.  [default: "
    "measured]",
    # Predictions and evaluations.
    "output OUT": "Also write the coordinates of all rows to OUT.",
    "to obs/NAME": "Instead of OUT: add the labels to ROWS, an AnnData store in Zarr, as this "
    "column, and their probabilities as obs/NAME_confidence. A regression adds numbers. With "
    "--overwrite, a job that is killed can leave the store without these columns.",
    "probabilities": "Also write the probability of every class, calibrated if RUN held out rows.",
    "scores": "Also write the score of every class. A Zarr group always has scores.",
    "keep COLUMNS": "Columns of the file, as COLUMN or COLUMN,COLUMN, or '*' for all, to copy next "
    "to the predictions in a .csv or .parquet file.",
    "skip_bad": "Read unreadable cells as missing values. A RUN of --missing impute fills them; "
    "else such rows have no prediction. For a .csv or .parquet file.  [default: an error]",
    "no_clip": "Do not clip predicted numbers to the range of the training targets.",
    "out FILE": "Where to write the page.  [default: RUN.html]",
    "dtype float64|float32": "Type of the inputs, the computation and the outputs of the "
    "file.  [default: float64]",
    "evaluate ROWS": "Evaluate the model on these rows: a dataset, or a file like the training "
    "file.",
    # Updates.
    "forget": "Remove the rows from RUN.",
    "max_error_rate SHARE": "Keep the old model, and exit with 2, if the new model has a larger "
    "error rate on the --evaluate rows. For numbers the error is 1 - R2.",
    "max_new_error NUMBER": "Keep the old model, and exit with 2, if it has a larger error rate "
    "on ROWS: their labels may be wrong. For numbers the error is 1 - R2.",
    "verify": "Read all of a dataset, and list missing or damaged chunks and values that are not "
    "finite. Exits with 2 if there are problems.",
}

READING = ("y", "target", "weights", "unlabelled", "sql")
"""How the rows that a model is used on are read, where the training rows do not say."""


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def given(*names: str) -> list[click.Option]:
    """Return options by name."""
    options = {}
    for usage, help in _OPTIONS.items():
        name, _, value = usage.partition(" ")
        details: dict[str, Any] = {"type": _TYPES.get(value, str), "metavar": value}
        if "|" in value:
            details = {"type": click.Choice(value.split("|"))}
        options[name] = {"help": help} | (details if value else {"is_flag": True})
    return [click.Option([_dashed(name)], **options[name]) for name in names]


def params(*kinds: type[Params], leave_out: Collection[str] = ()) -> list[click.Option]:
    """Return the options of parameters; the help shows no more than the names of rare ones."""
    return [
        click.Option(
            [_dashed(name)],
            type=each.parse,
            metavar=each.placeholder,
            help=f"{each.help}  [default: {each.default_text}]",
            hidden=each.rare,
        )
        for kind in kinds
        for name, each in kind.options().items()
        if name not in leave_out
    ]


ENGINE = params(EngineOptions)
"""The options of commands that run tasks."""


def command(
    arguments: Sequence[str], *options: Sequence[click.Option]
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function; its docstring is the help.

    arguments: their names; with ? at the end they may be missing, with * they may be several. The
    function gets the job, and those arguments and options that are given; every flag is.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.pass_obj
        def run(job: Job, /, **values: Any) -> None:
            values = {name: value for name, value in values.items() if value not in (None, ())}
            job.command, job.as_json = function.__name__, values.pop("as_json")
            job.options = EngineOptions(**take(values, EngineOptions.options()), bar=job.bar)
            function(job, **values)

        taken = [
            click.Argument(
                [name.rstrip("?*")],
                required=not name.endswith(("?", "*")),
                nargs=-1 if name.endswith("*") else 1,
            )
            for name in arguments
        ]
        json = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object.")
        rare = ", ".join(option.opts[0] for option in chain(*options) if option.hidden)
        return click.Command(
            function.__name__,
            callback=run,
            params=[*taken, *chain(*options), json],
            help=cleandoc(function.__doc__ or ""),
            epilog=f"Rarely needed, see the guide: {rare}." if rare else None,
        )

    return decorate


def take(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove some options of a command, and return those that it has."""
    return {name: options.pop(name) for name in names if name in options}


def fit_params(options: dict[str, Any]) -> FitParams:
    """Take the parameters of a fit out of `options`, to which a basis of a file is added."""
    values, known = take(options, FitParams.options()), FitParams.options()["basis"].choices
    source = values.get("basis", "auto")
    if source in known:
        return FitParams(**values)
    import numpy as np

    from dask_nrbfn.stages.basis import given_basis

    try:
        basis = np.load(source, allow_pickle=False)
        if not isinstance(basis, np.ndarray):
            raise ValueError("the file is an archive")  # noqa: TRY004
    except (EOFError, FileNotFoundError, ValueError) as error:
        raise ParameterError(
            f"{source} is not an .npy file of numbers.",
            f"Give one of {', '.join(known)}, or the path of an .npy file.",
        ) from error
    del values["basis"]
    options["basis"] = basis
    return given_basis(FitParams(**values), basis)
