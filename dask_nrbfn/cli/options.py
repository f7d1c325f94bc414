"""The options of all commands: each is defined once, here or in `dask_nrbfn.params`."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from inspect import cleandoc
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.group import Command, Settings
from dask_nrbfn.cli.job import Job
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitParams, Option, Params, TuneParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dask_nrbfn.storage.dataset import Dataset


def _text(metavar: str, help: str) -> dict[str, Any]:
    return {"metavar": metavar, "help": help}


def _flag(help: str) -> dict[str, Any]:
    return {"is_flag": True, "help": help}


def _word(choices: Sequence[str], default: str | None, help: str) -> dict[str, Any]:
    shown = default is not None
    return {"type": click.Choice(choices), "default": default, "show_default": shown, "help": help}


def _integer(help: str, **details: Any) -> dict[str, Any]:
    return {"type": int, "help": help, **details}


# Everything but the parameters of a fit or a tuning.
_OPTIONS: dict[str, dict[str, Any]] = {
    # Where the parts of the rows are.
    "x": _text(
        "NAME",
        "The features. Array of .npz or Zarr [default: X]; X, raw/X, layers/NAME or obsm/NAME of "
        "AnnData.",
    ),
    "y": _text(
        "NAME",
        "The labels. Array of .npz [default: y] or Zarr; an .npy file or a directory of them; "
        "obs/NAME of AnnData.",
    ),
    "label": _text("COLUMN", "Label column of a table, or variable of a scene."),
    "target": _text(
        "NAME",
        'Numeric targets instead of labels: columns A,B of a table, with "" around a name that '
        "has a comma; arrays as with --y; obs/A,obs/B of AnnData; variables of a scene.",
    ),
    "weights": _text(
        "NAME",
        "One weight above 0 per row: a column of a table, else as with --y.  [default: every row "
        "weighs the same]",
    ),
    "unlabelled": _text(
        "VALUE",
        'Marker of a missing label or target: "" for an empty cell, or nan for numbers. Unlabelled '
        "rows take part in the choice of basis, scale and width of a fit; update and evaluate "
        "leave them out.  [default: for ingest, every row has a label; else that of the training "
        "rows]",
    ),
    "id": _text(
        "COLUMN",
        "Column with the ids of rows, which is copied to the predictions. It is not a feature, "
        "unless RUN has this feature.",
    ),
    "variable": _text(
        "NAMES",
        "Variable of a scene: Zarr, netCDF or another file that xarray opens. Its pixels are rows. "
        "NAME,NAME: each variable is a feature, or has a feature for each coordinate of "
        "--feature-dim.",
    ),
    "feature_dim": _text(
        "DIMENSIONS",
        "Dimension of the features, such as band; time,band: a feature for each band of each time; "
        "not needed with several variables.",
    ),
    # How a table is read.
    "sql": _text(
        "QUERY",
        'Read the rows of a query, such as "FROM source WHERE fare > 0"; source is the given file. '
        "A query of a DuckDB or SQLite file names its tables. SQLite files take the SQL of SQLite.",
    ),
    "delimiter": _text("MARK", "Delimiter of a text table.  [default: by the first lines]"),
    "no_header": _flag(
        "The first line of a text table is a row; the columns are column0, column1, ...  "
        "[default: by the first lines]"
    ),
    "missing_values": _text(
        "MARKS",
        "Markers of a missing value besides empty text, such as ?,-  [default: in text tables ?, "
        "NA, N/A, NaN, nan, null, NULL, None, #N/A, n/a, <NA>]",
    ),
    "columns": _text(
        "COLUMNS",
        "Columns of a table that are features: COLUMN or COLUMN,COLUMN, here and below.  "
        "[default: all others]",
    ),
    "drop": _text("COLUMNS", "Columns of a table to leave out."),
    "categorical": _text(
        "COLUMNS",
        "Columns of categories, also if they are numbers.  [default: columns of text, except "
        "columns in which nearly all rows differ]",
    ),
    "numeric": _text("COLUMNS", "Columns of numbers, even if the first rows are not."),
    "date": _text("COLUMNS", "Columns of dates, even if the first rows are not."),
    "missing": _word(
        ["error", "drop", "impute"],
        "error",
        "Rows with a missing value: error; drop, also if the label or target is missing; or impute "
        "features with the median.",
    ),
    "max_categories": _integer(
        "Largest number of categories of a column with a feature each; all rarer categories share "
        "one feature.",
        default=100,
        show_default=True,
    ),
    "schema": _text(
        "SCHEMA",
        "Schema of the columns, which fills missing values: a .toml or .json file, or a dataset, "
        "run or model of such a table.  [default: by the table, or that of DATASET]",
    ),
    "write_schema": _text("FILE", "Write the schema of the columns to a .toml or .json file."),
    # How a dataset is written.
    "sparse": _word(
        ["auto", "yes", "no"],
        "auto",
        "Rows in CSR; auto: of sparse matrices and features of categories, if they "
        "have 256 features or more and take less than half as many bytes.",
    ),
    "chunk_rows": _integer("Rows of a chunk.  [default: 16 MiB of rows]"),
    "copy": _flag(
        "Copy rows that are in Zarr.  [default: DATASET refers to them, with a digest of every "
        "chunk]"
    ),
    "overwrite": _flag("Replace an existing output once the new one is complete."),
    # Where the work runs.
    "scheduler": _text("ADDRESS", "A running dask scheduler."),
    "scheduler_file": _text("FILE", "The file that a dask scheduler wrote."),
    "workers": _integer(
        "Number of local worker processes; 0: run in this process  [default: 0]",
    ),
    "threads": _integer("Threads of each process  [default: all cores]"),
    "device": _word(
        ["cpu", "gpu"],
        "cpu",
        "Where blocks of rows are computed; gpu needs CuPy. The other one can continue a run.",
    ),
    "memory": _text("BYTES", "Memory limit of each process, such as 4GiB."),
    # Plans.
    "tune": _word(
        TuneParams.options()["effort"].choices,
        None,
        "Plan a tuning of this --effort instead of a fit.",
    ),
    "n_rows": _integer("Number of rows to plan for.  [default: the rows of DATASET]", metavar="N"),
    "rates": _text(
        "FILE",
        "JSON with the rates of a worker, as plan --json prints them.  [default: measured]",
    ),
    # Predictions and evaluations.
    "output": _text("OUT", "Also write the coordinates of all rows to OUT."),
    "to": _text(
        "NAME",
        "Instead of OUT: add the labels to ROWS, and their probabilities as NAME_confidence. In a "
        "Zarr group NAME is a new array; in an AnnData store or .h5ad file it is a column "
        "obs/NAME. A regression adds numbers. With --overwrite, a job that is killed can leave a "
        "Zarr AnnData store without these columns.",
    ),
    "probabilities": _flag(
        "Also write the probability of every class, calibrated if RUN was tuned."
    ),
    "scores": _flag("Also write the score of every class. A Zarr group always has scores."),
    "keep": _text(
        "COLUMNS",
        "Columns of the file, as COLUMN or COLUMN,COLUMN, to copy next to the predictions in a "
        ".csv or .parquet file.",
    ),
    "prediction_name": _text(
        "NAME",
        "Name of the predictions in a .csv or .parquet file.  [default: prediction; for numbers "
        "the names of the targets, unless --keep has one of these names]",
    ),
    "skip_bad": _flag(
        "Leave predictions empty for rows with missing or unreadable values, and log how many; "
        "for a .csv or .parquet file.  [default: an error]"
    ),
    "no_clip": _flag("Do not clip predicted numbers to the range of the training targets."),
    "out": _text("FILE", "Where to write the page.  [default: RUN.html]"),
    "dtype": _word(
        ["float64", "float32"],
        "float64",
        "Type of the inputs, the computation and the outputs of the file.",
    ),
    "evaluate": _text(
        "ROWS",
        "Evaluate the model on these rows: a dataset, or a file like the training file.",
    ),
    # Updates.
    "forget": _flag("Remove the rows from RUN."),
    "max_error_rate": {
        "type": click.FloatRange(0, 1),
        "help": "Keep the old model, and exit with 2, if the new model has a larger error rate on "
        "the --evaluate rows. For numbers the error is 1 - R2.",
    },
    "max_new_error": {
        "type": click.FloatRange(min=0),
        "help": "Keep the old model, and exit with 2, if it has a larger error rate on ROWS: their "
        "labels may be wrong. For numbers the error is the squared error over the variance. Rows "
        "count by their weights.",
    },
    "verify": _flag(
        "Read all of a dataset, and list missing or damaged chunks and values that are not finite. "
        "Exits with 2 if there are problems."
    ),
}

ENGINE = ("scheduler", "scheduler_file", "workers", "threads", "memory")
"""The options of `EngineOptions`, without the device."""

WITH_DEVICE = (*ENGINE, "device")
"""The options of commands that can use a GPU."""

READING = ("y", "target", "weights", "unlabelled", "sql")
"""How the rows that a model is used on are read, where the training rows do not say."""


def given(*names: str) -> list[click.Option]:
    """Return options by name; "json" prints one JSON object."""
    return [
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object.")
        if name == "json"
        else click.Option([_dashed(name)], **_OPTIONS[name])
        for name in names
    ]


def params(
    *kinds: type[Params], leave_out: Collection[str] = (), rare: Collection[str] = ()
) -> list[click.Option]:
    """Return the options of parameters; rare ones, those of `rare` too, are values of --set.

    leave_out: parameters of a fit that the command does not have.
    """
    named = {
        name: each
        for kind in kinds
        for name, each in kind.options().items()
        if kind is not FitParams or name not in leave_out
    }
    set_ones = {name: each for name, each in named.items() if each.rare or name in rare}
    options = [
        click.Option(
            [_dashed(name)],
            type=_Value(each),
            default=each.default,
            metavar=each.placeholder,
            help=f"{each.help}  [default: {each.default_text}]",
        )
        for name, each in named.items()
        if name not in set_ones
    ]
    setting = Settings(
        ["--set", "settings"],
        multiple=True,
        metavar="NAME=VALUE",
        callback=partial(_settings, set_ones),
        help=f"Set another parameter: {', '.join(set_ones)}. May be repeated; the guide and "
        "help(FitParams) in Python describe them.",
    )
    setting.names = tuple(set_ones)
    return [*options, setting]


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _Value(click.ParamType):
    """A value of a parameter, which the parameter itself checks."""

    name = "value"

    def __init__(self, option: Option) -> None:
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text."""
        return self._option.parse(value) if isinstance(value, str) else value


