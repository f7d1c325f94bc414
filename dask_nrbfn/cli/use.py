"""Commands that use a model: predict, evaluate."""

from typing import Any

import click

from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import engine_options, json_option, locations, watch_options, watching
from dask_nrbfn.cli.show import show


@click.command()
@click.argument("run")
@click.argument("dataset")
@click.argument("out")
@click.option(
    "--probabilities",
    is_flag=True,
    help="Write the probability of every class too; calibrated where RUN was tuned.",
)
@click.option(
    "--scores",
    is_flag=True,
    help="Write the score of every class too. A Zarr group has them in any case.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace OUT, and the file of --performance-report, once the new one is complete.",
)
@engine_options
@watching
@json_option
@locations("run", "dataset", "out")
@click.pass_obj
def predict(
    job: Job,
    run: str,
    dataset: str,
    out: str,
    probabilities: bool,
    scores: bool,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the label, or the predicted numbers, of every row of DATASET to OUT.

    RUN is a finished run or a saved model. OUT is a Zarr group, or by its suffix a .csv or
    .parquet file.
    """
    from dask_nrbfn.commands.describe import describe_targets
    from dask_nrbfn.commands.predict import check_prediction_place, predict_dataset
    from dask_nrbfn.engine import watched_stage
    from dask_nrbfn.storage.dataset import Dataset
    from dask_nrbfn.storage.model import Model

    job.begin("predict", out)
    opened, model = Dataset.open(dataset), Model.load(run)
    job.n_rows = opened.n_rows
    check_prediction_place(out, overwrite=overwrite)
    options["overwrite"] = overwrite and options["performance_report"] is not None
    with (
        job.engine(options, out=out) as engine,
        watched_stage(engine, "predict", n_rows=opened.n_rows),
    ):
        predict_dataset(
            run,
            opened,
            out,
            engine,
            scores=scores,
            probabilities=probabilities,
            overwrite=overwrite,
        )
    show(
        {
            "n_rows": opened.n_rows,
            "n_features": opened.n_features,
            **describe_targets(len(model.classes), model.target_names),
        },
        as_json,
    )


@click.command()
@click.argument("run")
@click.argument("dataset")
@engine_options
@watch_options
@json_option
@locations("run", "dataset")
@click.pass_obj
def evaluate(job: Job, run: str, dataset: str, as_json: bool, **options: Any) -> None:
    """Print how RUN, or a saved model, does on DATASET: its error rate, or R2, RMSE and MAE.

    Of classes it prints precision, recall, F1 and rows of each, and which were taken for which.
    Labels that the model does not know are errors; n_unknown_labels counts their rows, which are
    the last line of the confusion; log_loss and roc_auc are those of the other rows.
    """
    from dask_nrbfn.commands.describe import describe_model
    from dask_nrbfn.commands.predict import Evaluation, evaluate_dataset
    from dask_nrbfn.engine import watched_stage
    from dask_nrbfn.report import class_tables
    from dask_nrbfn.storage.dataset import Dataset
    from dask_nrbfn.storage.model import Model

    job.begin("evaluate", run)
    opened, model = Dataset.open(dataset), Model.load(run)
    job.n_rows = opened.n_rows
    with (
        job.engine(options) as engine,
        watched_stage(engine, "evaluate", n_rows=opened.n_rows),
    ):
        evaluation = evaluate_dataset(run, opened, engine)
    show(describe_model(model) | evaluation.figures(), as_json)
    if isinstance(evaluation, Evaluation) and not as_json:
        click.echo(f"\n{class_tables(evaluation)}")
