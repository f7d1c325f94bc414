"""The options of all commands: each is defined once, here or as a field of `Params`."""

from collections.abc import Callable, Collection, Iterable, Sequence
from inspect import cleandoc
from itertools import chain
from typing import Any

import click

from dask_nrbfn.cli.job import Job
from dask_nrbfn.engine import EngineOptions
from dask_nrbfn.errors import Advice, ParameterError
from dask_nrbfn.params import FitParams, Option, Params, TuneParams
from dask_nrbfn.sources.options import IngestOptions

# Types of values that are not texts, by their placeholder.
_TYPES: dict[str, Any] = {
    "INTEGER": int,
    "N": int,
    "SHARE": click.FloatRange(0, 1),
    "NUMBER": click.FloatRange(min=0),
}

# Everything but `Params`: usage and help. Options without a value are flags. The functions that get
# the values have the defaults.
_OPTIONS: dict[str, str] = {
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
    "interval SHARES": "Coverages such as 0.9, or 0.5,0.9: also write columns lower and upper, "
    "between which the true number of so many new rows is, or labels, a set with the true label.",
    "distance": "Also write how far each row is from the basis, as a column unlike: above 1, "
    "farther than 99.9 % of the held-out training rows.",
    "scores": "Also write the score of every class. A Zarr group always has scores.",
    "keep COLUMNS": "Columns of the file, as COLUMN or COLUMN,COLUMN, or '*' for all, to copy next "
    "to the predictions in a .csv or .parquet file.",
    "skip_bad": "Read unreadable cells as missing values. A RUN of --missing impute fills them; "
    "else such rows have no prediction. For a .csv or .parquet file.  [default: an error]",
    "importance": "Also print how much the errors rise if the values of a column are permuted, for "
    "the ten most important columns. --json has all.",
    "no_clip": "Do not clip predicted numbers to the range of the training targets.",
    "out FILE": "Where to write the page.  [default: RUN.html]",
    "dtype float64|float32": "Type of the inputs, the computation and the outputs of the "
    "file.  [default: float64]",
    "inputs columns|features": "Inputs of the file: the columns of the table, or X, the matrix of "
    "the features that are made of the columns.  [default: columns, or X if all features are "
    "columns]",
    "evaluate ROWS": "Evaluate the model on these rows: a dataset, a file like the training file, "
    "or a query.",
    # Updates.
    "forget": "Remove the rows from RUN.",
    "max_error_rate SHARE": "Keep the old model, and exit with 2, if the new model has a larger "
    "error rate on the --evaluate rows. For numbers the error is 1 - R2.",
    "max_new_error NUMBER": "Keep the old model, and exit with 2, if it has a larger error rate "
    "on ROWS: their labels may be wrong. For numbers the error is 1 - R2.",
    "verify": "Read all of a dataset, and list missing or damaged chunks and values that are not "
    "finite. Exits with 2 if there are problems.",
}

READING = ("y", "target", "weights", "unlabelled", "sql", "encoding")
"""How the rows that a model is used on are read, where the training rows do not say."""


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def params(*kinds: type[Params], leave_out: Collection[str] = ()) -> list[click.Option]:
    """Return the options of parameters; the help shows no more than the names of rare ones."""
    return [
        _option(name, each)
        for kind in kinds
        for name, each in kind.options().items()
        if name not in leave_out
    ]


def _option(name: str, definition: Option) -> click.Option:
    help = Advice(definition.help).spelled(_dashed)
    if definition.type is bool:
        return click.Option([_dashed(name)], is_flag=True, help=help)
    default = definition.default_text
    return click.Option(
        [_dashed(name)],
        type=definition.parse,
        metavar=definition.placeholder,
        help=f"{help}  [default: {default}]" if default else help,
        hidden=definition.rare,
    )


_OF_INGEST = {str(option.name): option for option in params(IngestOptions)}


def given(*names: str) -> list[click.Option]:
    """Return options by name: those of `ingest`, or of `_OPTIONS`."""
    options = dict(_OF_INGEST)
    for usage, help in _OPTIONS.items():
        name, _, value = usage.partition(" ")
        details: dict[str, Any] = {"type": _TYPES.get(value, str), "metavar": value}
        if "|" in value:
            details = {"type": click.Choice(value.split("|"))}
        elif not value:
            details = {"is_flag": True}
        options[name] = click.Option([_dashed(name)], help=help, **details)
    return [options[name] for name in names]


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
    values = take(options, FitParams.options())
    known, source = FitParams.options()["basis"].choices, values.get("basis", "auto")
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
