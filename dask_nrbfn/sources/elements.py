"""The elements of an AnnData store, in Zarr or HDF5, of any version of AnnData.

Arrays of Zarr and of HDF5 are sliced alike, so that matrices, codes of categories and names are
read in blocks of rows. anndata, which takes a second to load, reads the rest: slices of sparse
matrices, whole columns of other types, and layouts before AnnData 0.7.
"""

import importlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.sources.dtypes import FLOAT64, STRING, sparse_dtype

# Rows of a column that are read at once to scan the column.
_SCANNED_ROWS = 1 << 20
# Bytes of a CSC matrix that are decoded at a time; as many bytes are held as rows.
_CSC_BYTES = 1 << 27
# Bytes of a float64 value and its row index.
_VALUE_BYTES = 12


def installed(name: str) -> ModuleType:
    """Return a module of the extra `anndata`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ParameterError(
            f"AnnData needs a package that is not installed ({error}).",
            "Install dask-nrbfn[anndata].",
        ) from error


def read_elem(element: Any) -> Any:
    """Return a whole element as anndata reads it, without a warning about an old layout."""
    anndata = installed("anndata")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anndata.OldFormatWarning)
        return anndata.io.read_elem(element)


@dataclass(frozen=True)
class Matrix:
    """The rows of a matrix.

    name: such as "obsm/X_pca".
    columns (p,): which of the stored columns the rows have, by default all.
    shape (n, p).
    """

    name: str
    shape: tuple[int, int]
    stored: Any
    columns: np.ndarray | None = None

    @property
    def order(self) -> str | None:
        """How a sparse matrix is stored: "csr" or "csc"."""
        return getattr(self.stored, "format", None)

    @property
    def dtype(self) -> np.dtype:
        """Type of the values; a float if the matrix is sparse."""
        own = np.dtype(self.stored.dtype)
        return own if self.order is None else sparse_dtype(own, self.name)

    @property
    def n_values(self) -> int | None:
        """Number of stored values; None for an array."""
        return None if self.order is None else int(self.stored.group["data"].shape[0])

    @property
    def readings(self) -> int:
        """How many times each value is decoded to read all rows."""
        if self.order != "csc":
            return 1
        return max(1, math.ceil((self.n_values or 0) * _VALUE_BYTES / _CSC_BYTES))

    @property
    def chunk_rows(self) -> int:
        """Number of rows that are decoded at once; 1 in CSR, where any rows can be read."""
        if self.order == "csc":
            return -(-self.shape[0] // self.readings)
        chunks = getattr(self.stored, "chunks", None)
        return 1 if chunks is None else int(chunks[0])

    @property
    def chunk_bytes(self) -> int:
        """Bytes that are decoded at once: rows of all columns, or some values of sparse rows."""
        if self.order is None:
            return self.chunk_rows * int(self.stored.shape[1]) * self.dtype.itemsize
        arrays = (self.stored.group[name] for name in ("data", "indices"))
        return max(math.prod(array.chunks or ()) * array.dtype.itemsize for array in arrays)

    def read(self, start: int, stop: int) -> Any:
        """Return some rows, ndarray (b, p) or csr_array (b, p).

        start, stop: index of the first row, and of the row after the last.
        """
        rows = self._csc_rows(start, stop) if self.order == "csc" else self.stored[start:stop]
        rows = rows if self.columns is None else rows[:, self.columns]
        if self.order is None:
            return np.asarray(rows)
        return canonical(rows.astype(self.dtype, copy=False))

    def _csc_rows(self, start: int, stop: int) -> Any:
        from scipy.sparse import hstack

        n_columns = self.stored.shape[1]
        width = max(1, n_columns // self.readings)
        spans = ((j, min(j + width, n_columns)) for j in range(0, n_columns, width))
        # Pieces in one format are joined without further copies.
        return hstack([self.stored[:, a:b][start:stop] for a, b in spans], format="csc").tocsr()


@dataclass(frozen=True)
class Column:
    """A column of a data frame.

    name: such as "obs/cell_type".
    stored (n,): the values, or the codes of categories; a negative code is a missing value.
    categories (K,).
    """

    name: str
    stored: Any
    categories: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return int(self.stored.shape[0])

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        if self.categories is not None:
            return self.categories.dtype
        own = np.dtype(self.stored.dtype)
        # Text of HDF5 is Python objects to numpy.
        return STRING if own.kind == "O" else own

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of some rows, and which of them are missing.

        start, stop: index of the first row, and of the row after the last.
        values (b,)
        missing (b,)
        """
        values = _texts(self.stored, start, stop)
        if self.categories is not None:
            blank = np.zeros(1, dtype=self.categories.dtype)
            return np.concatenate([self.categories, blank])[values], values < 0
        return values, np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)

    def numbers(self, start: int, stop: int) -> np.ndarray:
        """Return the values of some rows as numbers, float64 (b,).

        NaN for a missing value.

        start, stop: index of the first row, and of the row after the last.
        """
        values, none = self.read(start, stop)
        return np.where(none, np.nan, values.astype(FLOAT64))

    def scanned(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the result of `read` for all rows."""
        for start in range(0, self.n_rows, _SCANNED_ROWS):
            yield self.read(start, min(start + _SCANNED_ROWS, self.n_rows))


@dataclass(frozen=True)
class Frame:
    """A data frame: obs, var or one in obsm.

    stored: A DataFrame for a structured array, which AnnData wrote before version 0.7.
    """

    name: str
    stored: Any

    @classmethod
    def at(cls, root: Any, name: str) -> "Frame":
        """Return the frame that a store has under a name.

        root: the store.
        name: such as "obs".
        """
        legacy = name.replace("/", ".")
        return cls.of(root[legacy if legacy in root else name], name, root.get("uns"))

    @classmethod
    def of(cls, element: Any, name: str, uns: Any = None) -> "Frame":
        """Return an element as a frame.

        name: such as "obs".
        uns: may have the categories of a frame in an old layout.
        """
        if is_array(element):
            return cls(name, _unpacked(read_elem(element), uns))
        return cls(name, element)

    @property
    def _is_whole(self) -> bool:
        return hasattr(self.stored, "iloc")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, without the index."""
        listed = self.stored.columns if self._is_whole else self.stored.attrs.get("column-order")
        if listed is None:
            listed = sorted({*self.stored.keys()} - {self.index})
        return tuple(map(str, listed))

    @property
    def index(self) -> str | None:
        """Name of the column that names the rows, None if no column does."""
        if self._is_whole:
            return str(self.stored.index.name or "_index")
        own = attribute(self.stored, "_index", None)
        return own or next((name for name in ("_index", "index") if name in self.stored), None)

    def named_column(self, name: str, origin: object, option: str) -> Column:
        """Return a column that an option names.

        name: such as "obs/cell_type".
        origin: the store, for errors.
        """
        known = [f"{self.name}/{column}" for column in self.columns]
        if name not in known:
            raise DataError(
                f"{origin} has no column {name!r}; it has {_listed(known)}.",
                f"Name an existing column with `{option}`.",
            )
        return self.column(name.removeprefix(f"{self.name}/"))

    @property
    def row_names(self) -> Column | None:
        """The names of the rows, None if rows have no names."""
        if self.index is None:
            return None
        return replace(self.column(self.index), name=f"{self.name}_names")

    def column(self, name: str) -> Column:
        """Return a column."""
        if self._is_whole:
            element = (self.stored.index if name == self.index else self.stored[name]).array
        else:
            element = self.stored[name]
            if _encoding_of(element) == "categorical":
                categories = _texts(element["categories"])
                return Column(f"{self.name}/{name}", element["codes"], categories)
            if (place := element.attrs.get("categories")) is not None:
                # AnnData 0.7 stores a path in Zarr, a reference in HDF5.
                return Column(f"{self.name}/{name}", element, _texts(self.stored[place]))
            element = element if is_array(element) else read_elem(element)
        if hasattr(element, "isna"):
            from pandas import Categorical

            # Missing values of a pandas array have the code -1.
            coded = element if hasattr(element, "codes") else Categorical(element)
            return Column(f"{self.name}/{name}", coded.codes, _texts(coded.categories.to_numpy()))
        if len(getattr(element, "shape", ())) != 1:
            raise DataError(
                f"{self.name}/{name} is stored as {_told(self.stored[name])}.",
                "Store a column of categories, text or numbers, as `adata.write_zarr` does.",
            )
        return Column(f"{self.name}/{name}", element)


@dataclass(frozen=True)
class _Numbers:
    """The columns of a data frame as one array (n, p)."""

    columns: tuple[Column, ...]
    names: tuple[str, ...]
    dtype = FLOAT64

    @property
    def shape(self) -> tuple[int, int]:
        return (self.columns[0].n_rows if self.columns else 0, len(self.columns))

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.stack([column.numbers(rows.start, rows.stop) for column in self.columns], axis=1)


def matrix_at(root: Any, name: str, origin: object) -> Matrix:
    """Return the matrix that is called X, raw/X, layers/NAME or obsm/NAME.

    root: the store.
    origin: the store, for errors.
    """
    element = _element_at(root, name)
    if element is None or _encoding_of(element) == "null":
        raise DataError(
            f"{origin} has no matrix {name!r}; it has {_listed(_matrix_names(root))}.",
            "Name an existing matrix with `x`.",
        )
    return matrix_of(element, name, origin)


def matrix_of(element: Any, name: str, origin: object) -> Matrix:
    """Return the matrix that an array or group holds.

    origin: the store, for errors.
    """
    encoding = _encoding_of(element)
    if encoding in ("csr_matrix", "csc_matrix"):
        element = installed("anndata.io").sparse_dataset(element, should_cache_indptr=False)
    elif encoding == "dataframe":
        frame = Frame.of(element, name)
        columns = tuple(frame.column(column) for column in frame.columns)
        element = _Numbers(columns, frame.columns)
        for column in element.columns:
            if column.dtype.kind not in "biuf":
                raise DataError(
                    f"{column.name} of {origin} is not a column of numbers.",
                    f"Store only columns of numbers in {name}.",
                )
    if len(getattr(element, "shape", ())) != 2:
        raise DataError(
            f"{name} of {origin} is stored as {_told(element)}.",
            f"Store {name} as an array or csr_matrix of two dimensions.",
        )
    return Matrix(name, tuple(element.shape), element)


def _encoding_of(element: Any) -> str:
    """Return the encoding that an element records; by default "array" or "dataframe"."""
    if sparse := attribute(element, "h5sparse_format", ""):
        return f"{sparse}_matrix"
    return attribute(element, "encoding-type", "array" if is_array(element) else "dataframe")


def attribute(element: Any, name: str, default: Any) -> Any:
    """Return an attribute of an element; bytes are decoded."""
    value = getattr(element, "attrs", {}).get(name, default)
    return value.decode() if isinstance(value, bytes) else value


def is_array(element: Any) -> bool:
    """Return whether an element is an array, not a group."""
    return hasattr(element, "dtype")


def _element_at(root: Any, name: str) -> Any:
    """Return an element that can be the features, None if it is missing."""
    place, _, field = name.partition("/")
    if name in ("X", "raw/X"):
        return root.get("raw.X" if field and "raw.X" in root else name)
    if place not in ("layers", "obsm") or field not in _members(root, place):
        return None
    # Before AnnData 0.7, one structured array has all layers, or all of obsm.
    return read_elem(root[place])[field] if is_array(root[place]) else root[place][field]


def _matrix_names(root: Any) -> list[str]:
    inside = [f"{place}/{name}" for place in ("layers", "obsm") for name in _members(root, place)]
    found = {name: root.get(name) for name in ("X", "raw/X", "raw.X")}
    whole = [name for name, of in found.items() if of is not None and _encoding_of(of) != "null"]
    return [*(name.replace(".", "/") for name in whole), *inside]


def _members(root: Any, place: str) -> list[str]:
    if place not in root:
        return []
    return sorted(root[place].dtype.names if is_array(root[place]) else root[place].keys())


def _unpacked(table: np.ndarray, uns: Any) -> Any:
    """Return a structured array as a data frame; its categories are in `uns`."""
    import pandas as pd

    frame = pd.DataFrame(table)
    frame = frame.set_index(frame.columns[0])
    for name, codes in frame.select_dtypes("integer").items():
        if uns is not None and f"{name}_categories" in uns:
            categories = np.atleast_1d(read_elem(uns[f"{name}_categories"]))
            if codes.max() < len(categories):
                frame[name] = pd.Categorical.from_codes(codes, categories)
    return frame


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _told(element: Any) -> str:
    shape = getattr(element, "shape", None)
    return _encoding_of(element) + (f" of shape {tuple(shape)}" if shape is not None else "")


def _texts(stored: Any, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Return some values as an array; text is StringDType."""
    if hasattr(stored, "asstr") and stored.dtype.kind == "O":
        stored = stored.asstr()
    values = np.asarray(stored[start:stop])
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], bytes):
        # Text that HDF5 declares as ASCII.
        values = np.array([value.decode() for value in values])
    return values.astype(STRING) if values.dtype.kind in "OU" else values
