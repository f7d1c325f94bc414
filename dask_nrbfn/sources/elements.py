"""The elements of an AnnData store, Zarr or HDF5, in the encodings that AnnData writes them in.

Arrays of Zarr and of HDF5 are sliced alike, and so are groups of both.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.dtypes import FLOAT64, STRING, sparse_dtype

# One reading of a column that is looked through before its rows are wanted.
_SCANNED_ROWS = 1 << 20


@dataclass(frozen=True)
class Matrix:
    """The rows of a matrix.

    Attributes
    ----------
    name : str
        Such as "obsm/X_pca".
    shape : (n, p)
    stored : array (n, p) or group
        A group has the arrays `data`, `indices` and `indptr` of CSR.
    is_sparse : bool
    """

    name: str
    shape: tuple[int, int]
    stored: Any
    is_sparse: bool

    @property
    def dtype(self) -> np.dtype:
        """Type of the values; floats of those of CSR."""
        if self.is_sparse:
            return sparse_dtype(np.dtype(self.stored["data"].dtype), self.name)
        return np.dtype(self.stored.dtype)

    @property
    def n_values(self) -> int | None:
        """Number of stored values; None of an array."""
        return int(self.stored["data"].shape[0]) if self.is_sparse else None

    @property
    def chunk_rows(self) -> int:
        """Rows that are decoded at once; of CSR any."""
        if self.is_sparse or self.stored.chunks is None:
            return 1
        return int(self.stored.chunks[0])

    @property
    def chunk_bytes(self) -> int:
        """Bytes of what is decoded at once: rows of all columns, of CSR a chunk of values."""
        if self.is_sparse:
            return max(math.prod(a.chunks or ()) * a.dtype.itemsize for a in self._values)
        return self.chunk_rows * self.shape[1] * self.dtype.itemsize

    @property
    def _values(self) -> tuple[Any, Any]:
        return self.stored["data"], self.stored["indices"]

    def read(self, start: int, stop: int) -> Any:
        """Return some rows: an array (b, p), or of sparse ones a csr_array."""
        if not self.is_sparse:
            return np.asarray(self.stored[start:stop])
        from scipy.sparse import csr_array

        from dask_nrbfn.numeric.rows import canonical

        ends = np.asarray(self.stored["indptr"][start : stop + 1], dtype=np.int64)
        values = slice(int(ends[0]), int(ends[-1]))
        data, indices = (array[values] for array in self._values)
        return canonical(
            csr_array(
                (np.asarray(data, dtype=self.dtype), np.asarray(indices), ends - ends[0]),
                shape=(stop - start, self.shape[1]),
            )
        )


@dataclass(frozen=True)
class ObsColumn:
    """A column of a data frame.

    Attributes
    ----------
    name : str
        Such as "obs/cell_type".
    stored : array (n,)
        The values, or codes of categories.
    categories : ndarray (K,) or None
    mask : array bool (n,) or None
        Which rows have no value.
    """

    name: str
    stored: Any
    categories: np.ndarray | None = None
    mask: Any = None

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return int(self.stored.shape[0])

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""
        if self.categories is not None:
            return self.categories.dtype
        # Text of HDF5 is Python objects to numpy.
        own = np.dtype(self.stored.dtype)
        return STRING if own.kind == "O" else own

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of some rows, (b,), and which of them have none, bool (b,)."""
        values = _values(self.stored, start, stop)
        if self.categories is not None:
            blank = np.zeros(1, dtype=self.categories.dtype)
            return np.concatenate([self.categories, blank])[values], values < 0
        none = np.zeros(len(values), dtype=np.bool_)
        return values, none if self.mask is None else np.asarray(self.mask[start:stop])

    def numbers(self, start: int, stop: int) -> np.ndarray:
        """Return the values of some rows as float64 (b,), NaN for none."""
        values, none = self.read(start, stop)
        return np.where(none, np.nan, values.astype(FLOAT64))

    @cached_property
    def has_gaps(self) -> bool:
        """Whether there are rows without a value."""
        return any(none.any() for _, none in self._scanned())

    @cached_property
    def least(self) -> float:
        """The least of the values, which are numbers."""
        if self.categories is not None:
            return float(min(self.categories, default=0))
        return min(float(values.min()) for values, _ in self._scanned())

    def _scanned(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, self.n_rows, _SCANNED_ROWS):
            yield self.read(start, min(start + _SCANNED_ROWS, self.n_rows))


