"""Predict rows of a store: labels and their probabilities as columns of the same store."""

import os
from contextlib import ExitStack
from typing import Any

import numpy as np

from dask_nrbfn.commands.predict import write_results
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError, RunBusyError
from dask_nrbfn.sources.anndata import is_anndata
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.zarr_arrays import is_plain_zarr
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group, scratch_beside
from dask_nrbfn.storage.location import RemoteLocation
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.obs import NewColumn, Obs

_PLACE = "obs/"

Cells = str | os.PathLike[str] | RemoteLocation


def check_one_place(out: object, to: str | None) -> None:
    """Raise ParameterError unless exactly one of `out` and `to` is given."""
    if (out is None) == (to is None):
        given = "neither `out` nor `to` is" if out is None else "`out` and `to` are both"
        raise ParameterError(
            f"{given} given.",
            "Give `out` for the predictions, or `to` for a name in the store of the rows.",
        )


class ObsTarget:
    """Columns of an AnnData store, or arrays of a Zarr group, for the predictions of a model.

    `to` is "obs/NAME" or the name of an array, for the labels or one numeric target. The
    probability of the predicted label is in NAME_confidence. Several targets get NAME_TARGET each.
    `overwrite` replaces columns, and arrays of earlier predictions.
    """

    def __init__(self, cells: Cells, to: str, model: Model, *, overwrite: bool) -> None:
        url, options = (
            (cells.url, cells.storage_options)
            if isinstance(cells, RemoteLocation)
            else (os.fspath(cells), {})
        )
        place = File(url.removeprefix("file://"), options)
        in_file = not place.is_remote and place.name.endswith(".h5ad")
        is_directory = place.is_directory()
        if not ((is_directory and (is_anndata(place) or is_plain_zarr(place))) or in_file):
            raise ParameterError(
                f"`to` is given, but {cells} is not an AnnData store, a local .h5ad file or a Zarr "
                "group.",
                "Give such a store, or `out` instead of `to`.",
            )
        inside = _PLACE if in_file or is_anndata(place) else ""
        name = to.removeprefix(inside)
        # Zarr reserves names with two underscores; hidden names are those of unfinished writes.
        if not to.startswith(inside) or "/" in name or name.startswith((".", "__")) or not name:
            raise ParameterError(
                f"`to` is {to!r}.",
                f"Give a name without slashes: {inside}NAME, such as {inside}predicted.",
            )
        self.cells, self.model, self.overwrite, self.inside = cells, model, overwrite, inside
        self.columns = self._columns(name)
        self._obs = Obs(cells, inside)
        self._obs.check_free(self.columns, overwrite=overwrite)

    def _columns(self, name: str) -> tuple[str, ...]:
        names = self.model.target_names
        if names is None:
            return (name, f"{name}_confidence")
        return (name,) if len(names) == 1 else tuple(f"{name}_{target}" for target in names)

    def write(self, run: Any, dataset: Dataset, engine: Engine) -> None:
        """Predict all rows with a model or a finished run, then write the columns."""
        of_classes = self.model.target_names is None
        names = ("codes", "confidence") if of_classes else ("values",)
        with ExitStack() as stack:
            try:
                check_still_locked = stack.enter_context(locked_run(self.cells))
            except RunBusyError as error:
                remedy = "Wait until the other job is finished, and predict again."
                raise RunBusyError(error.args[0], remedy) from error
            scratch = stack.enter_context(scratch_beside(self.cells))
            # Another job may have written a column since.
            self._obs.check_free(self.columns, overwrite=self.overwrite)
            write_results(run, dataset, scratch, engine, names)
            group = open_group(scratch, kind="predictions")
            columns = self._filled([get_array(group, name) for name in names])
            check_still_locked()
            self._obs.add(columns, overwrite=self.overwrite, scratch=scratch)

    def _filled(self, results: list[Any]) -> dict[str, NewColumn]:
        if self.model.target_names is None:
            codes, confidence = results
            label = NewColumn(codes, categories=np.asarray(self.model.classes))
            return dict(zip(self.columns, (label, NewColumn(confidence)), strict=True))
        (values,) = results
        return {name: NewColumn(values, place) for place, name in enumerate(self.columns)}
