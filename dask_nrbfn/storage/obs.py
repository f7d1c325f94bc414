"""Columns that are added to obs of an AnnData store in Zarr, in the encodings of AnnData.

Readers look at the columns that obs lists. These are listed last, once they are whole, and no more
before they are written over: whoever reads meanwhile, or after the job was killed, finds a store
without them.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.errors import ExistsError, MissingDataError
from dask_nrbfn.storage.dense import Array, read_dense
from dask_nrbfn.storage.local import DurableStore
from dask_nrbfn.storage.location import Location, local_path, remote
from dask_nrbfn.storage.remote import open_store
from dask_nrbfn.storage.strict import metadata_named

# 4 MiB of float64.
_CHUNK_ROWS = 2**19


@dataclass(frozen=True)
class NewColumn:
    """What a column of obs is to have.

    Attributes
    ----------
    values : zarr.Array (n,) or (n, q)
        Numbers, or codes of categories.
    place : int
        Which of the q columns it is.
    categories : int or str (K,), optional
    """

    values: Array
    place: int = 0
    categories: NDArray[Any] | None = None

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some of the values, (b,)."""
        values = read_dense(self.values, start, stop)
        return values.reshape(len(values), -1)[:, self.place]


class Obs:
    """The table of the cells of an AnnData store, opened for writing.

    Parameters
    ----------
    location : Location
        Path or URL of the store.

    Raises
    ------
    MissingDataError, DamagedDataError, StorageError
        If there is none that can be opened.
    """

    def __init__(self, location: Location) -> None:
        path, url = local_path(location), remote(location)
        store = DurableStore(path) if path is not None else None
        if store is None:
            assert url is not None
            store = open_store(url)  # type: ignore[assignment]
        try:
            with metadata_named(location):
                root = zarr.open_group(store, mode="r+")
                self._root = zarr.open_group(store, mode="r+", use_consolidated=False)
                obs = self._root["obs"]
                if not isinstance(obs, zarr.Group):
                    raise TypeError("obs is no group")
                self._obs = obs
        except FileNotFoundError as error:
            raise MissingDataError(
                f"there is no AnnData store at {location}.", "Give the path of one."
            ) from error
        self.location = location
        self._is_consolidated = root.metadata.consolidated_metadata is not None

    @property
    def columns(self) -> list[str]:
        """Names of the columns that there are."""
        names: Any = self._obs.attrs["column-order"]
        return list(names)

    def check_free(self, names: Iterable[str], *, overwrite: bool) -> None:
        """Raise ExistsError if a column of such a name may not be written."""
        taken = {str(self._obs.attrs["_index"]), *([] if overwrite else self.columns)}
        for name in names:
            if name in taken:
                raise ExistsError(
                    f"{self.location} has a column obs/{name}.",
                    "Give another name, or `overwrite` it.",
                )

    def add(self, columns: Mapping[str, NewColumn], *, overwrite: bool) -> None:
        """Write columns, and then list them.

        Raises
        ------
        ExistsError
            If there is one of the name, and `overwrite` is false.
        """
        self.check_free(columns, overwrite=overwrite)
        others = [name for name in self.columns if name not in columns]
        if others != self.columns:
            self._list(others)
        for name, column in columns.items():
            self._write(name, column)
        # As they were listed before, where they were.
        self._list([*others, *columns])

    def _write(self, name: str, column: NewColumn) -> None:
        if column.categories is None:
            _copy(self._obs, name, column)
            return
        group = self._obs.create_group(name, overwrite=True)
        _copy(group, "codes", column)
        _fill(group, "categories", column.categories)
        group.attrs.update(_encoding("categorical") | {"ordered": False})

    def _list(self, names: Sequence[str]) -> None:
        self._obs.attrs["column-order"] = [*names]
        if self._is_consolidated:
            with warnings.catch_warnings():
                # That it is no part of Zarr 3 yet; AnnData reads it.
                warnings.simplefilter("ignore")
                zarr.consolidate_metadata(self._root.store, path=self._root.path or None)


def _copy(group: zarr.Group, name: str, column: NewColumn) -> None:
    n_rows, dtype = column.values.shape[0], column.values.dtype
    rows = min(n_rows, _CHUNK_ROWS)
    array = group.create_array(name, shape=(n_rows,), dtype=dtype, chunks=(rows,), overwrite=True)
    for start in range(0, n_rows, rows):
        array[start : start + rows] = column.read(start, min(start + rows, n_rows))
    array.attrs.update(_encoding("array"))


def _fill(group: zarr.Group, name: str, values: NDArray[Any]) -> None:
    text = values.dtype.kind in "TU"
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=str if text else values.dtype,
        chunks=(max(1, len(values)),),
        overwrite=True,
    )
    array[:] = values.astype(np.dtypes.StringDType()) if text else values
    array.attrs.update(_encoding("string-array" if text else "array"))


def _encoding(kind: str) -> dict[str, Any]:
    return {"encoding-type": kind, "encoding-version": "0.2.0"}