def encoding_of(element: Any) -> str:
    """Return how an element is encoded, "array" where it does not say."""
    return str(element.attrs.get("encoding-type", "array"))


def matrix_at(root: Any, name: str, origin: object) -> Matrix:
    """Return the matrix that is called X, layers/NAME or obsm/NAME.

    Raises
    ------
    DataError
        If it is not there, or is stored as what has no rows.
    """
    if name not in (known := matrix_names(root)):
        raise DataError(
            f"{origin} has no {name!r} with rows of features; it has {', '.join(known) or 'none'}.",
            "Name one of these with `x`.",
        )
    return matrix_of(root[name], name, origin)


def matrix_of(element: Any, name: str, origin: object) -> Matrix:
    """Return the matrix that an array or group holds.

    Raises
    ------
    DataError
        If its rows cannot be read.
    """
    encoding = encoding_of(element)
    if encoding == "csr_matrix":
        n_rows, n_columns = map(int, element.attrs["shape"])
        return Matrix(name, (n_rows, n_columns), element, is_sparse=True)
    if encoding != "array" or len(element.shape) != 2:
        remedy = "Store it as an array or csr_matrix of two dimensions."
        if encoding == "csc_matrix":
            remedy = "Its rows lie apart: store what its tocsr() gives."
        raise DataError(f"{name} of {origin} is stored as {_told(element)}.", remedy)
    return Matrix(name, tuple(element.shape), element, is_sparse=False)


def matrix_names(root: Any) -> list[str]:
    """Return what of a store may be features."""
    inside = [f"{place}/{name}" for place in ("layers", "obsm") for name in _members(root, place)]
    has_x = "X" in root and encoding_of(root["X"]) != "null"
    return ["X", *inside] if has_x else inside


def column_at(root: Any, name: str, origin: object, option: str) -> ObsColumn:
    """Return the column obs/NAME that an option names.

    Raises
    ------
    DataError
        If it is not there, or encoded in another way than columns are.
    """
    obs = root["obs"]
    known = [f"obs/{column}" for column in obs.attrs["column-order"]]
    if name not in known:
        raise DataError(
            f"{origin} has no column {name!r}; it has {', '.join(known) or 'none'}.",
            f"Name one of these with `{option}`.",
        )
    element = obs[name.removeprefix("obs/")]
    encoding = encoding_of(element)
    if encoding == "categorical":
        categories = element["categories"]
        return ObsColumn(name, element["codes"], _values(categories, 0, categories.shape[0]))
    if encoding.startswith("nullable-"):
        return ObsColumn(name, element["values"], mask=element["mask"])
    if encoding in ("array", "string-array") and len(element.shape) == 1:
        return ObsColumn(name, element)
    raise DataError(
        f"{name} of {origin} is stored as {_told(element)}.",
        "Store a column of categories, text or numbers; `adata.write_zarr` of today's AnnData "
        "does so.",
    )


def index_of(root: Any, frame: str) -> ObsColumn:
    """Return the names of the rows of "obs" or "var"."""
    return ObsColumn(f"{frame}_names", root[frame][root[frame].attrs["_index"]])


def _members(root: Any, place: str) -> list[str]:
    return sorted(root[place].keys()) if place in root else []


def _told(element: Any) -> str:
    shape = getattr(element, "shape", None)
    return encoding_of(element) + (f" of shape {tuple(shape)}" if shape is not None else "")


def _values(stored: Any, start: int, stop: int) -> np.ndarray:
    """Return some values of an array; text is StringDType."""
    if hasattr(stored, "asstr") and np.dtype(stored.dtype).kind == "O":
        stored = stored.asstr()
    values = np.asarray(stored[start:stop])
    return values.astype(STRING) if values.dtype.kind in "OU" else values
