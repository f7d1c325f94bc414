"""Arrays of a Zarr group, or one Zarr array, whose first dimension are the rows."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.arrays import ArrayRows, named_roles
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.source import Block, Request, StoredAt, check_found

# Largest chunk that is decoded as a whole, while another chunk is in use.
MAX_CHUNK_BYTES = 2**27


class ZarrRows(ArrayRows):
    """Rows of Zarr arrays, read by whole chunks where they are not too large."""

    def __init__(self, place: File, arrays: Mapping[str, Any], names: Mapping[str, str]) -> None:
        super().__init__(arrays, {"x": str(place), **names})
        self.place = place
        self.stored_at = place_in_zarr(place, arrays["x"])
        self.read_as = {role: name for role, name in names.items() if role != "id"}

    def _parts(self, block_rows: int) -> Iterator[Block]:
        x = self.arrays["x"]
        row_bytes = max(1, math.prod(x.shape[1:]) * x.dtype.itemsize)
        # Neither rows in CSR nor all arrays of HDF5 have chunks of rows.
        chunk_rows = (getattr(x, "chunks", None) or (1,))[0]
        step = min(chunk_rows, max(1, MAX_CHUNK_BYTES // row_bytes))
        return super()._parts(int(max(block_rows // step, 1) * step))

    def _block(self, start: int, stop: int) -> Block:
        with damage_named(f"rows {start} to {stop} of {self.place}", "arrays"):
            return super()._block(start, stop)


def open_zarr(request: Request) -> ZarrRows:
    """Return the rows of a Zarr group or array; `read_as` has the default names."""
    place, names = request.place, named_roles(request.options, request.read_as)
    with damage_named(place, "Zarr"):
        root = opened_zarr(place)
        arrays = {"x": root}
        if not hasattr(root, "dtype"):
            names.setdefault("x", "X")
            arrays = {role: _member(root, role, name, place) for role, name in names.items()}
        elif names:
            raise ParameterError(
                f"{', '.join(f'`{role}`={name}' for role, name in names.items())} is given, but "
                f"{place} is one array.",
                "Pass the group that has all arrays.",
            )
        return ZarrRows(place, arrays, names)


def _member(root: Any, role: str, name: str, place: File) -> Any:
    array = root.get(name)
    if not hasattr(array, "dtype"):
        remedy = (
            f"Name an existing array with `{role}`. For a scene, name its variables with "
            "`variable`, and the dimension of their features with `feature_dim`."
        )
        check_found([name], sorted(root.array_keys()), place, remedy, "array")
    return array


def place_in_zarr(place: File, array: Any) -> StoredAt | None:
    """Return the location of rows that can be read without a copy; None if rows are copied."""
    if place.storage_options or not hasattr(array, "metadata") or array.ndim != 2:
        return None
    if array.chunks[0] * array.shape[1] * array.dtype.itemsize > MAX_CHUNK_BYTES:
        return None
    path = place.path if place.is_remote else os.path.abspath(place)
    return StoredAt(path, array.path, array.chunks[0])


def opened_zarr(place: File) -> Any:
    """Return the Zarr group or array at a place."""
    import zarr

    options = dict(place.storage_options) or None
    # zarr cannot read consolidated metadata if it does not know the type of one of the arrays.
    return zarr.open(place.path, mode="r", storage_options=options, use_consolidated=False)


def zarr_format(place: File) -> str | None:
    """Return the format of a Zarr directory, "" if this package wrote it; None of another one."""
    names = {entry.name for entry in place.entries()}
    if names.isdisjoint({"zarr.json", ".zgroup", ".zarray"}):
        return None
    if names >= {"obs", "var"}:
        return "anndata"
    if "zarr.json" in names:
        with replace(place, path=f"{place.path.rstrip('/')}/zarr.json").open() as file:
            try:
                kind = str(json.loads(file.read()).get("attributes", {}).get("kind"))
            except (ValueError, AttributeError):
                return ""
        return "" if kind.startswith("dask_nrbfn.") else "zarr"
    return "zarr"
