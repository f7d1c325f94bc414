"""Predict rows of a store: labels and their probabilities as new columns of the same store.

Columns of obs are listed after they are written, because readers look at the listed columns. A copy
of an .h5ad file, and arrays of a Zarr group, are moved into place when they are complete.
"""

import os
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import zarr

from dask_nrbfn.commands.predict import write_results
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ExistsError, ParameterError
from dask_nrbfn.sources.anndata import import_anndata, obs_of
from dask_nrbfn.sources.files import damage_named
from dask_nrbfn.sources.zarr_arrays import zarr_format
from dask_nrbfn.storage.array import Array, get_array, read_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import (
    flush_member,
    open_group,
    replace_group,
    scratch_beside,
    store_at,
)
from dask_nrbfn.storage.local import flush_tree, replace_path
from dask_nrbfn.storage.location import Location, RemoteLocation, file_of, join
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.model import Model

# Attribute of an array of predictions in a Zarr group of another tool.
_WRITER = "dask_nrbfn predict"


def check_one_place(out: object, to: str | None) -> None:
    """Raise ParameterError unless exactly one of `out` and `to` is given."""
    if (out is None) == (to is None):
        raise ParameterError(
            "`out` and `to` are both given, or neither of them.",
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
        self._place = place = file_of(cells)
        is_zarr = place.is_directory()
        in_file = place.name.endswith(".h5ad") and not (is_zarr or place.is_remote)
        found = zarr_format(place) if is_zarr else None
        in_obs = in_file or found == "anndata"
        # The superuser could write to a protected file, but should not.
        if not (os.stat(place).st_mode & 0o222 if in_file else in_obs or found == "zarr"):
            raise ParameterError(
                f"`to` is given, but {cells} is no AnnData store, no Zarr group and no local .h5ad "
                "file without write protection.",
                "Give such a store, or `out` instead of `to`.",
            )
        if in_obs:
            import_anndata()
        self._in_file, self.inside = in_file, "obs/" if in_obs else ""
        # Zarr reserves names with two underscores; hidden names are those of unfinished writes.
        if not re.fullmatch(rf"{self.inside}(?!\.|__)[^/]+", to):
            raise ParameterError(
                f"`to` is {to!r}.",
                f"Give a name without slashes: {self.inside}NAME, such as {self.inside}predicted.",
            )
        name, targets = to.removeprefix(self.inside), model.target_names
        self.columns: tuple[str, ...] = (name, f"{name}_confidence")
        if targets is not None:
            self.columns = tuple(f"{name}_{each}" for each in targets) if targets[1:] else (name,)
        self._check_free()

    def write(self, run: Location, dataset: Dataset, engine: Engine) -> None:
        """Predict all rows with a model or a finished run, then write the columns."""
        of_classes, n_columns = self.model.target_names is None, len(self.columns)
        names = ("labels", "confidence") if of_classes else ("values",)
        with locked_run(self.cells) as check_still_locked, scratch_beside(self.cells) as scratch:
            # Another job may have written a column since.
            self._check_free()
            write_results(run, dataset, scratch, engine, names)
            group = open_group(scratch, kind="predictions")
            # One array (n, q) has all targets.
            results = [get_array(group, name) for name in names] * (1 if of_classes else n_columns)
            check_still_locked()
            self._add(dict(zip(self.columns, results, strict=True)), scratch)

    def _check_free(self) -> None:
        """Raise ExistsError if a column may not be written."""
        package = "AnnData" if self.inside else "Zarr"
        with damage_named(self._place, package), self._opened() as root:
            if self.inside:
                obs = obs_of(root, self._place)
                existing, kept = list(obs.attrs["column-order"]), {obs.attrs["_index"]}
            else:
                existing = [name for name in self.columns if name in root]
                kept = {name for name in existing if root[name].attrs.get("written_by") != _WRITER}
        for name in self.columns:
            if name in kept or (name in existing and not self.overwrite):
                raise ExistsError(
                    f"{self.cells} already has {self.inside}{name}.",
                    "Give another name, or set `overwrite` to replace earlier predictions.",
                )

    def _opened(self, copy: Path | None = None) -> AbstractContextManager[Any]:
        """Return the root group: of Zarr or a copy of a file writable, of a file read-only."""
        if not self._in_file:
            store = store_at(self.cells)
            return nullcontext(zarr.open_group(store, mode="r+", use_consolidated=False))
        import h5py

        opened: AbstractContextManager[Any] = h5py.File(copy or self._place, "r+" if copy else "r")
        return opened

    def _add(self, results: Mapping[str, Array], scratch: Location) -> None:
        """Write columns; `scratch` is a location beside the store."""
        copy = Path(str(scratch), self._place.name) if self._in_file else None
        if copy:
            # HDF5 does not survive a kill while it is written.
            shutil.copy2(self._place, copy)
        with self._opened(copy) as root:
            if self.inside:
                self._add_to_obs(root, results)
            else:
                self._add_arrays(root, results, join(scratch, "columns"))
        if copy:
            flush_tree(copy.parent)
            replace_path(copy, Path(os.path.realpath(self._place)))

    def _add_arrays(self, root: Any, results: Mapping[str, Array], scratch: Location) -> None:
        new = zarr.open_group(store_at(scratch), zarr_format=root.metadata.zarr_format)
        for name, stored in results.items():
            n_rows, step = stored.shape[0], stored.chunks[0]
            sizes: Any = {"shape": (n_rows,), "chunks": (step,), "dtype": stored.dtype}
            array: Any = new.create_array(name, **sizes, attributes={"written_by": _WRITER})
            for start in range(0, n_rows, step):
                array[start : start + step] = self._values(name, stored, start, start + step)
            replace_group(join(scratch, name), join(self.cells, name))

    def _values(self, name: str, stored: Array, start: int = 0, stop: int | None = None) -> Any:
        """Return some values of a column, (stop - start,), from results (n,) or (n, q)."""
        rows = read_rows(stored, start, stop)
        return rows if rows.ndim == 1 else rows[:, self.columns.index(name)]

    def _add_to_obs(self, root: Any, results: Mapping[str, Array]) -> None:
        import pandas as pd

        others = [name for name in root["obs"].attrs["column-order"] if name not in results]
        self._list(root, others)
        for name, stored in results.items():
            values = self._values(name, stored)
            if stored.basename == "labels":
                values = pd.Categorical(values.tolist(), self.model.classes.tolist())
            with warnings.catch_warnings():
                # AnnData warns about its next version.
                warnings.filterwarnings("ignore", "zarr v3 autosharding")
                import_anndata().io.write_elem(root["obs"], name, values)
            if not self._in_file:
                flush_member(self.cells, f"obs/{name}")
        self._list(root, [*others, *results])

    def _list(self, root: Any, names: list[str]) -> None:
        """List the columns of obs, and renew the consolidated metadata of a Zarr store."""
        root["obs"].attrs["column-order"] = names
        if not self._in_file:
            with warnings.catch_warnings():
                # zarr warns that Zarr 3 does not specify this metadata yet; AnnData reads it.
                warnings.simplefilter("ignore")
                if zarr.open_group(root.store, mode="r").metadata.consolidated_metadata:
                    zarr.consolidate_metadata(root.store)
