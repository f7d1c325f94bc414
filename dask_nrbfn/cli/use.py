"""Commands that use a model: predict, evaluate, export."""

from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.group import Command
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import engine_options, json_option, locations
from dask_nrbfn.cli.reading import (
    id_option,
    scene_options,
    take_reading,
    target_options,
    written_options,
    x_option,
)
from dask_nrbfn.cli.show import show

if TYPE_CHECKING:
    from dask_nrbfn.storage.model import Model

# Options of `predict_dataset` for the content of the predictions.
_RESULTS = ("probabilities", "scores", "skip_bad", "prediction_name")

_clip_option = click.option(
    "--no-clip",
    is_flag=True,
    help="Do not clip predicted numbers to the range of the training targets.",
)

# Options that make ROWS a scene.
_SCENE = ("variable", "feature_dim")


@click.command(cls=Command)
@click.argument("run")
@click.argument("rows")
@click.argument("out", required=False)
@click.option(
    "--to",
    metavar="NAME",
    help="Instead of OUT: add the labels to ROWS, and their probabilities as NAME_confidence. In a "
    "Zarr group NAME is a new array; in an AnnData store or .h5ad file it is a column obs/NAME. A "
    "regression adds numbers.",
)
@click.option(
    "--probabilities",
    is_flag=True,
    help="Also write the probability of every class, calibrated if RUN was tuned.",
)
@click.option(
    "--scores",
    is_flag=True,
    help="Also write the score of every class. A Zarr group always has scores.",
)
@click.option(
    "--keep",
    metavar="COLUMNS",
    help="Columns of the file, as COLUMN or COLUMN,COLUMN, to copy next to the predictions in a "
    ".csv or .parquet file.",
)
@click.option(
    "--prediction-name",
    metavar="NAME",
    help="Name of the predictions in a .csv or .parquet file.  [default: prediction; for numbers "
    "the names of the targets, unless --keep has one of these names]",
)
@click.option(
    "--skip-bad",
    is_flag=True,
    help="Leave predictions empty for rows with missing or unreadable values, and log how many; "
    "for a .csv or .parquet file.  [default: an error]",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace OUT once the new one is complete, or the columns of --to. A job that is killed "
    "can leave a Zarr AnnData store without these columns.",
)
@_clip_option
@x_option
@id_option
@written_options
@scene_options
@engine_options
@json_option
@locations("run", "rows", "out")
@click.pass_obj
def predict(
    job: Job,
    run: str,
    rows: str,
    out: str | None,
    to: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the label, or the predicted numbers, of every row of ROWS to OUT.

    RUN is a finished run or a saved model. ROWS is a dataset, or a file, directory or SQL query
    that ingest accepts. Columns are found by name, in any order, and read like the columns that RUN
    was trained on. OUT is a Zarr group, or a file that ends in .csv or .parquet. With --to, columns
    of ROWS are written instead.

    With --variable, ROWS is a scene in Zarr, netCDF or another format that xarray opens, and OUT is
    a Zarr group with a map of the pixels. To resume an interrupted map, repeat the command.
    """
    from dask_nrbfn.commands.describe import describe_targets
    from dask_nrbfn.commands.obs import check_one_place
    from dask_nrbfn.storage.model import Model

    maps = to is None and bool(options["variable"] or options["feature_dim"])
    job.begin("predict", out or rows, keeps=maps)
    model = Model.load(run)
    check_one_place(out, to)
    if to is not None:
        figures = _annotate(job, model, run, rows, to, **options)
    elif maps:
        figures = _map(job, run, rows, out, **options)
    else:
        figures = _predict(job, model, run, rows, out, **options)
    targets = describe_targets(len(model.classes), model.target_names)
    show({**figures, "n_features": model.n_features, **targets}, as_json)


def _predict(
    job: Job,
    model: "Model",
    run: str,
    rows: str,
    out: Any,
    *,
    keep: str | None,
    overwrite: bool,
    no_clip: bool,
    **options: Any,
) -> dict[str, Any]:
    """Write the predictions of a dataset or of files."""
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.predict import check_asked, check_prediction_place, predict_dataset
    from dask_nrbfn.sources.source import named_columns

    names = () if keep is None else named_columns("keep", keep)
    asked = {name: options.pop(name) for name in _RESULTS}
    for name in _SCENE:
        del options[name]
    check_prediction_place(out, overwrite=overwrite)
    check_asked(model, out, **asked, keep=names)
    reading = {**take_reading(options), "keep": names, "spoiled": asked["skip_bad"]}
    with opened_rows(rows, run, beside=out, labelled=False, **reading) as opened:
        job.n_rows = opened.dataset.n_rows
        with job.engine(options) as engine:
            predicted = predict_dataset(
                run,
                opened.dataset,
                out,
                engine,
                **asked,
                kept=opened.kept,
                bad_rows=opened.bad_rows,
                clip=not no_clip,
                overwrite=overwrite,
            )
    return {
        "n_rows": job.n_rows,
        "n_skipped": predicted.n_skipped,
        **({} if model.target_range is None else {"n_clipped": predicted.n_clipped}),
        "ignored_columns": list(opened.ignored),
        "unseen_categories": opened.unseen,
    }


def _annotate(
    job: Job, model: "Model", run: str, rows: Any, to: str, *, overwrite: bool, **options: Any
) -> dict[str, Any]:
    """Write the predictions of an AnnData store or Zarr group into the store."""
    from dask_nrbfn.commands.files import check_nothing_said, opened_rows
    from dask_nrbfn.commands.obs import ObsTarget

    said = {name: options.pop(name) for name in ("keep", "no_clip", *_RESULTS, *_SCENE)}
    check_nothing_said(rows, "a store to which `to` adds columns", **said)
    target = ObsTarget(rows, to, model, overwrite=overwrite)
    reading = take_reading(options)
    with opened_rows(rows, run, beside=rows, labelled=False, **reading) as opened:
        job.n_rows = opened.dataset.n_rows
        with job.engine(options) as engine:
            target.write(run, opened.dataset, engine)
    return {"n_rows": job.n_rows, "columns": [f"{target.inside}{name}" for name in target.columns]}


def _map(
    job: Job, run: str, scene: str, out: Any, *, overwrite: bool, **options: Any
) -> dict[str, Any]:
    """Write the predictions of a scene as a map."""
    from dask_nrbfn.commands.files import check_nothing_said
    from dask_nrbfn.commands.maps import check_map_place, predict_scene, scene_at

    chosen = {name: options.pop(name) for name in (*_SCENE, "probabilities", "scores")}
    names = ("keep", "skip_bad", "prediction_name", "no_clip")
    of_files = {name: options.pop(name) for name in names}
    check_nothing_said(scene, "a scene", **of_files, **take_reading(options))
    check_map_place(out, overwrite=overwrite)
    job.n_rows = scene_at(scene, chosen["variable"], chosen["feature_dim"]).n_pixels
    with job.engine(options) as engine:
        mapped = predict_scene(run, scene, out, engine, **chosen, overwrite=overwrite)
    return {"n_pixels": mapped.n_pixels, "n_missing": mapped.n_missing}


@click.command(cls=Command)
@click.argument("run")
@click.argument("rows")
@_clip_option
@x_option
@target_options
@written_options
@engine_options
@json_option
@locations("run", "rows")
@click.pass_obj
def evaluate(job: Job, run: str, rows: str, as_json: bool, no_clip: bool, **options: Any) -> None:
    """Print the error rate, or R2, RMSE and MAE, of RUN or a saved model on ROWS.

    ROWS is a dataset, or a file, directory or SQL query that ingest accepts. Columns are found by
    name, in any order, and read like the columns that RUN was trained on.

    For classes it prints the precision, recall, F1 and number of rows of each class, and the
    confusion of predicted labels. The reliability compares mean probabilities with observed shares;
    expected_calibration_error is the mean distance between the two.

    Rows with labels that the model does not know are errors: n_unknown_labels counts these rows,
    and they are the last line of the confusion. log_loss, reliability and roc_auc leave them out.
    """
    from dask_nrbfn.commands.describe import describe_model
    from dask_nrbfn.commands.evaluate import Evaluation, evaluate_dataset
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.report.console import class_tables
    from dask_nrbfn.storage.model import Model

    job.begin("evaluate", run)
    model, reading = Model.load(run), take_reading(options)
    with opened_rows(rows, run, beside=run, **reading) as opened:
        job.n_rows = opened.dataset.n_rows
        with job.engine(options) as engine:
            evaluation = evaluate_dataset(run, opened.dataset, engine, clip=not no_clip)
    of_file = {"ignored_columns": list(opened.ignored), "unseen_categories": opened.unseen}
    figures = {**of_file, **evaluation.figures()}
    show((describe_model(model) if as_json else {}) | figures, as_json)
    if isinstance(evaluation, Evaluation) and not as_json:
        click.echo(f"\n{class_tables(evaluation)}")


@click.command(cls=Command)
@click.argument("run")
@click.argument("path")
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="Type of the inputs, the computation and the outputs of the file.",
)
@click.option("--overwrite", is_flag=True, help="Replace PATH once the new file is complete.")
@json_option
@locations("run")
@click.pass_obj
def export(job: Job, run: str, path: str, as_json: bool, **options: Any) -> None:
    """Write RUN, or a saved model, to the ONNX file PATH, which runs without this program.

    The inputs of the file are the features as X, or the columns of the training table by name. The
    outputs are label, scores and probabilities, or the values of a regression, or coordinates.
    """
    from dask_nrbfn.commands.onnx_model import export_onnx

    job.begin("export", path)
    show(export_onnx(run, path, **options), as_json)
