"""Tables of the tests of this room: how they are written, ingested and looked at."""

import gzip
import re

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import feather
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_file
from tests.opened import open_source

N = 37


def people():
    rng = np.random.default_rng(0)
    columns = {
        "size": rng.normal(size=N),
        "town": rng.choice(["Bonn", "Köln"], N),
        "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(N), "D"),
        "y": [f"k{row % 3}" for row in range(N)],
    }
    return pd.DataFrame(columns)


def as_csv(table, path):
    separator = "\t" if ".tsv" in path.name else ","
    text = table.to_csv(index=False, sep=separator).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text)
    elif path.suffix == ".zst":
        text = pa.compress(text, "zstd", asbytes=True)
    path.write_bytes(text)


def as_parquet(table, path):
    table.to_parquet(path, index=False, row_group_size=8)


def as_feather(table, path):
    feather.write_feather(table, path, chunksize=5)


def ingest(path, **options):
    return ingest_file(path, MemoryStore(), **options)


def ingest_text(tmp_path, text, *, name="d.csv", **options):
    path = tmp_path / name
    path.write_text(text)
    return ingest(path, **options)


def rows_of(dataset):
    return dataset.take(np.arange(dataset.n_rows))


def labels_of(dataset):
    return dataset.classes[dataset.codes()].tolist()


def query_of(advice):
    """Return the query of a remedy or of a warning."""
    return re.search('sql`?="(.*)"', advice, re.DOTALL)[1].replace(r"\"", '"')


def typed(refused, tmp_path):
    """Return the dataset that the query of a remedy reads."""
    return ingest(query_of(refused.value.remedy).replace("FILE", str(tmp_path / "d.csv")))


def features(source, **options):
    return np.concatenate([block.X for block in open_source(source, **options).blocks(5000)])
