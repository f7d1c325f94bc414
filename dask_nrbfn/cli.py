"""The command line: ``dask-nrbfn``, ``python -m dask_nrbfn`` and ``dask nrbfn``."""

import errno
import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import reduce, wraps
from pathlib import Path
from typing import Any

import click
import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.errors import NRBFNError, ParameterError
from dask_nrbfn.params import (
    BASES,
    BASIS_RULES,
    FEATURES,
    KERNELS,
    NEIGHBOR_METHODS,
    SCALES,
    FitParams,
    TuneParams,
)
from dask_nrbfn.report import run_table, tuning_table, write_report
from dask_nrbfn.stages.check import check_dataset
from dask_nrbfn.stages.describe import (
    describe,
    describe_dataset,
    describe_model,
    describe_run,
    describe_tuning,
)
from dask_nrbfn.stages.fit import MIN_RECALL, fit_dataset, given_basis, tune_dataset
from dask_nrbfn.stages.ingest import ingest_file
from dask_nrbfn.stages.plan import describe_plan, plan_on_options, plan_table
from dask_nrbfn.stages.predict import evaluate_dataset, predict_dataset
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import locate
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run

# What the user can mend, as the README promises; 1 is anything else.
EXIT_MENDABLE = 2


class _Commands(click.Group):
    """Says what went wrong and how to mend it in two lines, and exits with 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NRBFNError as error:
            _exit_mendable(ctx, error.problem, error.remedy)
        except OSError as error:
            remedy = "Check the path, what is there, and its permissions."
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                remedy = "Free some space, or write elsewhere; what was finished is kept."
            _exit_mendable(ctx, f"{error}.", remedy)


def _exit_mendable(ctx: click.Context, problem: str, remedy: str) -> None:
    click.echo(f"error: {problem}", err=True)
    click.echo(f"  fix: {remedy}", err=True)
    ctx.exit(EXIT_MENDABLE)


@click.group("nrbfn", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quiet", "-q", is_flag=True, help="No log and no progress on standard error.")
@click.version_option(package_name="dask-nrbfn")
@click.pass_context
def commands(ctx: click.Context, quiet: bool) -> None:
    """Train and use normalized RBF networks on tables larger than memory.

    Exit codes: 0 done, 2 something you can mend (it says how), 1 anything else.
    """
    ctx.obj = not quiet
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("dask_nrbfn").setLevel(logging.WARNING if quiet else logging.INFO)


_recall_option = click.option(
    "--recall",
    "min_recall",
    default=MIN_RECALL,
    show_default=True,
    help="Least share of true neighbours that an approximate search must find.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _storage_options(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """Return what ``a.b=1`` and the like say, as nested dictionaries."""
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
                raise click.BadParameter(f"{part} has a value of its own.", ctx, param)
        try:
            table[key] = json.loads(value)
        except ValueError:
            table[key] = value
    return options


def _locations(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command storage options, and those to its arguments `names` that are URLs."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*context: Any, storage_options: Mapping[str, Any], **values: Any) -> None:
            named = [name for name in names if values[name] is not None]
            if storage_options and not any("://" in values[name] for name in named):
                raise ParameterError(
                    "storage options are given, but no URL.",
                    "Give a URL such as s3://bucket/name, or leave --storage-option out.",
                )
            located = {name: locate(values[name], storage_options) for name in named}
            command(*context, **(values | located))

        return click.option(
            "--storage-option",
            "storage_options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_storage_options,
            help="For URLs: what their fsspec file system is told, such as "
            "client_kwargs.endpoint_url=http://host:9000. VALUE may be JSON. Secrets are safer in "
            "environment variables.",
        )(run)

    return decorate


class _CountOrAuto(click.ParamType):
    """A number, or "auto" for None."""

    name = "N|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        return None if value == "auto" else click.INT.convert(value, param, ctx)


def _together(
    *options: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command all `options`, in this order."""
    return lambda command: reduce(
        lambda decorated, option: option(decorated), options[::-1], command
    )


_tuned_options = _together(
    click.option("--alpha", default=FitParams.alpha, show_default=True, help="Relative penalty."),
    click.option(
        "--basis-rule",
        type=click.Choice(BASIS_RULES),
        default=FitParams.basis_rule,
        show_default=True,
        help="Which rows of low confidence form a basis of a given size.",
    ),
    click.option(
        "--features",
        type=click.Choice(FEATURES),
        default=FitParams.features,
        show_default=True,
        help="Activations divided by their sum, or plain.",
    ),
    click.option(
        "--kernel", type=click.Choice(KERNELS), default=FitParams.kernel, show_default=True
    ),
    click.option(
        "--width-factor",
        default=FitParams.width_factor,
        show_default=True,
        help="Kernel width over the mean distance to the basis.",
    ),
)


