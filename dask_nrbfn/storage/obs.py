"""Add columns to obs of an AnnData store, in Zarr or in a local .h5ad file, or to a Zarr group.

Columns are written beside the store. Complete columns are then moved into the group, or into obs
and listed last, because readers look at the listed columns. An .h5ad file is replaced by a
copy with the columns. If the job is killed, readers find the old store, or one without the columns
that were being replaced.
"""

import logging
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr
from numpy.typing import NDArray

from dask_nrbfn.errors import (
    DamagedDataError,
    DataError,
    ExistsError,
    MissingDataError,
    NRBFNError,
    ParameterError,
)
from dask_nrbfn.sources.dtypes import STRING
from dask_nrbfn.sources.elements import Frame, installed, is_array
from dask_nrbfn.storage.dense import Array, read_dense
from dask_nrbfn.storage.group import replace_group, store_at
from dask_nrbfn.storage.local import flush_tree, replace_path
from dask_nrbfn.storage.location import Location, join, local_path

logger = logging.getLogger(__name__)

_WRITTEN: dict[str, Any] = {"written_by": "dask_nrbfn predict"}
"""Attributes of an array of predictions in a Zarr group of another tool."""


@dataclass(frozen=True)
class NewColumn:
    """A new column: column `place` of `values` (n,) or (n, q), numbers or codes of categories."""

    values: Array
    place: int = 0
    categories: NDArray[Any] | None = None

    def write(self, group: Any, name: str) -> None:
        """Write the column to a group of Zarr or HDF5 in the encoding of AnnData."""
        import pandas as pd

        values: Any = read_dense(self.values)
        values = values.reshape(len(values), -1)[:, self.place]
        if self.categories is not None:
            text = self.categories.dtype.kind in "TU"
            categories = self.categories.astype(object) if text else self.categories
            values = pd.Categorical.from_codes(values, categories)
        with warnings.catch_warnings():
            # AnnData warns about its next version.
            warnings.filterwarnings("ignore", "zarr v3 autosharding")
            installed("anndata.io").write_elem(group, name, values)

    def write_array(self, group: zarr.Group, name: str) -> None:
        """Write the column to a Zarr group as an array, one chunk after another."""
        n_rows, step, names = self.values.shape[0], self.values.chunks[0], self.categories
        if names is not None and names.dtype.kind == "U":
            # Zarr has a specified type only for text of any length.
            names = names.astype(STRING)
        dtype = (self.values if names is None else names).dtype
        array: Any = group.create_array(
            name, shape=(n_rows,), chunks=(step,), dtype=dtype, attributes=_WRITTEN
        )
        for start in range(0, n_rows, step):
            rows = read_dense(self.values, start, min(start + step, n_rows))
            rows = rows.reshape(len(rows), -1)[:, self.place]
            array[start : start + step] = rows if names is None else names[rows]


