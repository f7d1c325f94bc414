"""Tables with categories, dates and gaps, as they are stored."""

from dataclasses import replace

import numpy as np

from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.numeric.schema import UNSEEN, Column, Schema
from dask_nrbfn.sources.arrays import ArrayRows
from dask_nrbfn.sources.options import WriteOptions
from dask_nrbfn.storage.dataset import Dataset

N = 40
COLUMNS = (
    Column("age", "number", fill=38.5, missing=0.2),
    Column("pay", "number", fill=7.0, missing=0.005),
    Column("sex", "category", ("f", "m"), missing=0.1),
    Column("town", "category", ("Bonn", "Köln", "Mainz"), others=True),
    Column("paid", "boolean"),
    Column("day", "date", fill=11_000.0, missing=0.3),
)
FILLED = Schema(COLUMNS, label="y", missing="impute")


def stored_rows(n_rows=N, *, gaps=True, seed=0):
    """Draw values as they are stored, categories that none is of among them."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(n_rows, 2))
    sex, town = rng.integers(UNSEEN, 2, n_rows), rng.integers(UNSEEN, 4, n_rows)
    paid, day = rng.integers(0, 2, n_rows), rng.integers(-20_000, 20_000, n_rows)
    stored = np.column_stack([numbers, sex, town, paid, day])
    stored[gaps & (rng.random(stored.shape) < 0.2)] = np.nan
    return stored


X = stored_rows()
Y = np.arange(N) % 3
OTHER_FILLS = replace(FILLED, columns=tuple(replace(each, fill=1.5) for each in COLUMNS))


def write_rows(
    location, X=X, y=Y, *, schema=FILLED, ids=None, unlabelled=None, chunk_rows=7, **options
) -> Dataset:
    source = ArrayRows({"x": np.asarray(X), "y": y, "id": ids})
    source.schema = schema
    stored = WriteOptions(chunk_rows=chunk_rows, overwrite=True)
    return ingest_source(source, location, stored, unlabelled=unlabelled, **options)