_fit_options = _together(
    click.option(
        "--threshold",
        "confidence_threshold",
        default=FitParams.confidence_threshold,
        show_default=True,
        help="Rows with a confidence below it form the basis.",
    ),
    click.option("--n-neighbors", default=FitParams.n_neighbors, show_default=True),
    click.option("--basis-size", type=int, help="Number of basis rows."),
    click.option(
        "--basis",
        default=FitParams.basis,
        show_default=True,
        metavar="sknn|random|kmeans|FILE",
        help="Rows of low confidence, drawn ones, cluster centres, or an .npy file.",
    ),
    click.option(
        "--class-weight",
        type=click.Choice(["balanced"]),
        help="Let the rows of every class together weigh the same.",
    ),
    click.option(
        "--neighbors",
        type=click.Choice(NEIGHBOR_METHODS),
        default=FitParams.neighbors,
        show_default=True,
    ),
    click.option(
        "--partitions",
        "n_partitions",
        type=_CountOrAuto(),
        default="auto",
        show_default=True,
        help="Search neighbours in so many parts of the feature space.",
    ),
    click.option(
        "--overlap",
        default=FitParams.overlap,
        show_default=True,
        help="Partitions that a row belongs to, on average.",
    ),
    click.option("--scale", type=click.Choice(SCALES), default=FitParams.scale, show_default=True),
    click.option("--parts", "n_parts", type=int, help="Parts of each pass over the rows."),
    click.option("--seed", default=FitParams.seed, show_default=True),
)


_engine_options = _together(
    click.option("--scheduler", metavar="ADDRESS", help="A running dask scheduler."),
    click.option("--scheduler-file", metavar="FILE", help="The file it wrote."),
    click.option(
        "--workers",
        type=int,
        help="Local worker processes without a scheduler  [default: 1; 0: none, run here]",
    ),
    click.option("--threads", type=int, help="Threads of each  [default: all cores]"),
    click.option("--memory", metavar="BYTES", help="Memory limit of each, such as 4GiB."),
)


@commands.command()
@click.argument("source")
@click.argument("dataset")
@click.option("--x", metavar="NAME", help="Member of an .npz file with the rows.  [default: X]")
@click.option(
    "--y",
    metavar="NAME",
    help="Member of an .npz file with the labels [default: y]; for an .npy file, another one.",
)
@click.option("--label", metavar="COLUMN", help="Label column of CSV and Parquet.")
@click.option(
    "--weights",
    metavar="NAME",
    help="One weight above 0 per row: a member of an .npz file, a column of CSV and Parquet, or, "
    "for an .npy file, another one.  [default: every row weighs the same]",
)
@click.option("--chunk-rows", type=int, help="Rows of a chunk.  [default: 16 MiB of them]")
@click.option("--overwrite", is_flag=True, help="Replace DATASET once the new one is complete.")
@_json_option
@_locations("dataset")
def ingest(source: str, dataset: str, as_json: bool, **options: Any) -> None:
    """Write DATASET from a file or a directory of files.

    SOURCE is .npz, .npy, .csv, .csv.gz, .parquet, .svm, .svmlight or .libsvm, or a directory of
    files of one of these. It is streamed and never held in memory as a whole.
    """
    _show(describe_dataset(ingest_file(source, dataset, **options)), as_json)


@commands.command()
@click.argument("dataset")
@_json_option
@_locations("dataset")
@click.pass_context
def check(ctx: click.Context, dataset: str, as_json: bool) -> None:
    """Read all of DATASET and list missing or damaged chunks and values that are not finite.

    Exits with 2 if there is any.
    """
    opened = Dataset.open(dataset)
    report = check_dataset(opened)
    _show(
        {
            "n_rows": opened.n_rows,
            "n_features": opened.n_features,
            "n_classes": opened.n_classes,
            "n_chunks": report.n_chunks,
            "problems": list(report.problems),
        },
        as_json,
    )
    if report.problems:
        ctx.exit(EXIT_MENDABLE)