class Obs:
    """The table obs of an AnnData store, or with `inside` "" the arrays of a Zarr group."""

    def __init__(self, location: Location, inside: str = "obs/") -> None:
        self.location, self._inside = location, inside
        if inside:
            installed("anndata.io")
        path = local_path(location)
        real = None if path is None else Path(os.path.realpath(path))
        self._file = real if real is not None and real.is_file() else None
        # The superuser could write to the file, but should not.
        if self._file is not None and not self._file.stat().st_mode & 0o222:
            raise ParameterError(
                f"{location} is write-protected, so no column can be added.",
                "Copy the file and predict the copy, or allow writing.",
            )
        self._seen = self._stamp()
        with self._opened() as root:
            if inside and is_array(root["obs"]):
                raise DataError(
                    f"obs of {location} is one array, as AnnData wrote before its version 0.7.",
                    "Read the store with a current AnnData, write a new store, and predict that.",
                )

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        with self._opened() as root:
            if not self._inside:
                return list(root.keys())
            return list(Frame("obs", root["obs"]).columns)

    def check_free(self, names: Iterable[str], *, overwrite: bool) -> None:
        """Raise ExistsError if columns of some names may not be written.

        Of a Zarr group, only earlier predictions are replaced.
        """
        names, existing = [*names], self.columns
        with self._opened() as root:
            if self._inside:
                kept = {Frame("obs", root["obs"]).index}
            else:
                old = {*names} & {*existing}
                kept = {name for name in old if _WRITTEN.items() - root[name].attrs.items()}
        for name in names:
            if name in kept and (self._inside or overwrite):
                holds = "holds the names of the cells" if self._inside else "is not a prediction"
                raise ExistsError(
                    f"{self._inside}{name} of {self.location} {holds}.",
                    "Give another name.",
                )
            if name in existing and not overwrite:
                raise ExistsError(
                    f"{self.location} already has a column {self._inside}{name}.",
                    "Give another name, or set `overwrite` to replace the column.",
                )

    def add(self, columns: Mapping[str, NewColumn], *, overwrite: bool, scratch: Location) -> None:
        """Write columns to `scratch` beside the store, and move them when all are written."""
        self.check_free(columns, overwrite=overwrite)
        if self._file is not None:
            self._add_to_copy(columns, Path(str(scratch), self._file.name))
            return
        with self._opened() as root:
            new = zarr.open_group(
                store_at(place := join(scratch, "columns")),
                mode="w",
                zarr_format=root.metadata.zarr_format,
            )
            for name, column in columns.items():
                (column.write if self._inside else column.write_array)(new, name)
            listed, is_consolidated = self.columns, self._is_consolidated()
            others = [name for name in listed if name not in columns]
            if others != listed:
                self._list(root, others, is_consolidated)
            for name in columns:
                replace_group(join(place, name), join(self.location, f"{self._inside}{name}"))
            self._list(root, [*others, *columns], is_consolidated)

    def _add_to_copy(self, columns: Mapping[str, NewColumn], copy: Path) -> None:
        import h5py

        assert self._file is not None
        listed = [*(name for name in self.columns if name not in columns), *columns]
        shutil.copy2(self._file, copy)
        with h5py.File(copy, "r+") as root:
            for name, column in columns.items():
                column.write(root["obs"], name)
            root["obs"].attrs["column-order"] = listed
        flush_tree(copy.parent)
        if self._stamp() != self._seen:
            raise DataError(f"{self.location} changed during the job.", "Start the job again.")
        replace_path(copy, self._file)

    def _stamp(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        found = self._file.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield the root group; a Zarr group is writable."""
        with ExitStack() as opened:
            try:
                if self._file is not None:
                    import h5py

                    root: Any = opened.enter_context(h5py.File(self._file, "r"))
                else:
                    root = zarr.open_group(
                        store_at(self.location), mode="r+", use_consolidated=False
                    )
                if self._inside:
                    root["obs"]
            except NRBFNError:
                raise
            except FileNotFoundError as error:
                raise MissingDataError(
                    f"there is no AnnData store at {self.location}.",
                    "Give the path of an existing AnnData store or .h5ad file.",
                ) from error
            except Exception as error:
                # zarr and h5py have no common error for unreadable stores.
                raise DamagedDataError(
                    f"{self.location} cannot be read as AnnData ({type(error).__name__}: {error}).",
                    "Check the path, or write the store again with AnnData.",
                ) from error
            yield root

    def _is_consolidated(self) -> bool:
        try:
            root = zarr.open_group(store_at(self.location), mode="r")
        except (ValueError, TypeError, KeyError):
            # zarr may not know the type of an array in uns.
            return True
        return root.metadata.consolidated_metadata is not None

    def _list(self, root: zarr.Group, columns: list[str], is_consolidated: bool) -> None:
        if self._inside:
            root["obs"].attrs["column-order"] = columns
        if not is_consolidated:
            return
        try:
            with warnings.catch_warnings():
                # zarr warns that Zarr 3 does not specify this metadata yet; AnnData reads it.
                warnings.simplefilter("ignore")
                zarr.consolidate_metadata(root.store, path=root.path or None)
        except (ValueError, TypeError, KeyError) as error:
            logger.warning(
                "the consolidated metadata of %s cannot be renewed (%s): open the store with "
                "use_consolidated=False to see the new columns",
                *(self.location, error),
            )
