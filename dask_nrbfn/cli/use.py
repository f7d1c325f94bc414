"""Commands that use a model: predict, evaluate, export."""

from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import ENGINE, READING, command, given, take
from dask_nrbfn.errors import ParameterError

if TYPE_CHECKING:
    from dask_nrbfn.storage.model import Model

# Options: the content of predictions, how rows are read, and what makes a scene.
_RESULTS = ("probabilities", "scores", "skip_bad", "interval", "distance")
_READING = ("id", "sql", "encoding")
_SCENE = ("variable", "feature_dim")
# Figures that come first.
_FIRST = ("error_rate", "relative_error", "expected_calibration_error", "n_rows", "n_errors")


@command(
    ["run", "rows?", "out?"],
    given("to", *_RESULTS, "keep", "no_clip", "overwrite", *_READING, *_SCENE),
    ENGINE,
)
def predict(
    job: Job,
    run: str,
    rows: str | None = None,
    out: str | None = None,
    to: str | None = None,
    **options: Any,
) -> None:
    """Write the label, or the predicted numbers, of every row of ROWS to OUT.

    RUN is a finished run or a saved model. ROWS is a dataset, or a file, directory or SQL query
    that ingest accepts. Columns are found by name, in any order, and read like the columns that RUN
    was trained on; if a query read those, give one again. With --sql alone, give only RUN and OUT.
    OUT is a Zarr group, or a file that ends in .csv or .parquet. With --to, ROWS is AnnData in
    Zarr, and gets columns of obs.

    With --variable, ROWS is a scene that xarray opens, and OUT is a Zarr group with its map.
    """
    from dask_nrbfn.commands.describe import describe_targets
    from dask_nrbfn.storage.model import Model

    if out is None and to is None and "sql" in options:
        rows, out = options.pop("sql"), rows
    if rows is None:
        raise click.UsageError("Missing argument 'ROWS'.")
    job.begin(out or rows)
    model = Model.load(run)
    if to is not None and out is None:
        figures = _annotate(job, model, run, rows, to, **options)
    elif out is not None and to is None:
        if options.keys().isdisjoint(_SCENE):
            figures = _predict(job, model, run, rows, out, **options)
        else:
            figures = _map(job, run, rows, out, **options)
    else:
        raise ParameterError(
            "`out` and `to` are both given, or neither of them.",
            "Give `out` for the predictions, or `to` for a column of AnnData.",
        )
    targets = describe_targets(len(model.classes), model.target_names)
    job.show({**figures, "n_features": model.n_features, **targets})


