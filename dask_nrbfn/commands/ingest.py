"""Ingest: rows of any source, streamed into a dataset."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from inspect import cleandoc, signature
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import Advice, DataError
from dask_nrbfn.numeric.rows import canonical, dense, is_scipy_sparse, unmasked
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.params import Params
from dask_nrbfn.sources.arrays import ArrayRows, ArraySource
from dask_nrbfn.sources.dtypes import STRING, checked_mark, feature_dtype, label_dtype, sparse_dtype
from dask_nrbfn.sources.formats import open_source
from dask_nrbfn.sources.frames import (
    as_columns,
    column_names,
    label_column,
    labels_of,
    plain_dtype,
    plain_rows,
    target_names_of,
)
from dask_nrbfn.sources.options import IngestOptions, WriteOptions
from dask_nrbfn.sources.source import (
    FORM,
    Block,
    Source,
    check_one_kind,
    expanded_values,
    in_other_form,
    stored_values,
)
from dask_nrbfn.storage.chunks import (
    ChunkSummary,
    Mark,
    create_dataset_arrays,
    default_chunk_rows,
    finish_dataset,
    write_chunk,
)
from dask_nrbfn.storage.dataset import Dataset, check_apart
from dask_nrbfn.storage.group import Location, attributes_of, open_group, replacing_group
from dask_nrbfn.storage.location import RemoteLocation, file_of

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

logger = logging.getLogger(__name__)

_AS_USUAL = WriteOptions()


def ingest_file(source: Any, location: Location, **options: Any) -> Dataset:
    """Write a dataset from a file, from all files of a directory, or from a Zarr group or array.

    A dataset without labels or targets can only be predicted.

    Parameters
    ----------
    source : path, URL, query, RemoteLocation, zarr.Group, zarr.Array, relation, frame or reader
        A file, a directory of files of one suffix, or a store; an SQL query such as
        ``"FROM 'rides/*.parquet' WHERE fare > 0"``; a relation of DuckDB, a frame of any library,
        or an Arrow reader. None with `sql`.
    location : Location
        Where the dataset is written.

    Raises
    ------
    DataError, MissingDataError, DamagedDataError, ParameterError, StorageError
        If the source cannot be used; the error names the place.
    ExistsError
        If `location` exists and is not to be replaced.

    Notes
    -----
    Sources are text tables (any suffix, also .gz and .zst), Parquet, JSON lines, Arrow, DuckDB and
    SQLite files, queries, relations and frames; .npy and .npz files; Zarr groups and arrays;
    AnnData (.h5ad or Zarr); and, with `variable`, Zarr, netCDF and other scenes that xarray opens,
    whose ids number the pixels in the order of their dimensions.
    """
    own = IngestOptions.of_named(options)
    check_apart(location, source, own.sql)
    if isinstance(source, RemoteLocation):
        source = file_of(source)
    if own.schema is not None and not isinstance(own.schema, Schema):
        own = replace(own, schema=_stored_schema(own.schema))
    opened = open_source(source, own)
    written = ingest_source(opened, location, own, unlabelled=own.unlabelled)
    if own.sparse == "auto" and written.is_sparse:
        told = "ingest: stored as sparse rows, for which a fit learns no column weights. "
        logger.info("%s", Advice(told + "Pass `sparse`='no' to store dense rows."))
    return written


def _document_options(function: Callable[..., Any], kind: type[Params]) -> None:
    """Put the options of a function, which it takes by name, in its signature and docstring."""
    entries = [each.documentation(name, each.default) for name, each in kind.options().items()]
    first, section, others = cleandoc(str(function.__doc__)).partition("\n\nRaises\n")
    function.__doc__ = "\n".join([first, *entries]) + section + others
    own, named = signature(function), signature(kind).parameters.values()
    places = [each for each in own.parameters.values() if each.name != "options"]
    function.__signature__ = own.replace(parameters=[*places, *named])  # type: ignore[attr-defined]


_document_options(ingest_file, IngestOptions)


def _stored_schema(location: Location) -> Schema:
    """Return the schema of a dataset, run or model."""
    group = open_group(location, kind="dataset or run or model")
    schema = Schema.of_record(attributes_of(group)["schema"])
    if schema is None:
        raise DataError(
            f"{location} has no schema: it was made of arrays of numbers.", "Leave `schema` out."
        )
    return schema


def ingest_arrays(
    X: Any,
    y: Any,
    location: Location,
    *,
    target: Any = None,
    weights: Any = None,
    missing: str = "error",
    schema: Schema | None = None,
    unlabelled: Mark | None = None,
    chunk_rows: int | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Write a dataset from arrays in memory, or from dask collections in parallel.

    Parameters
    ----------
    X : array-like (n, c), sparse matrix, frame, dask array or dask dataframe
        Rows of a sparse matrix or array of scipy stay sparse; sparse blocks of a dask array are
        computed one at a time and written by this process. A frame of pandas, polars, Arrow or
        another library may have columns of text, categories, dates and booleans.
    y : array-like or dask collection (n,), or None
        Integers or strings.
    location : Location
        For dask collections it must be reachable from the workers of an active client.
    target : array-like or dask collection (n,) or (n, q), optional
        Numeric targets, instead of `y`. A frame or series also gives the names of the targets.
    weights : array-like or dask collection (n,), optional
        Weights of the rows, finite and above 0.
    missing : {"error", "impute"}
        Missing values are an error, or are filled with the median of their column. Ignored with
        `schema` and for sparse matrices.
    schema : Schema, optional
        Columns and their kinds; by default inferred from the values.
    unlabelled, chunk_rows, overwrite
        See `ingest_file`.

    Raises
    ------
    DataError
        If shapes or types do not fit, a value is not finite, or a weight is not above 0.
    ParameterError
        If `y` and `target` are both given, or `missing` has another value.
    ExistsError
        If `location` exists and is not to be replaced.
    """
    check_one_kind("y", y, target)
    options = WriteOptions(chunk_rows=chunk_rows, overwrite=overwrite)
    labels, are_boolean = (None, False) if y is None else stored_labels(y, unlabelled)
    numbers = None if target is None else numbers_of(as_columns(target), "target")
    rows: Any
    source: Source
    if hasattr(X, "to_delayed"):
        rows, schema = rows_and_schema(X, missing, schema)
        source = DaskRows(rows, labels, weights, numbers)
    else:
        from dask_nrbfn.sources.tables import schema_of, stored_rows

        schema = schema or (None if is_scipy_sparse(X) else schema_of(X, missing))
        if schema is not None:
            rows = stored_rows(X, schema)
        else:
            rows = canonical(X) if is_scipy_sparse(X) else plain_rows(X)
        source = ArraySource(rows, labels, weights, numbers)
    source.boolean_labels, source.schema = are_boolean, schema
    source.feature_names = column_names(X)
    source.target_names = target_names_of(target) or source.target_names
    if source.n_values is not None:
        options = replace(options, sparse="yes")
    return ingest_source(source, location, options, unlabelled=unlabelled)