def _settings(
    options: Mapping[str, Option], ctx: click.Context, param: click.Parameter, texts: Iterable[str]
) -> dict[str, Any]:
    """Return the values of texts such as ``overlap=3`` by name."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        name = name.replace("-", "_")
        if name not in options or not separator:
            known = ", ".join(options)
            raise click.BadParameter(f"{text!r}. Give NAME=VALUE, NAME one of {known}.", ctx, param)
        if name in values:
            raise click.BadParameter(f"{name} is given twice. Give one value.", ctx, param)
        values[name] = options[name].parse(value)
    return values


def command(
    arguments: Sequence[str], *options: Sequence[click.Option], places: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a command of a function; its docstring is the help.

    arguments: their names; with ? at the end they may be missing, with * they may be several.
    places: arguments and options that name stored data, to which storage options apply.
    """

    def decorate(function: Callable[..., None]) -> Command:
        @click.pass_obj
        def run(job: Job, /, **values: Any) -> None:
            values |= values.pop("settings", {})
            values |= _located({name: values[name] for name in places}, job.storage_options)
            function(job, **values)

        taken = [
            click.Argument(
                [name.rstrip("?*")],
                required=not name.endswith(("?", "*")),
                nargs=-1 if name.endswith("*") else 1,
            )
            for name in arguments
        ]
        return Command(
            function.__name__,
            callback=run,
            params=[*taken, *chain(*options)],
            help=cleandoc(function.__doc__ or ""),
        )

    return decorate