def _predict(
    job: Job,
    model: "Model",
    run: str,
    rows: str,
    out: str,
    *,
    overwrite: bool,
    no_clip: bool,
    keep: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write the predictions of a dataset or of files."""
    from dask_nrbfn.commands.predict import check_predictions, predict_dataset
    from dask_nrbfn.sources.options import named_columns
    from dask_nrbfn.storage.dataset import check_apart

    names = named_columns(keep)
    results = take(options, _RESULTS)
    if "interval" in results:
        results["interval"] = _coverages(results["interval"])
    check_apart(out, run, rows, options.get("sql"))
    check_predictions(model, out, **results, overwrite=overwrite, keep=names)
    reading = {**options, "keep": names, "spoiled": results["skip_bad"]}
    with job.opened(rows, run, beside=out, labelled=False, **reading) as (opened, engine):
        n_skipped = predict_dataset(
            run,
            opened.dataset,
            out,
            engine,
            kept=opened.kept,
            clip=not no_clip,
            overwrite=overwrite,
            **results,
        )
    return {
        "n_rows": job.n_rows,
        "n_skipped": n_skipped,
        "ignored_columns": list(opened.ignored),
        "unseen_categories": opened.unseen,
    }


def _coverages(text: str) -> list[float]:
    """Return the coverages of an option."""
    try:
        return [float(each) for each in text.split(",")]
    except ValueError as error:
        raise ParameterError(
            f"`interval` is {text!r}.", "Give shares such as 0.9, or 0.5,0.9."
        ) from error


def _annotate(
    job: Job, model: "Model", run: str, rows: str, to: str, *, overwrite: bool, **options: Any
) -> dict[str, Any]:
    """Write the predictions of an AnnData store into the store."""
    from dask_nrbfn.commands.files import check_not_given
    from dask_nrbfn.commands.predict import obs_columns, predict_obs

    reading = take(options, _READING)
    check_not_given(f"{rows} is a store to which `to` adds columns", **options)
    columns = obs_columns(rows, to, model, overwrite=overwrite)
    with job.opened(rows, run, beside=rows, labelled=False, **reading) as (opened, engine):
        predict_obs(run, opened.dataset, rows, to, engine, overwrite=overwrite)
    return {"n_rows": job.n_rows, "columns": [f"obs/{name}" for name in columns]}


def _map(
    job: Job, run: str, scene: str, out: str, *, overwrite: bool, **options: Any
) -> dict[str, Any]:
    """Write the predictions of a scene as a map."""
    from dask_nrbfn.commands.files import check_not_given
    from dask_nrbfn.commands.maps import predict_scene, scene_at
    from dask_nrbfn.commands.predict import check_output
    from dask_nrbfn.storage.dataset import check_apart

    results = {"variable": None, **take(options, (*_SCENE, "probabilities", "scores"))}
    check_not_given(f"{scene} is a scene", **options)
    check_apart(out, run, scene)
    check_output(out, "map", overwrite=overwrite)
    job.n_rows = scene_at(scene, results["variable"], results.get("feature_dim")).n_pixels
    with job.engine() as engine:
        n_missing = predict_scene(run, scene, out, engine, **results, overwrite=overwrite)
    return {"n_pixels": job.n_rows, "n_missing": n_missing}


@command(["run", "rows?"], given("importance", "no_clip", *READING), ENGINE)
def evaluate(
    job: Job,
    run: str,
    rows: str | None = None,
    *,
    importance: bool,
    no_clip: bool,
    **reading: Any,
) -> None:
    """Print the error rate, or R2, RMSE and MAE, of RUN or a saved model on ROWS.

    ROWS is a dataset, or a file, directory or SQL query that ingest accepts. Columns are found by
    name, in any order, and read like the columns that RUN was trained on; if a query read those,
    give one again. With --sql alone, give only RUN.

    For classes it prints the most frequent confusions, and precision, recall and F1 of each class.
    --json has the confusion matrix, and the reliability: mean probabilities and observed shares.

    Rows with labels that the model does not know are errors: n_unknown_labels counts these rows,
    and they are the last line of the confusion. log_loss, reliability and roc_auc leave them out.

    If the rows have weights, all figures except numbers of rows are weighted.
    """
    from dask_nrbfn.commands.describe import describe_model
    from dask_nrbfn.commands.evaluate import evaluate_dataset
    from dask_nrbfn.report.console import evaluation_tables
    from dask_nrbfn.storage.model import Model

    rows = rows or reading.pop("sql", None)
    if rows is None:
        raise click.UsageError("Missing argument 'ROWS'.")
    job.begin(run)
    model = Model.load(run)
    with job.opened(rows, run, beside=run, **reading) as (opened, engine):
        options = {"clip": not no_clip, "importance": importance}
        evaluation = evaluate_dataset(run, opened.dataset, engine, **options)
    figures = evaluation.figures()
    figures["ignored_columns"] = list(opened.ignored)
    figures["unseen_categories"] = opened.unseen
    figures = {name: figures[name] for name in _FIRST if name in figures} | figures
    if job.as_json:
        figures = describe_model(model) | figures
    job.show(figures)
    tables = evaluation_tables(evaluation)
    if tables and not job.as_json:
        click.echo(f"\n{tables}")


@command(["run", "path"], given("dtype", "inputs", "overwrite"))
def export(job: Job, run: str, path: str, **options: Any) -> None:
    """Write RUN, or a saved model, to the ONNX file PATH, which runs without this program.

    The inputs of the file are the columns of the table, by name: numbers, booleans as 0 or 1, texts
    of categories, and dates as days since 1970. If all features are columns, the input is X, the
    features in the order in which the metadata name them. The outputs are label, scores and
    probabilities, or the values of a regression, or coordinates.
    """
    from dask_nrbfn.commands.onnx_model import export_onnx

    job.begin(path)
    job.show(export_onnx(run, path, **options))
