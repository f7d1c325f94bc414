"""Predict cells: labels and their probabilities as columns of the cells."""

import os
from contextlib import ExitStack
from typing import Any

import numpy as np

from dask_nrbfn.commands.predict import write_results
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError, RunBusyError
from dask_nrbfn.sources.anndata import is_anndata
from dask_nrbfn.sources.files import File
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
    """Raise ParameterError unless exactly one of `out` and `to` is given.

    Parameters
    ----------
    out : Location or None
        Where the predictions are written.
    to : str or None
        The column of an AnnData store that they are written to.
    """
    if (out is None) == (to is None):
        given = "neither `out` nor `to` is" if out is None else "`out` and `to` are both"
        raise ParameterError(
            f"{given} given.",
            "Give `out` for the predictions, or `to` for a column of an AnnData store.",
        )


class ObsTarget:
    """Columns of an AnnData store to which the predictions of a model are written.

    Parameters
    ----------
    cells : path, URL or RemoteLocation
        Location of an AnnData store in Zarr, or path of an .h5ad file.
    to : str
        Column "obs/NAME" for the labels or one numeric target. "obs/NAME_confidence" holds the
        probability of the predicted label. Several targets get a column "obs/NAME_TARGET" each.
    model : Model
    overwrite : bool
        Replace columns of these names.

    Raises
    ------
    ParameterError
        If `cells` is not an AnnData store or is write-protected, or `to` is not "obs/NAME".
    ExistsError
        If a column exists and `overwrite` is false, or a column holds the names of the cells.
    DataError, MissingDataError, DamagedDataError, StorageError
        If the store cannot be read, or has the layout of AnnData before version 0.7.
    """

    def __init__(self, cells: Cells, to: str, model: Model, *, overwrite: bool) -> None:
        name = to.removeprefix(_PLACE)
        # Zarr reserves names with two underscores; hidden names are those of unfinished writes.
        if not to.startswith(_PLACE) or "/" in name or name.startswith((".", "__")) or not name:
            raise ParameterError(
                f"`to` is {to!r}.", "Give a column of the cells: obs/NAME, such as obs/predicted."
            )
        url, options = (
            (cells.url, cells.storage_options)
            if isinstance(cells, RemoteLocation)
            else (os.fspath(cells), {})
        )
        place = File(url.removeprefix("file://"), options)
        in_file = not place.is_remote and place.name.endswith(".h5ad")
        if not (is_anndata(place) if place.is_directory() else in_file):
            raise ParameterError(
                f"`to` is given, but {cells} is neither an AnnData store in Zarr nor a local .h5ad "
                "file.",
                "Give an AnnData store or .h5ad file, or `out` instead of `to`.",
            )
        self.cells, self.model, self.overwrite = cells, model, overwrite
        self.columns = self._columns(name)
        self._obs = Obs(cells)
        self._obs.check_free(self.columns, overwrite=overwrite)

    def _columns(self, name: str) -> tuple[str, ...]:
        names = self.model.target_names
        if names is None:
            return (name, f"{name}_confidence")
        return (name,) if len(names) == 1 else tuple(f"{name}_{target}" for target in names)

    def write(self, run: Any, dataset: Dataset, engine: Engine) -> None:
        """Predict all cells, then write the columns.

        Parameters
        ----------
        run : Location
            Location of a model or a finished run.
        dataset : Dataset
            The cells.
        engine : Engine

        Raises
        ------
        RunBusyError
            If another job writes to the same cells.
        """
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
