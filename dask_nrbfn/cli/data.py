"""Commands for datasets and other stored data: ingest, inspect."""

from typing import Any

import click

from dask_nrbfn.cli.group import EXIT_MENDABLE, Command
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import json_option, locations
from dask_nrbfn.cli.reading import (
    scene_options,
    table_options,
    target_options,
    written_options,
    x_option,
)
from dask_nrbfn.cli.show import show


@click.command(cls=Command)
@click.argument("source")
@click.argument("dataset", required=False)
@x_option
@target_options
@written_options
@table_options
@click.option(
    "--sparse",
    type=click.Choice(["auto", "yes", "no"]),
    default="auto",
    show_default=True,
    help="Rows in CSR; auto: of sparse matrices and features of categories, if there are 256 "
    "features or more that take less than half as many bytes.",
)
@scene_options
@click.option("--chunk-rows", type=int, help="Rows of a chunk.  [default: 16 MiB of rows]")
@click.option(
    "--copy",
    is_flag=True,
    help="Copy rows that are in Zarr.  [default: DATASET refers to them, with a digest of every "
    "chunk]",
)
@click.option("--overwrite", is_flag=True, help="Replace DATASET once the new one is complete.")
@json_option
@locations("source", "dataset", "schema")
@click.pass_obj
def ingest(job: Job, source: Any, dataset: Any, as_json: bool, **options: Any) -> None:
    """Write DATASET from a Zarr group, a file, a directory of files or a query.

    SOURCE is a text table (any suffix, also .gz and .zst), Parquet, JSON lines, Arrow, a DuckDB or
    SQLite file; .npy or .npz; a Zarr group or array; AnnData (.h5ad or Zarr); a directory of files
    of one suffix, for Parquet also in subdirectories key=value; or an SQL query that begins with
    FROM, SELECT or WITH. With --sql alone, give only DATASET. SOURCE may be a URL such as
    s3://bucket/rows.csv. With --variable, SOURCE is a scene: its pixels with all features and a
    label are rows. Rows are read in blocks, but .npz files are held in memory as a whole. Rows of
    SQLite files, and of queries that sort or join, are copied once.
    """
    from dask_nrbfn.commands.describe import describe_dataset
    from dask_nrbfn.commands.ingest import ingest_file

    if dataset is None and options["sql"] is None:
        raise click.UsageError("Missing argument 'DATASET'.")
    source, dataset = (None, source) if dataset is None else (source, dataset)
    job.begin("ingest", dataset)
    written = ingest_file(_without_foreign_options(source, dataset), dataset, **options)
    job.n_rows = written.n_rows
    show(describe_dataset(written), as_json)


def _without_foreign_options(source: Any, dataset: Any) -> Any:
    """Return the source without options of the file system of another protocol."""
    from dask_nrbfn.storage.location import RemoteLocation

    urls = [place.url for place in (source, dataset) if isinstance(place, RemoteLocation)]
    if len({url.partition("://")[0] for url in urls}) == 2:
        return source.url
    return source


@click.command(cls=Command)
@click.argument("path")
@click.option(
    "--verify",
    is_flag=True,
    help="Read all of a dataset, and list missing or damaged chunks and values that are not "
    "finite. Exits with 2 if there are problems.",
)
@json_option
@locations("path")
@click.pass_obj
def inspect(job: Job, path: str, verify: bool, as_json: bool) -> None:
    """Print a description of the dataset, run, model or predictions at PATH."""
    from dask_nrbfn.commands.describe import describe

    if verify:
        job.begin("inspect", path)
    figures = describe(path, verify=verify)
    job.n_rows = figures["n_rows"] if verify else None
    show(figures, as_json)
    if figures.get("problems"):
        raise click.exceptions.Exit(EXIT_MENDABLE)
