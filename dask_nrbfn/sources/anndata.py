"""Cells: rows of an AnnData store, in Zarr or in an .h5ad file, read by the package anndata."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import canonical, is_scipy_sparse
from dask_nrbfn.sources.arrays import columns_by_name, named_roles
from dask_nrbfn.sources.dtypes import FLOAT64, STRING, checked_mark
from dask_nrbfn.sources.files import File, damage_named, optional_package
from dask_nrbfn.sources.frames import labels_of, plain_rows
from dask_nrbfn.sources.options import named_columns
from dask_nrbfn.sources.source import Request, check_found
from dask_nrbfn.sources.zarr_arrays import ZarrRows, opened_zarr

logger = logging.getLogger(__name__)

_REPEATED = "Call `adata.var_names_make_unique()`, or name another matrix with `x`."
_ABSENT = (
    "Name another matrix with `x`, such as raw/X, which may have more; or fit again with features "
    "that all stores have: `adata[:, names].write_h5ad(path)`."
)


class _Columns:
    """Some columns of a stored matrix (n, g), read by rows as an array or in canonical CSR."""

    def __init__(self, stored: Any, columns: Sequence[int] | None) -> None:
        self.stored, self.columns, self.dtype = stored, columns, stored.dtype
        self.shape = stored.shape if columns is None else (stored.shape[0], len(columns))
        self.chunks = getattr(stored, "chunks", None)
        # To count the values of some columns is to read them all.
        self.nnz = int(stored.group["data"].shape[0]) if hasattr(stored, "group") else None

    def __getitem__(self, rows: slice) -> Any:
        X = self.stored[rows]
        X = X if self.columns is None else X[:, self.columns]
        return canonical(X) if is_scipy_sparse(X) else X


def open_cells(request: Request) -> ZarrRows:
    """Return the cells of AnnData, with the features of a schema, which are found by name."""
    import_anndata()
    place, options = request.place, request.options
    names = named_roles(options, {"x": "X", "id": "obs_names", **request.read_as})
    with damage_named(place, "AnnData"):
        root = _opened(place)
        obs = obs_of(root, place)
        x, features = _matrix(root, names["x"], place)
        wanted = None if options.schema is None else tuple(c.name for c in options.schema.columns)
        if wanted and features and wanted != features:
            remedy = _REPEATED if {*wanted} <= {*features} else _ABSENT
            places = columns_by_name(wanted, features, f"{names['x']} of {place}", remedy)
            x, features = _Columns(x, places), wanted
        elif hasattr(x, "group"):
            x = _Columns(x, None)
        arrays = {"x": x, "id": _names(obs)}
        if "weights" in names:
            arrays["weights"] = _numbers(obs, (names["weights"],), "weights", place)[:, 0]
        targets, labels = None, None
        if "target" in names:
            targets = named_columns(names["target"])
            arrays["target"] = _numbers(obs, targets, "target", place)
        elif "y" in names:
            labels = labels_of(_column(obs, names["y"], "y", place), "", name=names["y"])
            mark = "" if options.unlabelled is None else options.unlabelled
            arrays["y"] = labels.stored(mark)
        source = ZarrRows(place, arrays, names)
    source.feature_names = features or tuple(f"{names['x'][5:]}_{j}" for j in range(x.shape[1]))
    if targets is not None:
        source.target_names = tuple(name.removeprefix("obs/") for name in targets)
    if labels is not None:
        source.boolean_labels = labels.values.dtype.kind == "b"
        if labels.missing is not None:
            source.unlabelled = checked_mark(mark, arrays["y"].dtype, None)
            told = (labels.missing.sum(), source.n_rows, names["y"])
            logger.info("%d of %d rows have no label in %s.", *told)
    return source


def import_anndata() -> Any:
    """Return the package anndata, which needs h5py."""
    optional_package("h5py", "anndata")
    return optional_package("anndata", "anndata")


def _opened(place: File) -> Any:
    """Return the root group of a store."""
    if not place.name.endswith(".h5ad"):
        return opened_zarr(place)
    import h5py

    return h5py.File(place.open() if place.is_remote else place.path, "r")


def obs_of(root: Any, place: object) -> Any:
    """Return the group obs of a store."""
    obs = root["obs"]
    # Older columns have no encoding: their categories would be read as codes.
    if obs.attrs.get("encoding-version") != "0.2.0":
        raise DataError(
            f"obs of {place} is not in the layout of AnnData 0.8 or later.",
            "Read the store with a current AnnData, and write a new store.",
        )
    return obs


def _names(frame: Any) -> np.ndarray:
    """Return the names of the rows of obs or var."""
    return np.asarray(import_anndata().io.read_elem(frame[frame.attrs["_index"]])).astype(STRING)


def _column(obs: Any, name: str, option: str, place: File) -> Any:
    """Return a column of obs, of numpy or pandas."""
    known = [f"obs/{column}" for column in obs.attrs["column-order"]]
    check_found([name], known, place, f"Name an existing column with `{option}`.")
    return import_anndata().io.read_elem(obs[name.removeprefix("obs/")])


def _numbers(obs: Any, names: tuple[str, ...], option: str, place: File) -> np.ndarray:
    """Return columns of obs as float64 (n, q), NaN where a value is missing."""
    import pandas as pd

    columns = {name: _column(obs, name, option, place) for name in names}
    return plain_rows(pd.DataFrame(columns), "obs").astype(FLOAT64)


def _matrix(root: Any, name: str, place: File) -> tuple[Any, tuple[str, ...]]:
    """Return an array, or rows in CSR, that is read as ``x[a:b]``; and the names in var."""
    known = [name for name in ("X", "raw/X") if name in root]
    known += [f"{at}/{key}" for at in ("layers", "obsm") if at in root for key in sorted(root[at])]
    check_found([name], known, place, "Name an existing matrix with `x`.", "matrix")
    x = root[name]
    encoding = x.attrs.get("encoding-type")
    if encoding == "csr_matrix":
        x = import_anndata().io.sparse_dataset(x, should_cache_indptr=False)
    if len(getattr(x, "shape", ())) != 2:
        raise DataError(
            f"{name} of {place} is stored as {encoding}.",
            f"Store {name} as an array or csr_matrix of two dimensions, and write the store again.",
        )
    if name.startswith("obsm/"):
        return x, ()
    features = tuple(_names(root["raw/var" if name == "raw/X" else "var"]).tolist())
    if len(features) != x.shape[1]:
        raise DataError(
            f"{place} names {len(features)} features, but {name} has {x.shape[1]} columns.",
            "Write the store again: var has one row per column of X.",
        )
    return x, features
