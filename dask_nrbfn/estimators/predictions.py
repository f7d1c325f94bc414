"""Predictions of a model block by block: of arrays at once, of dask arrays lazily."""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.collections import dask_rows
from dask_nrbfn.errors import ExistsError
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.sources.frames import column_names
from dask_nrbfn.storage.group import exists
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.location import Location, RemoteLocation, join
from dask_nrbfn.storage.model import Model


def scorer_of(model: Model, *, threads: int | None = None) -> Scorer:
    """Return the scorer of an estimator's rows."""
    return Scorer(model, block_rows=block_rows(model.n_basis), threads=threads)


def predict_lazily(model: Model, X: Any, result: str, store: Location | None) -> da.Array:
    """Return a result of a dask collection, chunked as its rows; the model is put in `store`."""
    rows = dask_rows(X, schema=model.schema)
    if model.schema is None:
        model.check_columns(rows.shape[1])
        model.check_names(column_names(X))
    rows = rows.rechunk({1: -1})
    nothing = Scorer(model).no_result(result)
    return rows.map_blocks(
        _predict_block,
        published(model, store),
        result,
        nothing.dtype,
        meta=nothing,
        drop_axis=1 if nothing.ndim == 1 else None,
        chunks=(rows.chunks[0], *((size,) for size in nothing.shape[1:])),
    )


def published(model: Model, store: Location | None) -> str | RemoteLocation:
    """Write the model where workers can open it, so that it is not part of any graph.

    Without a store it stays until this process ends, and with it the lazy predictions.
    """
    place = _process_directory() if store is None else store
    location = join(place, f"model-{model.digest()}")
    if not exists(location):
        # Another process may write the same one at the same time.
        with suppress(ExistsError):
            model.save(location)
    return location


@cache
def _process_directory() -> str:
    directory = tempfile.mkdtemp(prefix="dask-nrbfn-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


# The location names the content, so a cached model cannot be out of date.
@lru_cache(maxsize=1)
def opened_model(location: str | RemoteLocation) -> Model:
    """Return a published model, which a process reads once."""
    return Model.load(location)


def _predict_block(
    X: NDArray[Any],
    location: str | RemoteLocation,
    result: str,
    dtype: np.dtype[Any],
    block_info: Mapping[int, Mapping[str, Any]],
) -> NDArray[Any]:
    first_row, within = block_info[0]["array-location"][0][0], ""
    if np.isnan(first_row):
        # To know how many rows are before it, all blocks before it would have to be computed.
        first_row, within = 0, f" of block {block_info[0]['chunk-location'][0]}"
    # Other blocks keep the other cores busy.
    scorer = scorer_of(opened_model(location), threads=1)
    scores = scorer.table(X, first_row=int(first_row), within=within)
    # A stored model has fewer types of labels than an estimator may be given.
    return scorer.result(result, scores).astype(dtype, copy=False)