@commands.command()
@click.argument("dataset")
@click.argument("run")
@_tuned_options
@_fit_options
@_recall_option
@_engine_options
@_json_option
@_locations("dataset", "run")
@click.pass_obj
def fit(
    bar: bool, dataset: str, run: str, min_recall: float, as_json: bool, **options: Any
) -> None:
    """Train on DATASET and keep every step in RUN.

    Started again on the same RUN it finishes what is missing.
    """
    params, basis = _fit_params(options)
    opened = Dataset.open(dataset)
    with connect(EngineOptions(**options, bar=bar)) as engine:
        finished = fit_dataset(opened, run, params, engine, basis=basis, min_recall=min_recall)
    if as_json:
        click.echo(json.dumps(describe_run(finished)))
    else:
        click.echo(run_table(finished))


def _fit_params(options: dict[str, Any]) -> tuple[FitParams, NDArray[Any] | None]:
    """Take the parameters of a fit out of `options`; return them and the basis of a file."""
    values = {field.name: options.pop(field.name, field.default) for field in fields(FitParams)}
    source = values.pop("basis")
    if source in BASES:
        return FitParams(basis=source, **values), None
    try:
        basis = np.load(source, allow_pickle=False)
    except (EOFError, FileNotFoundError, ValueError) as error:
        raise ParameterError(
            f"{source} is no .npy file of numbers.",
            f"Give one of {', '.join(BASES)}, or such a file.",
        ) from error
    return given_basis(FitParams(**values), basis), basis


class _Values(click.ParamType):
    """Values with commas between them."""

    name = "A,B,..."

    def __init__(self, convert: Callable[[str], Any]) -> None:
        self._convert = convert

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._convert(part.strip()) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} are no numbers with commas between them.", param, ctx)


