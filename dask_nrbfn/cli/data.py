"""Commands for datasets and other stored data: ingest, inspect."""

from typing import Any

import click

from dask_nrbfn.cli.group import EXIT_MENDABLE
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import command, given, params
from dask_nrbfn.sources.options import IngestOptions


@command(["source", "dataset?"], params(IngestOptions))
def ingest(job: Job, source: Any, dataset: Any = None, **options: Any) -> None:
    """Write DATASET from a Zarr group, a file, a directory of files or a query.

    SOURCE is a text table (any suffix, also .gz and .zst), Parquet, JSON lines, Arrow, a DuckDB or
    SQLite file; .npy or .npz; a Zarr group or array; AnnData (.h5ad or Zarr); a directory of files
    of one suffix, also in subdirectories key=value; or an SQL query that begins with
    FROM, SELECT or WITH. With --sql alone, give only DATASET. SOURCE may be a URL such as
    s3://bucket/rows.csv. With --variable, SOURCE is a scene: its pixels with all features and a
    label are rows. Rows are read in blocks, but .npz files are held in memory as a whole. Rows of
    SQLite files, and of queries that sort or join, are copied once.
    """
    from dask_nrbfn.commands.describe import describe_dataset
    from dask_nrbfn.commands.ingest import ingest_file

    if dataset is None and "sql" not in options:
        raise click.UsageError("Missing argument 'DATASET'.")
    source, dataset = (None, source) if dataset is None else (source, dataset)
    job.begin(dataset)
    written = ingest_file(source, dataset, **options)
    job.n_rows = written.n_rows
    job.show(describe_dataset(written))


@command(["path"], given("verify"))
def inspect(job: Job, path: str, *, verify: bool) -> None:
    """Print a description of the dataset, run, model or predictions at PATH."""
    from dask_nrbfn.commands.describe import describe

    if verify:
        job.begin(path)
    figures = describe(path, verify=verify)
    job.n_rows = figures["n_rows"] if verify else None
    job.show(figures)
    if figures.get("problems"):
        raise click.exceptions.Exit(EXIT_MENDABLE)