def _located(places: Mapping[str, Any], storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the location, or locations, that arguments name."""
    named = {name: place for name, place in places.items() if place is not None}
    texts = chain.from_iterable((p,) if isinstance(p, str) else p for p in named.values())
    if storage_options and not any("://" in text for text in texts):
        raise ParameterError(
            "storage options are given without a URL.",
            "Give a URL such as s3://bucket/name, or leave --storage-option out.",
        )
    from dask_nrbfn.storage.location import locate

    return {
        name: locate(place, storage_options)
        if isinstance(place, str)
        else tuple(locate(each, storage_options) for each in place)
        for name, place in named.items()
    }


def storage_options(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """Return texts such as ``a.b=1`` as nested dictionaries."""
    options: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        *tables, key = name.split(".")
        if not separator or not all((*tables, key)):
            # The text may be a secret.
            raise click.BadParameter("Give KEY=VALUE.", ctx, param)
        table = options
        for part in tables:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise click.BadParameter(f"{part} has a value and subkeys.", ctx, param)
        try:
            table[key] = json.loads(value)
        except ValueError:
            table[key] = value
    return options


def take(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove some options of a command, and return those that it has."""
    return {name: options.pop(name) for name in names if name in options}


def fit_params(options: dict[str, Any]) -> "tuple[FitParams, NDArray[Any] | None]":
    """Take the parameters of a fit out of `options`; return them and a file's basis."""
    values, known = take(options, FitParams.options()), FitParams.options()["basis"].choices
    source = values["basis"]
    if source in known:
        return FitParams(**values), None
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
    return given_basis(FitParams(**values), basis), basis


def open_rows(dataset: Any, schema: Any = None) -> "Dataset":
    """Open a dataset; `schema` replaces its schema."""
    from dask_nrbfn.storage.dataset import Dataset

    opened = Dataset.open(dataset)
    if schema is not None:
        from dask_nrbfn.commands.schemas import load_schema

        if opened.schema is None:
            raise ParameterError(
                f"`schema` is {schema}, but {dataset} has no schema: it was made of arrays.",
                "Leave `schema` out.",
            )
        opened = opened.encoded_by(load_schema(schema))
    return opened