@commands.command()
@click.argument("dataset")
@click.argument("run")
@click.option("--validation", metavar="DATASET", help="Judge on these rows instead of folds.")
@click.option("--folds", default=TuneParams.folds, show_default=True)
@click.option(
    "--alphas",
    type=_Values(float),
    default=TuneParams.alphas,
    help="Penalties to try.  [default: 0.1, 0.01, ..., 1e-13]",
)
@click.option(
    "--width-factors",
    "width_factors",
    type=_Values(float),
    default=TuneParams.width_factors,
    help="Width factors to try.  [default: eight from 0.1 to 1]",
)
@click.option(
    "--features",
    type=_Values(str),
    default=TuneParams.features,
    help="Kinds of features to try.  [default: normalized,plain]",
)
@click.option("--kernels", type=_Values(str), help="Kernels to try.  [default: gaussian]")
@click.option(
    "--basis-rules",
    type=_Values(str),
    help="Rules to try for a basis of a given size.  [default: least-confident]",
)
@click.option(
    "--search-basis",
    default=TuneParams.search_basis,
    show_default=True,
    help="Basis rows while width, features and rule are tried.",
)
@click.option("--search-rows", type=int, help="Rows then.  [default: 256 MiB of them]")
@_fit_options
@_recall_option
@_engine_options
@_json_option
@_locations("dataset", "run", "validation")
@click.pass_obj
def tune(
    bar: bool,
    dataset: str,
    run: str,
    validation: str | None,
    min_recall: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose width, features, rule and penalty from DATASET, and train RUN with them.

    Prints what was tried and how it did on rows that were held out. Started again on the same RUN
    it finishes what is missing.
    """
    names = {field.name for field in fields(TuneParams)} - {"validation"}
    tuning = TuneParams(**{name: options.pop(name) for name in names})
    params, basis = _fit_params(options)
    opened = Dataset.open(dataset)
    judged = None if validation is None else Dataset.open(validation)
    with connect(EngineOptions(**options, bar=bar)) as engine:
        finished = tune_dataset(
            opened,
            run,
            params,
            tuning,
            engine,
            validation=judged,
            basis=basis,
            min_recall=min_recall,
        )
    if as_json:
        click.echo(json.dumps({**describe_run(finished), **describe_tuning(finished)}))
    else:
        click.echo(tuning_table(finished))
        click.echo(run_table(finished))


@commands.command()
@click.argument("run")
@click.option("--out", metavar="FILE", help="Where to write the page.  [default: RUN.html]")
@click.option("--evaluate", "rows", metavar="DATASET", help="Show how these rows are labelled too.")
@_engine_options
@_locations("run", "rows")
@click.pass_obj
def report(bar: bool, run: str, out: str | None, rows: str | None, **engine: Any) -> None:
    """Write one HTML page that shows what RUN learnt; it needs no network and can be printed."""
    target = Path(out or f"{Path(str(run).rstrip('/')).name}.html")
    opened, evaluation = Run.open(run), None
    if rows is not None:
        with connect(EngineOptions(**engine, bar=bar)) as connected:
            evaluation = evaluate_dataset(run, Dataset.open(rows), connected)
    write_report(opened, target, evaluation=evaluation)
    click.echo(str(target))


@commands.command()
@click.argument("dataset")
@_tuned_options
@_fit_options
@click.option(
    "--rates",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What a worker does in a second, as plan --json prints it.  [default: measured]",
)
@_engine_options
@_json_option
@_locations("dataset")
@click.pass_context
def plan(
    ctx: click.Context, dataset: str, rates: Path | None, as_json: bool, **options: Any
) -> None:
    """Print what fitting DATASET would take, stage by stage, and fit nothing.

    The rates are measured in a few seconds, in this process or on a worker of --scheduler. With
    --workers, --threads, --memory and --rates the plan is for a cluster that need not exist.

    Exits with 2 if the fit would not fit the memory.
    """
    params, _ = _fit_params(options)
    engine = EngineOptions(**options)
    planned = plan_on_options(Dataset.open(dataset), params, engine, rates=rates)
    if as_json:
        click.echo(json.dumps(describe_plan(planned)))
    else:
        click.echo(plan_table(planned))
    if not planned.fits:
        ctx.exit(EXIT_MENDABLE)


@commands.command()
@click.argument("run")
@click.argument("dataset")
@click.argument("out")
@click.option("--overwrite", is_flag=True, help="Replace OUT once the new one is complete.")
@_engine_options
@_json_option
@_locations("run", "dataset", "out")
@click.pass_obj
def predict(
    bar: bool, run: str, dataset: str, out: str, overwrite: bool, as_json: bool, **engine: Any
) -> None:
    """Write the label and the scores of every row of DATASET to OUT.

    RUN is a finished run or a saved model. OUT is a Zarr group, or by its suffix a .csv or
    .parquet file.
    """
    opened, model = Dataset.open(dataset), Model.load(run)
    with connect(EngineOptions(**engine, bar=bar)) as connected:
        predict_dataset(run, opened, out, connected, overwrite=overwrite)
    _show(
        {"n_rows": opened.n_rows, "n_features": opened.n_features, "n_classes": len(model.classes)},
        as_json,
    )


@commands.command()
@click.argument("run")
@click.argument("dataset")
@_engine_options
@_json_option
@_locations("run", "dataset")
@click.pass_obj
def evaluate(bar: bool, run: str, dataset: str, as_json: bool, **engine: Any) -> None:
    """Print the error rate of RUN, or of a saved model, on a labelled DATASET."""
    opened, model = Dataset.open(dataset), Model.load(run)
    with connect(EngineOptions(**engine, bar=bar)) as connected:
        evaluation = evaluate_dataset(run, opened, connected)
    figures = {
        **describe_model(model),
        "n_rows": evaluation.n_rows,
        "n_errors": evaluation.n_errors,
        "error_rate": evaluation.error_rate,
        "log_loss": evaluation.log_loss,
        "confusion": evaluation.confusion,
    }
    _show(figures, as_json)


@commands.command()
@click.argument("path")
@_json_option
@_locations("path")
def inspect(path: str, as_json: bool) -> None:
    """Print what is known of a dataset, run, model or predictions at PATH."""
    _show(describe(path), as_json)


def _show(figures: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        if name == "stages":
            for stage, record in value.items():
                click.echo(f"{'stage ' + stage:<18} {record['seconds']:.1f} s")
        elif name == "problems":
            for problem in value or ["none"]:
                click.echo(f"{'problem':<18} {problem}")
        elif isinstance(value, dict):
            for key, item in value.items():
                click.echo(f"{key:<18} {item}")
        elif name == "confusion":
            for row in value:
                click.echo(f"{'confusion':<18} " + " ".join(f"{count:>7}" for count in row))
        elif value is not None:
            click.echo(f"{name:<18} {_readable(name, value)}")


def _readable(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return str(format_bytes(value))
    if name == "error_rate":
        return f"{100 * value:.2f} %"
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:20]))
        return shown if len(value) <= 20 else f"{shown}, ... ({len(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run the command line and exit."""
    commands(prog_name="dask-nrbfn")
