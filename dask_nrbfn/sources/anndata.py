"""Cells: rows of an AnnData store, in Zarr or in an .h5ad file, read by the package anndata."""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import canonical, is_scipy
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    STRING,
    check_weight_dtype,
    checked_mark,
    feature_dtype,
    sparse_dtype,
)
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.frames import labels_of, plain_dtype
from dask_nrbfn.sources.source import Block, Reading, Source, check_apart, check_size, named_columns
from dask_nrbfn.sources.zarr_arrays import (
    damage_named,
    is_array,
    named_roles,
    opened_zarr,
    place_in_zarr,
    rows_at_once,
)

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class AnnDataSource(Source):
    """Cells: rows are read in blocks; labels or targets, weights and ids are in memory.

    x (n, g): an array of Zarr or HDF5, or rows in CSR. `wanted`: indices of the features in x.
    """

    place: File
    x: Any
    wanted: np.ndarray | None
    columns: tuple[np.ndarray | None, np.ndarray | None, np.ndarray]

    def _parts(self, block_rows: int) -> Iterator[Block]:
        size = rows_at_once(self.x, block_rows)
        for start in range(0, self.n_rows, size):
            rows = slice(start, start + size)
            with damage_named(self.place):
                X = self.x[rows]
            X = X if self.wanted is None else X[:, self.wanted]
            X = (canonical(X) if is_scipy(X) else X).astype(self.x_dtype, copy=False)
            yield Block(X, *(None if column is None else column[rows] for column in self.columns))


def is_anndata(place: File) -> bool:
    """Return whether a directory is an AnnData store in Zarr: every version has obs and var."""
    return {entry.name for entry in place.entries()} >= {"obs", "var"}


def open_rows(reading: Reading) -> AnnDataSource:
    """Return the cells of an AnnData store or .h5ad file; `read_as` has the default names.

    The features of a schema are found by name, in any order.
    """
    import_anndata()
    with damage_named(reading.place):
        return _cells(reading, _opened(reading.place), {"x": "X", **named_roles(reading)})


def _cells(reading: Reading, root: Any, names: dict[str, str]) -> AnnDataSource:
    place, label, weights = reading.place, names.get("y"), names.get("weights")
    targets = named_columns("target", names["target"]) if "target" in names else ()
    check_apart("weights", weights, label, *targets)
    obs = obs_of(root, place)
    x, found = _matrix(root, names["x"], place)
    check_size(f"{names['x']} of {place}", n_rows=x.shape[0], n_features=x.shape[1])
    trained = () if reading.schema is None else tuple(c.name for c in reading.schema.columns)
    wanted, features = None, found or tuple(f"{names['x'][5:]}_{j}" for j in range(x.shape[1]))
    if trained and found and trained != found:
        wanted, features = _places(trained, found, f"{names['x']} of {place}"), trained
    options = {names[option]: option for option in ("y", "weights") if option in names}
    columns = _obs_columns(obs, place, x.shape[0], options | dict.fromkeys(targets, "target"))
    is_sparse = hasattr(x, "group")
    y, mark, are_boolean = None, None, False
    if targets:
        y = np.stack([_numbers(columns[name], name) for name in targets], axis=1)
    elif label is not None:
        y, mark, are_boolean = _labels(columns[label], label, reading)
    return AnnDataSource(
        n_rows=x.shape[0],
        n_features=len(features),
        x_dtype=(sparse_dtype if is_sparse else feature_dtype)(np.dtype(x.dtype), names["x"]),
        y_dtype=None if y is None else y.dtype,
        has_weights=weights is not None,
        feature_names=features,
        target_names=tuple(name.removeprefix("obs/") for name in targets) or None,
        id_dtype=STRING,
        n_values=int(x.group["data"].shape[0]) if is_sparse else None,
        unlabelled=mark,
        boolean_labels=are_boolean,
        read_as=names,
        stored_at=None if is_sparse or wanted is not None else place_in_zarr(place, x),
        place=place,
        x=x,
        wanted=wanted,
        columns=(
            y,
            None if weights is None else _numbers(columns[weights], weights, is_weight=True),
            columns["obs_names"],
        ),
    )


def import_anndata() -> Any:
    """Return the package anndata, which needs h5py."""
    try:
        import anndata
        import h5py  # noqa: F401
    except ImportError as error:
        raise ParameterError(
            f"AnnData needs a package that is not installed ({error}).",
            "Install dask-nrbfn[anndata].",
        ) from error
    return anndata


def _opened(place: File) -> Any:
    """Return the root group of a store."""
    if not place.name.endswith(".h5ad"):
        return opened_zarr(place)
    import h5py

    return h5py.File(place.open() if place.is_remote else place.path, "r")


def _read_elem(element: Any) -> Any:
    anndata = import_anndata()
    with warnings.catch_warnings():
        # Elements of AnnData 0.7 have no encoding.
        warnings.simplefilter("ignore", anndata.OldFormatWarning)
        return anndata.io.read_elem(element)


