"""Predict rows of a store: labels and their probabilities as new columns of the same store."""

import os
from contextlib import ExitStack

import numpy as np

from dask_nrbfn.commands.predict import write_results
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group, scratch_beside
from dask_nrbfn.storage.location import Location, RemoteLocation
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.obs import Columns, NewColumn


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

    def __init__(
        self,
        cells: str | os.PathLike[str] | RemoteLocation,
        to: str,
        model: Model,
        *,
        overwrite: bool,
    ) -> None:
        self.cells, self.model, self.overwrite = cells, model, overwrite
        self._store = Columns(cells)
        self.inside = inside = self._store.inside
        name = to.removeprefix(inside)
        # Zarr reserves names with two underscores; hidden names are those of unfinished writes.
        if not to.startswith(inside) or "/" in name or name.startswith((".", "__")) or not name:
            raise ParameterError(
                f"`to` is {to!r}.",
                f"Give a name without slashes: {inside}NAME, such as {inside}predicted.",
            )
        targets = model.target_names
        self.columns: tuple[str, ...] = (name, f"{name}_confidence")
        if targets is not None:
            self.columns = tuple(f"{name}_{each}" for each in targets) if targets[1:] else (name,)
        self._store.check_free(self.columns, overwrite=overwrite)

    def write(self, run: Location, dataset: Dataset, engine: Engine) -> None:
        """Predict all rows with a model or a finished run, then write the columns."""
        of_classes = self.model.target_names is None
        names = ("codes", "confidence") if of_classes else ("values",)
        with ExitStack() as stack:
            check_still_locked = stack.enter_context(locked_run(self.cells))
            scratch = stack.enter_context(scratch_beside(self.cells))
            # Another job may have written a column since.
            self._store.check_free(self.columns, overwrite=self.overwrite)
            write_results(run, dataset, scratch, engine, names)
            group = open_group(scratch, kind="predictions")
            results = [get_array(group, name) for name in names]
            columns = [NewColumn(results[0], place) for place in range(len(self.columns))]
            if of_classes:
                classes = np.asarray(self.model.classes)
                columns = [NewColumn(results[0], classes=classes), NewColumn(results[1])]
            check_still_locked()
            self._store.add(dict(zip(self.columns, columns, strict=True)), scratch)
