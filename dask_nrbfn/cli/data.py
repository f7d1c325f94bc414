"""Commands for datasets and for whatever was stored: ingest, check, inspect."""

from typing import Any

import click

from dask_nrbfn.cli.group import EXIT_MENDABLE
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import json_option, locations
from dask_nrbfn.cli.show import show


@click.command()
@click.argument("source")
@click.argument("dataset")
@click.option(
    "--x",
    metavar="NAME",
    help="Member of an .npz file with the rows [default: X]; COLUMN or COLUMN,COLUMN of Parquet "
    "and Arrow that are the features, also lists of numbers [default: all others].",
)
@click.option(
    "--y",
    metavar="NAME",
    help="Member of an .npz file with the labels [default: y]; for an .npy file, another one.",
)
@click.option("--label", metavar="COLUMN", help="Label column of a table.")
@click.option(
    "--target",
    metavar="NAME",
    help="Numbers to be learned instead of labels: COLUMN or COLUMN,COLUMN of a table, "
    'with "" around a name that has a comma; a member of an .npz file; for an .npy file, another '
    "one; for svmlight the word label, which is the number that each line begins with.",
)
@click.option(
    "--weights",
    metavar="NAME",
    help="One weight above 0 per row: a member of an .npz file, a column of a table, or, for an "
    ".npy file, another one.  [default: every row weighs the same]",
)
@click.option(
    "--delimiter",
    metavar="MARK",
    help="Between the cells of CSV.  [default: what the first lines show; in doubt a comma, in "
    ".tsv a tab]",
)
@click.option(
    "--quote",
    metavar="MARK",
    help='Around text in CSV, " or \'.  [default: what the first lines show; in doubt "]',
)
@click.option("--decimal", metavar="MARK", help="Before decimals in CSV, . or ,  [default: .]")
@click.option(
    "--encoding",
    help="Of CSV, such as latin-1.  [default: utf-8, or utf-16 where a file begins with its mark]",
)
@click.option(
    "--no-header",
    is_flag=True,
    help="The first line of CSV is a row; the columns are column_0, column_1 and so on.",
)
@click.option(
    "--unlabelled",
    metavar="VALUE",
    help="The label of rows that have none; of numbers what stands for none, such as nan. Such "
    "rows join the basis, scale and width of a fit.  [default: every row has its label]",
)
@click.option("--chunk-rows", type=int, help="Rows of a chunk.  [default: 16 MiB of them]")
@click.option("--overwrite", is_flag=True, help="Replace DATASET once the new one is complete.")
@json_option
@locations("source", "dataset")
@click.pass_obj
def ingest(job: Job, source: Any, dataset: Any, as_json: bool, **options: Any) -> None:
    """Write DATASET from a file or a directory of files.

    SOURCE is .npz, .npy, .csv, .tsv (both also with .gz or .zst), .parquet, .arrow, .arrows,
    .feather, .svm, .svmlight or .libsvm, or a directory of files of one of these, of Parquet and
    Arrow also in subdirectories key=value; it may be a URL such as s3://bucket/rows.csv. It is
    streamed and never held in memory as a whole.
    """
    from dask_nrbfn.commands.describe import describe_dataset
    from dask_nrbfn.commands.ingest import ingest_file

    job.begin("ingest", dataset)
    written = ingest_file(_without_foreign_options(source, dataset), dataset, **options)
    job.n_rows = written.n_rows
    show(describe_dataset(written), as_json)


def _without_foreign_options(source: Any, dataset: Any) -> Any:
    """Return the source without options that are for the file system of another protocol."""
    from dask_nrbfn.storage.location import RemoteLocation

    urls = [place.url for place in (source, dataset) if isinstance(place, RemoteLocation)]
    if len({url.partition("://")[0] for url in urls}) == 2:
        return source.url
    return source


@click.command()
@click.argument("dataset")
@json_option
@locations("dataset")
@click.pass_obj
def check(job: Job, dataset: str, as_json: bool) -> None:
    """Read all of DATASET and list missing or damaged chunks and values that are not finite.

    Exits with 2 if there is any.
    """
    from dask_nrbfn.commands.check import check_dataset
    from dask_nrbfn.storage.dataset import Dataset

    job.begin("check", dataset)
    opened = Dataset.open(dataset)
    job.n_rows = opened.n_rows
    report = check_dataset(opened)
    targets: dict[str, Any] = {"n_classes": opened.n_classes}
    if opened.target_names is not None:
        targets = {"target_names": list(opened.target_names)}
    show(
        {
            "n_rows": opened.n_rows,
            "n_features": opened.n_features,
            **targets,
            "n_chunks": report.n_chunks,
            "problems": list(report.problems),
        },
        as_json,
    )
    if report.problems:
        raise click.exceptions.Exit(EXIT_MENDABLE)


@click.command()
@click.argument("path")
@json_option
@locations("path")
def inspect(path: str, as_json: bool) -> None:
    """Print what is known of a dataset, run, model or predictions at PATH."""
    from dask_nrbfn.commands.describe import describe

    show(describe(path), as_json)
