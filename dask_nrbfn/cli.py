"""The command line: ``dask-nrbfn``, ``python -m dask_nrbfn`` and ``dask nrbfn``."""

import errno
import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from dask.utils import format_bytes

from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.errors import NRBFNError, ParameterError
from dask_nrbfn.params import BASIS_RULES, NEIGHBOR_METHODS, SCALES, FitParams
from dask_nrbfn.stages.check import check_dataset
from dask_nrbfn.stages.describe import describe, describe_dataset, describe_model, describe_run
from dask_nrbfn.stages.fit import MIN_RECALL, fit_dataset
from dask_nrbfn.stages.ingest import ingest_file
from dask_nrbfn.stages.plan import describe_plan, plan_on_options, plan_table
from dask_nrbfn.stages.predict import evaluate_dataset, predict_dataset
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import locate
from dask_nrbfn.storage.model import Model

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
            if storage_options and not any("://" in values[name] for name in names):
                raise ParameterError(
                    "storage options are given, but no URL.",
                    "Give a URL such as s3://bucket/name, or leave --storage-option out.",
                )
            located = {name: locate(values[name], storage_options) for name in names}
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


def _fit_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option(
                "--alpha", default=FitParams.alpha, show_default=True, help="Relative penalty."
            ),
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
                "--basis-rule",
                type=click.Choice(BASIS_RULES),
                default=FitParams.basis_rule,
                show_default=True,
                help="Which rows form a basis of a given size.",
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
            click.option(
                "--scale", type=click.Choice(SCALES), default=FitParams.scale, show_default=True
            ),
            click.option("--parts", "n_parts", type=int, help="Parts of each pass over the rows."),
            click.option("--seed", default=FitParams.seed, show_default=True),
        )
    ):
        command = option(command)
    return command


def _engine_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
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
    ):
        command = option(command)
    return command


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
@_fit_options
@click.option(
    "--recall",
    "min_recall",
    default=MIN_RECALL,
    show_default=True,
    help="Least share of true neighbours that an approximate search must find.",
)
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
    params = {field.name: options.pop(field.name) for field in fields(FitParams)}
    opened, checked = Dataset.open(dataset), FitParams(**params)
    with connect(EngineOptions(**options, bar=bar)) as engine:
        finished = fit_dataset(opened, run, checked, engine, min_recall=min_recall)
    _show(describe_run(finished), as_json)


@commands.command()
@click.argument("dataset")
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
    params = FitParams(**{field.name: options.pop(field.name) for field in fields(FitParams)})
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
