"""Add columns to obs of an AnnData store, or arrays to a Zarr group of another tool.

Columns of obs are listed after they are written, because readers look at the listed columns. A copy
of an .h5ad file, and arrays of a Zarr group, are moved into place when they are complete.
"""

import logging
import os
import shutil
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import zarr
from numpy.typing import NDArray

from dask_nrbfn.errors import ExistsError, ParameterError
from dask_nrbfn.sources.anndata import column_names, import_anndata, is_anndata, obs_of
from dask_nrbfn.sources.dtypes import STRING
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.zarr_arrays import damage_named, is_plain_zarr
from dask_nrbfn.storage.array import Array, read_rows
from dask_nrbfn.storage.group import flush_member, replace_group, store_at
from dask_nrbfn.storage.local import flush_tree, replace_path
from dask_nrbfn.storage.location import Location, RemoteLocation, join

logger = logging.getLogger(__name__)

# Attributes of an array of predictions in a Zarr group of another tool.
_WRITER = "dask_nrbfn predict"


class NewColumn(NamedTuple):
    """Column `place` of `values` (n,) or (n, q): numbers, or with `classes` codes of these."""

    values: Array
    place: int = 0
    classes: NDArray[Any] | None = None

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return some values as they are stored, (stop - start,)."""
        rows = read_rows(self.values, start, stop)
        return rows.reshape(len(rows), -1)[:, self.place]


class Columns:
    """The columns of obs of an AnnData store, or with `inside` "" the arrays of a Zarr group."""

    def __init__(self, location: str | os.PathLike[str] | RemoteLocation) -> None:
        url, options = str(location), {}
        if isinstance(location, RemoteLocation):
            url, options = location.url, {**location.storage_options}
        place = File(url.removeprefix("file://"), options)
        is_zarr = place.is_directory()
        in_file = place.name.endswith(".h5ad") and not (is_zarr or place.is_remote)
        in_obs = in_file or (is_zarr and is_anndata(place))
        # The superuser could write to a protected file, but should not.
        if not (os.stat(place).st_mode & 0o222 if in_file else in_obs or is_plain_zarr(place)):
            raise ParameterError(
                f"`to` is given, but {location} is no AnnData store, no Zarr group and no local "
                ".h5ad file without write protection.",
                "Give such a store, or `out` instead of `to`.",
            )
        if in_obs:
            import_anndata()
        self.location, self._place = location, place
        self.inside = "obs/" if in_obs else ""
        self._file = Path(os.path.realpath(place)) if in_file else None

    def check_free(self, names: tuple[str, ...], *, overwrite: bool) -> None:
        """Raise ExistsError if columns of some names may not be written."""
        with (
            damage_named(self._place, "AnnData" if self.inside else "Zarr"),
            self._opened() as root,
        ):
            if self.inside:
                obs = obs_of(root, self.location)
                kept, existing = {obs.attrs["_index"]}, column_names(obs)
            else:
                existing = list(root.keys())
                asked = {*names} & {*existing}
                kept = {name for name in asked if root[name].attrs.get("written_by") != _WRITER}
        for name in names:
            if name in kept or (name in existing and not overwrite):
                raise ExistsError(
                    f"{self.location} already has a column {self.inside}{name}"
                    f"{', which is not a prediction' * (name in kept)}.",
                    "Give another name"
                    f"{', or set `overwrite` to replace the column' * (name not in kept)}.",
                )

    def add(self, columns: Mapping[str, NewColumn], scratch: Location) -> None:
        """Write columns; `scratch` is a location beside the store."""
        if self._file is not None:
            import h5py

            # HDF5 does not survive a kill while it is written.
            copy = Path(str(scratch), self._file.name)
            shutil.copy2(self._file, copy)
            with h5py.File(copy, "r+") as root:
                self._add_to_obs(root, columns)
            flush_tree(copy.parent)
            replace_path(copy, self._file)
            return
        with self._opened() as root:
            if self.inside:
                self._add_to_obs(root, columns)
                return
            scratch = join(scratch, "columns")
            new = zarr.open_group(store_at(scratch), zarr_format=root.metadata.zarr_format)
            for name, column in columns.items():
                _write_array(new, name, column)
                replace_group(join(scratch, name), join(self.location, name))

    def _opened(self) -> AbstractContextManager[Any]:
        """Return the root group; a Zarr group is writable."""
        if self._file is None:
            store = store_at(self.location)
            return nullcontext(zarr.open_group(store, mode="r+", use_consolidated=False))
        import h5py

        opened: AbstractContextManager[Any] = h5py.File(self._file, "r")
        return opened

    def _add_to_obs(self, root: Any, columns: Mapping[str, NewColumn]) -> None:
        import pandas as pd

        obs = root["obs"]
        others = [name for name in column_names(obs) if name not in columns]
        self._list(root, others)
        for name, column in columns.items():
            values: Any = column.read()
            if (classes := column.classes) is not None:
                classes = classes.astype(object) if classes.dtype.kind in "TU" else classes
                values = pd.Categorical.from_codes(values, classes)
            with warnings.catch_warnings():
                # AnnData warns about its next version.
                warnings.filterwarnings("ignore", "zarr v3 autosharding")
                import_anndata().io.write_elem(obs, name, values)
            if self._file is None:
                flush_member(self.location, f"obs/{name}")
        self._list(root, [*others, *columns])

    def _list(self, root: Any, names: list[str]) -> None:
        """List the columns of obs, and renew the consolidated metadata of a Zarr store."""
        root["obs"].attrs["column-order"] = names
        if self._file is not None:
            return
        try:
            with warnings.catch_warnings():
                # zarr warns that Zarr 3 does not specify this metadata yet; AnnData reads it.
                warnings.simplefilter("ignore")
                if zarr.open_group(root.store, mode="r").metadata.consolidated_metadata:
                    zarr.consolidate_metadata(root.store)
        except (ValueError, TypeError, KeyError) as error:
            # zarr may not know the type of an array in uns.
            logger.warning(
                "the consolidated metadata of %s cannot be renewed (%s): open the store with "
                "use_consolidated=False to see the new columns",
                *(self.location, error),
            )


def _write_array(group: zarr.Group, name: str, column: NewColumn) -> None:
    """Write a column as an array, one chunk after another."""
    n_rows, step, classes = column.values.shape[0], column.values.chunks[0], column.classes
    if classes is not None and classes.dtype.kind == "U":
        # Zarr has a specified type only for text of any length.
        classes = classes.astype(STRING)
    dtype = (column.values if classes is None else classes).dtype
    array: Any = group.create_array(
        name, shape=(n_rows,), chunks=(step,), dtype=dtype, attributes={"written_by": _WRITER}
    )
    for start in range(0, n_rows, step):
        values = column.read(start, min(start + step, n_rows))
        array[start : start + step] = values if classes is None else classes[values]