def obs_of(root: Any, place: object) -> Any:
    """Return the group obs of a store."""
    if is_array(root["obs"]):
        raise DataError(
            f"obs of {place} is one array, as AnnData wrote before its version 0.7.",
            "Read the store with a current AnnData, and write a new store.",
        )
    return root["obs"]


def column_names(obs: Any) -> list[str]:
    """Return the names of the columns of obs."""
    return list(map(str, obs.attrs["column-order"]))


def _obs_columns(obs: Any, place: File, n_rows: int, options: dict[str, str]) -> dict[str, Any]:
    """Return the named columns of obs, as arrays of numpy or pandas, and obs_names."""
    import pandas as pd

    known = column_names(obs)
    columns: dict[str, Any] = {"obs_names": _row_names(obs)}
    for name, option in options.items():
        column = name.removeprefix("obs/")
        if column == name or column not in known:
            listed = ", ".join(f"obs/{column}" for column in known)
            raise DataError(
                f"{place} has no column {name!r}; it has {listed or 'none'}.",
                f"Name an existing column with `{option}`.",
            )
        columns[name] = _read_elem(obs[column])
        if (place_of_categories := obs[column].attrs.get("categories")) is not None:
            # AnnData 0.7 stored the categories of a column apart from its codes.
            categories = _read_elem(obs[place_of_categories])
            columns[name] = pd.Categorical.from_codes(columns[name], categories)
    for name, values in columns.items():
        if len(values) != n_rows:
            raise DataError(
                f"{name} of {place} has {len(values)} rows but the matrix has {n_rows}.",
                "Write the store again: obs has one row per row of X.",
            )
    return columns


def _row_names(frame: Any) -> np.ndarray:
    return np.asarray(_read_elem(frame[frame.attrs["_index"]])).astype(STRING)


def _numbers(values: Any, name: str, *, is_weight: bool = False) -> np.ndarray:
    """Return a column as numbers, float64 (n,); NaN where a value is missing."""
    import pandas as pd

    dtype = plain_dtype(values.dtype)
    check = check_weight_dtype if is_weight else feature_dtype
    check(STRING if dtype.kind == "O" else dtype, name)
    return pd.Series(values).astype(FLOAT64).to_numpy()


def _labels(values: Any, name: str, reading: Reading) -> tuple[np.ndarray, Any, bool]:
    """Return labels (n,), the marker for missing ones, and whether labels are true and false."""
    labels = labels_of(values, "", name=name)
    y, mark, given = labels.stored(""), None, reading.unlabelled
    if labels.missing is not None:
        mark = checked_mark("" if given is None else given, y.dtype, None)
        y[labels.missing] = mark
        of = (labels.missing.sum(), len(y), name, reading.place)
        logger.info("%d of %d rows have no label in %s of %s.", *of)
    return y, mark, labels.are_boolean


def _matrix(root: Any, name: str, place: File) -> tuple[Any, tuple[str, ...]]:
    """Return an array, or rows in CSR, that is read as ``x[a:b]``; and the stored feature names."""
    known = [name for name in ("X", "raw/X") if name in root]
    known += [f"{at}/{key}" for at in ("layers", "obsm") if at in root for key in sorted(root[at])]
    known = [name for name in known if root[name].attrs.get("encoding-type") != "null"]
    if name not in known:
        raise DataError(
            f"{place} has no matrix {name!r}; it has {', '.join(known) or 'none'}.",
            "Name an existing matrix with `x`.",
        )
    x = root[name]
    encoding = x.attrs.get("encoding-type", "array" if is_array(x) else "group")
    if encoding == "dataframe":
        frame = _read_elem(x)
        columns = [_numbers(frame[key].array, f"{name}/{key} of {place}") for key in frame]
        return np.stack(columns, axis=1), tuple(map(str, frame))
    if encoding == "csr_matrix":
        x = import_anndata().io.sparse_dataset(x, should_cache_indptr=False)
    if len(getattr(x, "shape", ())) != 2:
        raise DataError(
            f"{name} of {place} is stored as {encoding}.",
            f"Store {name} as an array or csr_matrix of two dimensions, and write the store again.",
        )
    if name.startswith("obsm/"):
        return x, ()
    features = tuple(_row_names(root["raw/var" if name == "raw/X" else "var"]).tolist())
    if len(features) != x.shape[1]:
        raise DataError(
            f"{place} names {len(features)} features, but {name} has {x.shape[1]} columns.",
            "Write the store again: var has one row per column of X.",
        )
    return x, features


def _places(wanted: tuple[str, ...], names: tuple[str, ...], x: str) -> np.ndarray:
    """Return the indices of the wanted features."""
    counts = Counter(names)
    if wrong := [feature for feature in wanted if counts[feature] != 1]:
        listed = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if wrong[3:] else "")
        raise DataError(
            f"{x} lacks or repeats {listed}, of {len(wanted)} features the model was trained on.",
            "Add features, call `adata.var_names_make_unique()`, or name another matrix with `x`.",
        )
    logger.info("%d of %d features of %s are used, by name.", len(wanted), len(names), x)
    places = {feature: j for j, feature in enumerate(names)}
    return np.array([places[feature] for feature in wanted])