def ingest_source(
    source: Source,
    location: Location,
    options: WriteOptions = _AS_USUAL,
    *,
    unlabelled: Mark | None = None,
    gaps: bool = False,
    classes: Sequence[int | str] = (),
) -> Dataset:
    """Write a dataset from an open source, one chunk after another.

    gaps: whether rows may lack values that the schema does not impute; their features are NaN.
    classes: classes that exist even if no row has them.
    """
    mark = source.unlabelled if unlabelled is None else unlabelled
    mark = checked_mark(mark, source.y_dtype, source.target_names)
    schema, x_dtype = source.schema, source.x_dtype
    stored_at = None if options.copy else source.stored_at
    n_values = stored_values(source, options.sparse)
    expanded = expanded_values(source, options.sparse)
    if n_values is not None:
        x_dtype, stored_at = sparse_dtype(x_dtype, "X"), None
    if stored_at is not None:
        stays_in = f"{stored_at.place}/{stored_at.path}".rstrip("/")
        logger.info("ingest: the rows stay in %s and are not copied", stays_in)
    row_values = expanded if n_values is None else n_values / source.n_rows
    rows = options.chunk_rows
    if rows is None:
        whole = 1 if stored_at is None else stored_at.chunk_rows
        rows = _rows_of_chunk(source, x_dtype, row_values, whole)
    gaps = gaps or (schema is not None and schema.fills)
    with replacing_group(location, kind="dataset", overwrite=options.overwrite) as group:
        create_dataset_arrays(group, source, x_dtype, rows, n_values=n_values, stored_at=stored_at)
        write = partial(write_chunk, group, unlabelled=mark, gaps=gaps)
        if n_values is None and isinstance(source, DaskRows):
            summaries = source.written(write, rows)
        else:
            summaries = _written(write, source, rows, None if n_values is None else x_dtype)
        is_sparse = expanded is not None
        finish_dataset(group, summaries, source, unlabelled=mark, sparse=is_sparse, classes=classes)
    logger.info("ingest: %d x %d into %s", source.n_rows, source.n_features, location)
    dataset = Dataset.open(location)
    labels = dataset.classes.tolist()
    if alike := in_other_form(labels, labels):
        told = "ingest: the label %r is a class of its own: it differs from another in %s"
        logger.warning(told, alike[0], FORM)
    return dataset


