"""Commands that use a model: predict, evaluate, export."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import READING, WITH_DEVICE, command, given, take
from dask_nrbfn.cli.show import show

if TYPE_CHECKING:
    from dask_nrbfn.storage.model import Model

# The content of predictions, how their rows are read, and what makes the rows a scene.
_RESULTS = ("probabilities", "scores", "skip_bad", "prediction_name")
_READING = ("id", "sql")
_SCENE = ("variable", "feature_dim")


@command(
    ["run", "rows", "out?"],
    given(
        "to", *_RESULTS, "keep", "no_clip", "overwrite", *_READING, *_SCENE, *WITH_DEVICE, "json"
    ),
    places=["run", "rows", "out"],
)
def predict(
    job: Job,
    run: str,
    rows: str,
    out: str | None,
    to: str | None,
    keep: str | None,
    no_clip: bool,
    overwrite: bool,
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
    from dask_nrbfn.commands.files import check_nothing_said
    from dask_nrbfn.commands.obs import check_one_place
    from dask_nrbfn.storage.model import Model

    results, reading = take(options, _RESULTS), take(options, _READING)
    scene, kept = take(options, _SCENE), {"keep": keep, "no_clip": no_clip}
    maps = to is None and any(scene.values())
    job.begin("predict", out or rows, keeps=maps)
    model = Model.load(run)
    check_one_place(out, to)
    if to is not None:
        check_nothing_said(rows, "a store to which `to` adds columns", **kept, **results, **scene)
        figures = _annotate(job, model, (run, rows, to), overwrite, reading, options)
    elif maps:
        drawn = take(results, ("probabilities", "scores"))
        check_nothing_said(rows, "a scene", **kept, **results, **reading)
        figures = _map(job, (run, rows, out), overwrite, {**scene, **drawn}, options)
    else:
        written = {**results, "keep": keep, "clip": not no_clip, "overwrite": overwrite}
        figures = _predict(job, model, (run, rows, out), written, reading, options)
    targets = describe_targets(len(model.classes), model.target_names)
    show({**figures, "n_features": model.n_features, **targets}, as_json)


def _predict(
    job: Job,
    model: "Model",
    places: tuple[Any, ...],
    written: dict[str, Any],
    reading: Mapping[str, Any],
    engine_options: dict[str, Any],
) -> dict[str, Any]:
    """Write the predictions of a dataset or of files."""
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.predict import check_asked, check_prediction_place, predict_dataset
    from dask_nrbfn.sources.source import named_columns

    run, rows, out = places
    keep = written.pop("keep")
    names = () if keep is None else named_columns("keep", keep)
    check_prediction_place(out, overwrite=written["overwrite"])
    check_asked(model, out, **{name: written[name] for name in _RESULTS}, keep=names)
    read_as = {**reading, "keep": names, "spoiled": written["skip_bad"]}
    with opened_rows(rows, run, beside=out, labelled=False, **read_as) as opened:
        job.n_rows = opened.dataset.n_rows
        with job.engine(engine_options) as engine:
            predicted = predict_dataset(
                run,
                opened.dataset,
                out,
                engine,
                kept=opened.kept,
                bad_rows=opened.bad_rows,
                **written,
            )
    return {
        "n_rows": job.n_rows,
        "n_skipped": predicted.n_skipped,
        **({} if model.target_range is None else {"n_clipped": predicted.n_clipped}),
        "ignored_columns": list(opened.ignored),
        "unseen_categories": opened.unseen,
    }


def _annotate(
    job: Job,
    model: "Model",
    places: tuple[Any, ...],
    overwrite: bool,
    reading: Mapping[str, Any],
    engine_options: dict[str, Any],
) -> dict[str, Any]:
    """Write the predictions of an AnnData store or Zarr group into the store."""
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.obs import ObsTarget

    run, rows, to = places
    target = ObsTarget(rows, to, model, overwrite=overwrite)
    with opened_rows(rows, run, beside=rows, labelled=False, **reading) as opened:
        job.n_rows = opened.dataset.n_rows
        with job.engine(engine_options) as engine:
            target.write(run, opened.dataset, engine)
    return {"n_rows": job.n_rows, "columns": [f"{target.inside}{name}" for name in target.columns]}


def _map(
    job: Job,
    places: tuple[Any, ...],
    overwrite: bool,
    drawn: dict[str, Any],
    engine_options: dict[str, Any],
) -> dict[str, Any]:
    """Write the predictions of a scene as a map."""
    from dask_nrbfn.commands.maps import check_map_place, predict_scene, scene_at

    run, scene, out = places
    check_map_place(out, overwrite=overwrite)
    job.n_rows = scene_at(scene, drawn["variable"], drawn["feature_dim"]).n_pixels
    with job.engine(engine_options) as engine:
        mapped = predict_scene(run, scene, out, engine, **drawn, overwrite=overwrite)
    return {"n_pixels": mapped.n_pixels, "n_missing": mapped.n_missing}


@command(["run", "rows"], given("no_clip", *READING, *WITH_DEVICE, "json"), places=["run", "rows"])
def evaluate(job: Job, run: str, rows: str, as_json: bool, no_clip: bool, **options: Any) -> None:
    """Print the error rate, or R2, RMSE and MAE, of RUN or a saved model on ROWS.

    ROWS is a dataset, or a file, directory or SQL query that ingest accepts. Columns are found by
    name, in any order, and read like the columns that RUN was trained on.

    For classes it prints the most frequent confusions, and the precision, recall, F1 and number of
    rows of each class. --json has the whole confusion, and the reliability, which compares mean
    probabilities with observed shares; expected_calibration_error is the mean distance of the two.

    Rows with labels that the model does not know are errors: n_unknown_labels counts these rows,
    and they are the last line of the confusion. log_loss, reliability and roc_auc leave them out.
    """
    from dask_nrbfn.commands.describe import describe_model
    from dask_nrbfn.commands.evaluate import Evaluation, evaluate_dataset
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.report.console import class_tables
    from dask_nrbfn.storage.model import Model

    job.begin("evaluate", run)
    model, reading = Model.load(run), take(options, READING)
    with opened_rows(rows, run, beside=run, **reading) as opened:
        job.n_rows = opened.dataset.n_rows
        with job.engine(options) as engine:
            evaluation = evaluate_dataset(run, opened.dataset, engine, clip=not no_clip)
    of_file = {"ignored_columns": list(opened.ignored), "unseen_categories": opened.unseen}
    figures = {**of_file, **evaluation.figures()}
    show((describe_model(model) if as_json else {}) | figures, as_json)
    if isinstance(evaluation, Evaluation) and not as_json:
        click.echo(f"\n{class_tables(evaluation)}")


@command(["run", "path"], given("dtype", "overwrite", "json"), places=["run"])
def export(job: Job, run: str, path: str, as_json: bool, **options: Any) -> None:
    """Write RUN, or a saved model, to the ONNX file PATH, which runs without this program.

    The inputs of the file are the features as X, or the columns of the training table by name. The
    outputs are label, scores and probabilities, or the values of a regression, or coordinates.
    """
    from dask_nrbfn.commands.onnx_model import export_onnx

    job.begin("export", path)
    show(export_onnx(run, path, **options), as_json)
