"""Predictions of estimators for dask collections and frames."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, Self

import dask.array as da
import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.ingest import dask_rows
from dask_nrbfn.errors import ExistsError, ParameterError
from dask_nrbfn.numeric.device import Device, compute_on
from dask_nrbfn.numeric.threads import task_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.scorer import Scorer, is_extended
from dask_nrbfn.sources.frames import as_frame, column_names
from dask_nrbfn.storage.dataset import check_columns, check_names
from dask_nrbfn.storage.group import exists
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.location import Location, RemoteLocation, join
from dask_nrbfn.storage.model import Model

_LIBRARIES = ("default", "pandas", "polars")


def result_of(
    model: Model,
    scores_by: Callable[[Scorer], Floats],
    result: str,
    device: Device,
    threads: int | None = None,
) -> NDArray[Any]:
    """Return a result of `RESULTS` for the rows whose scores `scores_by` computes by a scorer."""

    def compute() -> NDArray[Any]:
        rows = block_rows(model.n_basis) if model.cells is None else None
        scorer = Scorer(model, block_rows=rows, extended=is_extended(result))
        return scorer.result(result, scores_by(scorer))

    with task_threads(threads):
        return compute_on(device, compute)


def predict_lazily(
    model: Model, X: Any, result: str, store: Location | None, device: Device
) -> da.Array:
    """Return a result for the rows of a dask collection, as a dask array with the same chunks."""
    rows = dask_rows(X, schema=model.schema)
    if model.schema is None:
        check_columns(rows.shape[1], model.n_features)
        check_names(column_names(X), model.feature_names)
    nothing = Scorer(model, extended=is_extended(result)).no_result(result)
    layers = nothing.shape[1:]
    further = [*range(2, nothing.ndim)]
    return rows.rechunk({1: -1}).map_blocks(
        _predict_rows,
        _published(model, store),
        result,
        nothing.dtype,
        device,
        meta=nothing,
        drop_axis=None if layers else 1,
        new_axis=further or None,
        chunks=(rows.chunks[0], *((size,) for size in layers)),
    )


def _predict_rows(
    X: NDArray[Any],
    location: str | RemoteLocation,
    result: str,
    dtype: np.dtype[Any],
    device: Device,
    block_info: Mapping[int, Mapping[str, Any]],
) -> NDArray[Any]:
    block = block_info[0]
    first_row, within = block["array-location"][0][0], ""
    if np.isnan(first_row):
        # The number of rows before this block is known only once all blocks are computed.
        first_row, within = 0, f" of block {block['chunk-location'][0]}"
    scores_by = partial(Scorer.table, X=X, first_row=int(first_row), within=within)
    # Other blocks keep the other cores busy.
    values = result_of(_opened_model(location), scores_by, result, device, threads=1)
    # A stored model has fewer label types than an estimator accepts.
    return values.astype(dtype, copy=False)


def _published(model: Model, store: Location | None) -> str | RemoteLocation:
    """Write the model where workers can open it, without a `store` until this process ends."""
    place = _process_directory() if store is None else store
    location = join(place, f"model-{model.digest()}")
    if not exists(location):
        # Another process may write the same model at the same time.
        with suppress(ExistsError):
            model.save(location)
    return location


@cache
def _process_directory() -> str:
    directory = tempfile.mkdtemp(prefix="dask-nrbfn-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


# The location contains a digest of the model, so a cached model cannot be out of date.
@lru_cache(maxsize=1)
def _opened_model(location: str | RemoteLocation) -> Model:
    """Return a published model; each process reads it once."""
    return Model.load(location)


class PredictOutput:
    """Predictions of rows in memory as arrays, or as series and frames of another library."""

    # `sklearn.base.clone` copies this attribute by its name.
    _sklearn_output_config: dict[str, str]

    def set_output(self, *, predict: str | None = None) -> Self:
        """Set the type that `predict`, `predict_proba` and `decision_function` return.

        Parameters
        ----------
        predict : {"default", "pandas", "polars"}, optional
            "default": arrays, as scikit-learn's classifiers and regressors. Otherwise series, and
            frames for several columns, of that library, with the index of a pandas X. Dask
            collections always give dask arrays. None: no change.

        Raises
        ------
        ParameterError
            If `predict` is something else.
        """
        if predict is not None:
            if predict not in _LIBRARIES:
                raise ParameterError(
                    f"predict is {predict!r}.", f"Pass one of {', '.join(_LIBRARIES)}."
                )
            self._sklearn_output_config = {"predict": predict}
        return self

    def _as_output(self, values: NDArray[Any], X: Any, names: Sequence[str]) -> Any:
        """Return predictions in the type of `set_output`: (n, m), or (n,) with the last name."""
        library = getattr(self, "_sklearn_output_config", {}).get("predict", "default")
        if library == "default" or not isinstance(values, np.ndarray):
            return values
        if values.ndim == 1:
            output: Any = nw.new_series(names[-1], values, backend=library)
        else:
            columns = dict(zip(names, values.T, strict=True))
            output = nw.from_dict(columns, backend=library)
        native, frame = output.to_native(), as_frame(X)
        if library == "pandas" and frame is not None:
            index = nw.maybe_get_index(frame)
            native.index = native.index if index is None else index
        return native