def _written(
    write: Callable[..., ChunkSummary], source: Source, rows: int, sparse: np.dtype[Any] | None
) -> Sequence[ChunkSummary]:
    """Write all rows, X in CSR of the type `sparse` if it is given; return the summaries."""
    summaries, written = [], 0
    for index, block in enumerate(source.blocks(rows)):
        X = dense(block.X) if sparse is None else canonical(block.X).astype(sparse, copy=False)
        summaries.append(write(index, X, *block[1:]))
        written += X.shape[0]
    if written != source.n_rows:
        raise DataError(
            f"the source has {written} rows, not the expected {source.n_rows}.",
            "Do not change the source while it is read.",
        )
    return summaries


def _rows_of_chunk(
    source: Source, dtype: np.dtype[Any], row_values: float | None, whole: int
) -> int:
    """Return the rows of a chunk of 16 MiB, a multiple of `whole`; at most all rows."""
    n_features, schema = source.n_features, source.schema
    if schema is not None and not schema.is_plain:
        # Tasks hold the features of a chunk.
        n_features, dtype = schema.n_features, np.dtype(np.float64)
    n_numbers = len(source.target_names or ())
    rows = default_chunk_rows(n_features, dtype, row_values=row_values, n_numbers=n_numbers)
    if rows < source.n_rows:
        # The chunks of another store are decoded as a whole.
        rows = max(rows // whole, 1) * whole
    return min(rows, source.n_rows)


# Number of surveys that one task merges.
_MERGED = 8


class DaskRows(ArrayRows):
    """Rows of dask collections: X (n, p), also of blocks in CSR, and columns as `ArraySource`."""

    def __init__(self, X: Any, y: Any = None, weights: Any = None, target: Any = None) -> None:
        given = {"x": X, "y": y, "weights": weights, "target": target}
        super().__init__({role: _counted(each) for role, each in given.items()})
        if is_scipy_sparse(self.arrays["x"]._meta):
            # An estimate from the first block.
            first = self.arrays["x"].blocks[0].compute()
            self.n_values = round(first.nnz * self.n_rows / first.shape[0])

    def _parts(self, block_rows: int) -> Iterator[Block]:
        """Yield the rows of each chunk in CSR; computes one chunk at a time."""
        import dask

        for chunk in self._chunks(self.arrays["x"].chunks[0]):
            X, y, weights = dask.compute(*chunk)
            yield Block(canonical(X), y, weights)

    def written(
        self, write: Callable[..., ChunkSummary], chunk_rows: int
    ) -> Sequence[ChunkSummary]:
        """Write all rows in parallel; return the summaries of the chunks."""
        import dask

        task, chunks = dask.delayed(write, pure=False), self._chunks(chunk_rows)
        return dask.compute(*(task(index, *chunk) for index, chunk in enumerate(chunks)))

    def _chunks(self, rows: int | tuple[int, ...]) -> "Iterator[tuple[Delayed | None, ...]]":
        """Yield rows, targets and weights of chunks of `rows` rows as delayed objects."""
        x, y, target, weights = map(self.arrays.get, ("x", "y", "target", "weights"))
        if target is not None:
            y = target.reshape(self.n_rows, -1).astype(np.float64)
        weights = None if weights is None else weights.astype(np.float64)
        return zip(
            *(
                repeat(None)
                if column is None
                else column.rechunk((rows, *column.shape[1:])).to_delayed().ravel()
                for column in (x, y, weights)
            ),
            strict=False,
        )


def numbers_of(X: Any, name: str) -> Any:
    """Return the numbers of a frame, also of dask; dask arrays unchanged."""
    if hasattr(X, "map_partitions"):
        return X.map_partitions(plain_rows, name, meta=plain_rows(X._meta, name))
    return X if hasattr(X, "to_delayed") else plain_rows(X, name)


def dask_rows(X: Any, *, schema: Schema | None = None) -> "da.Array":
    """Return the rows of a dask collection as numbers, or as a schema encodes them, (n, c)."""
    if schema is None:
        rows = numbers_of(X, "X")
        if rows.ndim != 2 or 0 in rows.shape[1:]:
            raise DataError(
                f"X has shape {rows.shape}.", "Give a table with at least one row and one column."
            )
        return rows.astype(feature_dtype(rows.dtype, "X"))
    from dask_nrbfn.sources.tables import stored_rows

    # Raises errors before anything is computed.
    meta = stored_rows(_no_rows(X), schema)
    encode = partial(stored_rows, schema=schema, name="a block of X")
    if hasattr(X, "columns"):
        names = {column.name for column in schema.columns}
        own = X[[label for label in X.columns if str(label) in names]]
        return own.map_partitions(encode, meta=meta)
    return X.rechunk({1: -1}).map_blocks(encode, chunks=(X.chunks[0], meta.shape[1:]), meta=meta)


def rows_and_schema(
    X: Any, missing: str, schema: Schema | None
) -> "tuple[da.Array, Schema | None]":
    """Return the rows (n, c) of a collection as stored, and a schema, given or found."""
    import dask
    import dask.array as da

    from dask_nrbfn.sources.survey import merged
    from dask_nrbfn.sources.tables import decided, needs_schema, surveyed

    if schema is not None or not needs_schema(_no_rows(X), missing):
        return dask_rows(X, schema=schema), schema
    whole = X if hasattr(X, "columns") else X.rechunk({1: -1})
    parts = list(np.ravel(whole.to_delayed()))
    lengths = [dask.delayed(len)(part) for part in parts]
    # Raises errors before anything is computed.
    surveyed(_no_rows(X), fills=False)
    surveys = [dask.delayed(surveyed)(part, fills=missing == "impute") for part in parts]
    while len(surveys) > 1:
        groups = [surveys[first : first + _MERGED] for first in range(0, len(surveys), _MERGED)]
        surveys = list(map(dask.delayed(merged), groups))
    cells, *lengths = dask.compute(surveys[0], *lengths)
    schema = decided(cells, missing)
    rows = dask_rows(X, schema=schema)
    return da.Array(rows.dask, rows.name, (tuple(lengths), rows.chunks[1]), rows.dtype), schema


def _no_rows(X: Any) -> Any:
    """Return an empty table in memory with the columns of a dask collection."""
    return X._meta if hasattr(X, "columns") else np.empty((0, *X.shape[1:]), dtype=X.dtype)


def stored_labels(y: Any, unlabelled: Mark | None = None) -> tuple[Any, bool]:
    """Return `Labels.stored` (n,), of dask collections lazily, and whether labels are boolean."""
    if not hasattr(y, "to_delayed"):
        own = labels_of(y, unlabelled)
        return own.stored(unlabelled), own.values.dtype.kind == "b"
    import dask.array as da

    y = label_column(y)
    # Dask warns when it turns extension types of pandas into object arrays.
    labels = _counted(y if isinstance(y.dtype, np.dtype) else y.astype(object))
    # pandas stores text as Python objects; each block is checked when it is computed.
    given = plain_dtype(y.dtype)
    dtype = STRING if given.kind in "OT" else label_dtype(given, "y")
    meta = np.empty((0,) * labels.ndim, dtype=dtype)
    stored = da.map_blocks(_block_labels, labels, dtype, unlabelled, dtype=dtype, meta=meta)
    return stored, given.kind == "b"


def _block_labels(
    labels: NDArray[Any], dtype: np.dtype[Any], unlabelled: Mark | None, block_info: Any = None
) -> NDArray[Any]:
    first_row = block_info[0]["array-location"][0][0] if block_info else 0
    found = labels_of(labels, unlabelled, first_row=first_row)
    if dtype == STRING and found.missing is not None and found.missing.all():
        # This block alone does not show that the other blocks have text.
        return np.full(len(labels), str(unlabelled), dtype=dtype)
    stored = found.stored(unlabelled)
    if stored.dtype != dtype:
        raise DataError(
            f"y has the label {labels[0]!r} in row {first_row} (the first is 0), as an object.",
            "Give the column a type, such as y.astype(bool), y.astype(int) or y.astype(str).",
        )
    return stored


def _counted(values: Any) -> Any:
    """Return a dask array with known lengths of a collection or an array in memory, or None."""
    import dask.array as da

    if values is None:
        return None
    if not hasattr(values, "to_delayed"):
        # Dask cannot divide text by its bytes.
        return da.from_array(np.asarray(unmasked(values)), chunks=-1)
    array = values.to_dask_array(lengths=True) if hasattr(values, "to_dask_array") else values
    return array.compute_chunk_sizes() if np.isnan(sum(array.shape)) else array
