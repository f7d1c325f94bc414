"""Ingest: rows of any source, streamed into a dataset."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.commands.collections import (
    DaskRows,
    dask_labels,
    dask_numbers,
    rows_and_schema,
)
from dask_nrbfn.commands.schemas import check_schema_file, load_schema, save_schema
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import Rows, canonical, dense, is_scipy
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.outputs import check_output_file
from dask_nrbfn.sources import ArraySource, Source, open_source
from dask_nrbfn.sources.dtypes import FLOAT64, checked_mark, sparse_dtype
from dask_nrbfn.sources.frames import (
    as_columns,
    column_names,
    labels_of,
    plain_dtype,
    plain_rows,
    target_names_of,
)
from dask_nrbfn.sources.source import Block, Names, check_one_kind, shown_names
from dask_nrbfn.sources.sparseness import expanded_values, stored_values
from dask_nrbfn.storage.chunks import (
    ChunkSummary,
    Mark,
    create_dataset_arrays,
    default_chunk_rows,
    finish_dataset,
    write_chunk,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, replacing_group
from dask_nrbfn.storage.location import RemoteLocation

if TYPE_CHECKING:
    from dask.delayed import Delayed

logger = logging.getLogger(__name__)


def ingest_file(
    source: Any,
    location: Location,
    *,
    sql: str | None = None,
    x: str | None = None,
    y: str | None = None,
    label: str | None = None,
    target: str | None = None,
    weights: str | None = None,
    delimiter: str | None = None,
    no_header: bool = False,
    columns: Names = None,
    drop: Names = None,
    id: str | None = None,
    categorical: Names = None,
    numeric: Names = None,
    date: Names = None,
    variable: str | None = None,
    feature_dim: str | None = None,
    missing: str = "error",
    missing_values: Names = None,
    max_categories: int = 100,
    schema: Schema | Location | None = None,
    write_schema: str | os.PathLike[str] | None = None,
    sparse: str = "auto",
    unlabelled: str | int | float | None = None,
    chunk_rows: int | None = None,
    copy: bool = False,
    overwrite: bool = False,
) -> Dataset:
    """Write a dataset from a file, from all files of a directory, or from a Zarr group or array.

    Parameters
    ----------
    source : path, URL, query, RemoteLocation, zarr.Group, zarr.Array, relation, frame or reader
        A file, a directory of files of one suffix, or a store, as in Notes. An SQL
        query that begins with FROM, SELECT or WITH, such as
        ``"FROM 'rides/*.parquet' WHERE fare > 0"``; DuckDB answers it. A relation of DuckDB, a
        frame of any library, or an Arrow reader. None with `sql`.
    location : Location
    sql : str, optional
        A query of `source`, which is the table "source"; a DuckDB or SQLite file has its tables.
    x, y : str, optional
        Where features and labels are, as listed in Notes.
    label : str, optional
        Label column of a table, or variable of a scene. A dataset without labels or targets can
        only be predicted.
    target : str, optional
        Numeric targets instead of labels, as listed in Notes: (n,) or (n, q).
    weights : str, optional
        One sample weight above 0 per row, as listed in Notes; such a column is not a feature.
    delimiter : str, optional
        Delimiter of a text table, by default found from its first lines. Write other habits of
        text, such as decimal commas or another encoding, as SQL: ``FROM read_csv(...)``.
    no_header : bool
        Whether the first line of a text table is a row; the columns are column0, column1, ... By
        default the first lines decide.
    columns, drop : str or sequence of str, optional
        Columns of a table that become features, by default all without another use; and columns
        to leave out. Here and below, names can be given as "A,B", with double quotes around a
        name that has a comma.
    id : str, optional
        Column or Zarr array that names the rows and is copied to their predictions.
    categorical, numeric, date : str or sequence of str, optional
        Columns of that kind. By default the cells decide. A category is left out if nearly all
        rows differ.
    variable, feature_dim : str, optional
        `source` is a scene: the pixels of this variable are rows and their features lie along this
        dimension; along "time,band" there is a feature for each band of each time. Variables "A,B"
        are a feature each, or have one for every coordinate of the dimension. Pixels without a
        feature are left out; so are, unless `unlabelled` is given, pixels without a label. Ids
        number the pixels in the order of their dimensions.
    missing : {"error", "drop", "impute"}
        Rows that lack a value are an error, are dropped, or are filled with the median of numbers,
        booleans and dates. "drop" also drops rows without a label, target or weight. "impute" adds
        an indicator feature where more than 1 % of the rows lack the value.
    missing_values : str or sequence of str, optional
        Markers of a missing value in text, besides empty cells; by default in CSV ?, NA,
        N/A, NaN, nan, null, NULL, None, #N/A, n/a and <NA>.
    max_categories : int
        The most frequent categories get a feature each; all other categories share one feature.
    schema : Schema, path or Location, optional
        Schema of the columns of a table, or the TOML or JSON file, dataset, run or model with the
        schema.
    write_schema : path, optional
        TOML or JSON file to which the schema is written.
    sparse : {"auto", "yes", "no"}
        Whether rows are stored in CSR. "auto" does so for rows of at least 256 features that take
        less than half as many bytes in CSR, if they come from a sparse matrix, or if categories of
        a table make the features. With "yes", tables of numbers are stored in CSR too.
    unlabelled : str, int or float, optional
        Marker of a missing label, such as -1, "?", or "" for an empty cell. For numeric targets, a
        marker such as "nan" that must be set for every target of a row. Unlabelled rows take part
        in the basis, scale and width of a fit, not in sums over targets. None: no label is missing.
    chunk_rows : int, optional
        Rows of a chunk; default: 16 MiB of rows.
    copy : bool
        Whether dense rows that are already in Zarr are copied. Otherwise the dataset refers to
        the rows, with a digest of every chunk, unless their chunks are larger than 128 MiB.
    overwrite : bool
        Replace a dataset at `location` once the new one is complete.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError, MissingDataError, DamagedDataError, ParameterError, StorageError
        If the source cannot be used; the error names the place.
    ExistsError
        If `location` exists and is not to be replaced.

    Notes
    -----
    - Text tables (any suffix, also .gz and .zst), Parquet, JSON lines, Arrow files, DuckDB and
      SQLite files, queries, relations, frames: `label`, `target` and `weights` name columns.
    - .npz: `x`, `y`, `target` and `weights` name arrays, by default X and y. For a sparse matrix of
      scipy, and for .npy, they are .npy files or directories of them.
    - Zarr: arrays of the group, `x` by default X; or one array.
    - AnnData, .h5ad or Zarr: `x` is X, raw/X, layers/NAME or obsm/NAME; others are obs/NAME.
    - Scenes, with `variable`: Zarr, netCDF and whatever xarray opens; `label` and `target` name
      variables.
    """
    path, storage_options = (
        (source.url, source.storage_options) if isinstance(source, RemoteLocation) else (source, {})
    )
    if write_schema is not None:
        check_schema_file(write_schema)
        check_output_file(write_schema, overwrite=overwrite)
    opened = open_source(
        path,
        sql=sql,
        x=x,
        y=y,
        label=label,
        target=target,
        weights=weights,
        delimiter=delimiter,
        no_header=no_header,
        schema=schema if schema is None or isinstance(schema, Schema) else load_schema(schema),
        columns=columns,
        drop=drop,
        id=id,
        categorical=categorical,
        numeric=numeric,
        date=date,
        missing=missing,
        missing_values=missing_values,
        max_categories=max_categories,
        variable=variable,
        feature_dim=feature_dim,
        unlabelled=unlabelled,
        storage_options=storage_options,
    )
    if write_schema is not None and opened.schema is None:
        raise ParameterError(
            f"`write_schema` is given, but {path} is not a table.",
            "Leave `write_schema` out: only tables have a schema.",
        )
    dataset = ingest_source(
        opened,
        location,
        sparse=sparse,
        unlabelled=unlabelled,
        chunk_rows=chunk_rows,
        overwrite=overwrite,
        copy=copy,
    )
    if write_schema is not None and dataset.schema is not None:
        save_schema(dataset.schema, write_schema, overwrite=overwrite)
    _tell_targets(dataset)
    return dataset


def _tell_targets(dataset: Dataset) -> None:
    """Log why no fit is possible: no labels or targets, or labels of one class."""
    if not dataset.has_targets:
        columns = ""
        if dataset.schema is not None:
            names = [*(column.name for column in dataset.schema.columns), *dataset.schema.ignored]
            columns = f" Its columns are {shown_names(names)}."
        logger.info(
            "ingest: no label or target is given, so the dataset can only be predicted.%s",
            columns,
        )
    elif dataset.n_classes < 2 and not dataset.of_numbers:
        only = f"1 class only: {dataset.classes.tolist()[0]!r}" if dataset.n_classes else "no label"
        logger.warning("ingest: the rows have %s. A fit needs at least two classes.", only)


def ingest_arrays(
    X: ArrayLike,
    y: ArrayLike | None,
    location: Location,
    *,
    target: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    missing: str = "error",
    schema: Schema | None = None,
    unlabelled: Mark | None = None,
    chunk_rows: int | None = None,
    overwrite: bool = False,
) -> Dataset:
    """Write a dataset from arrays in memory.

    Parameters
    ----------
    X : array-like (n, c), sparse matrix or frame
        Rows of a sparse matrix or array of scipy stay sparse. A frame of pandas, polars, Arrow or
        another library may have columns of text, categories, dates and booleans.
    y : array-like (n,) or None
        Integers or strings.
    location : Location
    target : array-like (n,) or (n, q), optional
        Numeric targets, instead of `y`. A frame or series also gives the names of the targets.
    weights : array-like (n,), optional
        Weights of the rows, finite and above 0.
    missing : {"error", "impute"}
        Missing values are an error, or are filled with the median of their column. Ignored with
        `schema` and for sparse matrices.
    schema : Schema, optional
        Columns and their kinds; by default inferred from the values.
    unlabelled, chunk_rows, overwrite
        See `ingest_file`.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If shapes or types do not fit, a value is not finite, or a weight is not above 0.
    ParameterError
        If `y` and `target` are both given, or `missing` has another value.
    ExistsError
        If `location` exists and is not to be replaced.
    """
    from dask_nrbfn.sources.tables import schema_of, stored_rows

    check_one_kind("y", y, target)
    schema = schema or (None if is_scipy(X) else schema_of(X, missing))
    if schema is not None:
        rows: Rows = stored_rows(X, schema)
    else:
        rows = canonical(X) if is_scipy(X) else plain_rows(X)
    labels = None if y is None else labels_of(y, unlabelled)
    source = ArraySource(
        rows,
        None if labels is None else labels.stored(unlabelled),
        weights,
        None if target is None else plain_rows(as_columns(target), "target"),
    )
    source.schema = schema
    source.boolean_labels = labels is not None and labels.are_boolean
    source.feature_names = column_names(X)
    source.target_names = target_names_of(target) or source.target_names
    return ingest_source(
        source,
        location,
        sparse="yes" if is_scipy(X) else "auto",
        unlabelled=unlabelled,
        chunk_rows=chunk_rows,
        overwrite=overwrite,
    )


def ingest_source(
    source: Source,
    location: Location,
    *,
    sparse: str = "auto",
    unlabelled: Mark | None = None,
    chunk_rows: int | None = None,
    overwrite: bool = False,
    gaps: bool = False,
    copy: bool = False,
    classes: Sequence[int | str] = (),
    place: str | None = None,
) -> Dataset:
    """Write a dataset from an open source, one chunk after another.

    Parameters
    ----------
    source : Source
    location : Location
    sparse, unlabelled, chunk_rows, overwrite, copy
        See `ingest_file`.
    gaps : bool
        Whether rows may lack values that the schema does not impute; their features are NaN.
    classes : sequence of int or str
        Classes that exist even if no row has them.
    place : str, optional
        Name of the location in the log, if `location` is hidden.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError, ParameterError, StorageError
        If a value or an option cannot be used.
    ExistsError
        If `location` exists and is not to be replaced.
    """
    mark = checked_mark(
        source.unlabelled if unlabelled is None else unlabelled,
        source.y_dtype,
        source.target_names,
    )
    if source.unlabelled is not None:
        source.unlabelled = mark
    schema = source.schema
    stored_at = None if copy else source.stored_at
    # Rows of dask collections stay as they are: their form is known before any is computed.
    stays = sparse == "auto" and (stored_at is not None or isinstance(source, DaskRows))
    n_values = source.n_values if stays else stored_values(source, sparse)
    if (n_values is None) != (source.n_values is None):
        # The stored rows have another form.
        stored_at = None
    x_dtype = source.x_dtype if n_values is None else sparse_dtype(source.x_dtype, "X")
    expanded = expanded_values(schema, sparse)
    row_values = expanded if n_values is None else n_values / source.n_rows
    rows = _rows_of_chunk(source, chunk_rows, x_dtype, row_values)
    if stored_at is not None and chunk_rows is None and rows < source.n_rows:
        # The chunks of the store are decoded as a whole.
        own_rows = stored_at.chunk_rows
        rows = min(source.n_rows, max(rows // own_rows, 1) * own_rows)
    if stored_at is not None:
        stays_in = f"{stored_at.place}/{stored_at.path}".rstrip("/")
        logger.info("ingest: the rows stay in %s and are not copied", stays_in)
    gaps = gaps or (schema is not None and schema.fills)
    with replacing_group(location, kind="dataset", overwrite=overwrite) as group:
        create_dataset_arrays(
            group,
            shape=(source.n_rows, source.n_features),
            x_dtype=x_dtype,
            y_dtype=source.y_dtype,
            chunk_rows=rows,
            n_values=n_values,
            n_numbers=len(source.target_names or ()),
            weighted=source.has_weights,
            id_dtype=source.id_dtype,
            stored_at=stored_at,
        )
        write = partial(write_chunk, group, unlabelled=mark, gaps=gaps)
        if isinstance(source, DaskRows) and n_values is None:
            summaries = _write_in_parallel(write, source.parts(rows))
        else:
            blocks = _in_form(source.blocks(rows), None if n_values is None else x_dtype)
            summaries = list(_write_blocks(write, source.n_rows, blocks))
        finish_dataset(
            group,
            summaries,
            feature_names=source.feature_names,
            target_names=source.target_names,
            unlabelled=mark,
            schema=schema,
            sparse=expanded is not None,
            read_as=source.read_as,
            boolean_labels=source.boolean_labels,
            classes=classes,
        )
    place = place or str(location)
    logger.info("ingest: %d x %d into %s", source.n_rows, source.n_features, place)
    return Dataset.open(location)


def _in_form(blocks: Iterable[Block], sparse: np.dtype[Any] | None) -> Iterator[Block]:
    """Yield blocks with X in CSR of the type `sparse`, or as arrays if it is None."""
    for block in blocks:
        X = dense(block.X) if sparse is None else canonical(block.X).astype(sparse, copy=False)
        yield block._replace(X=X)


def _write_blocks(
    write: Callable[..., ChunkSummary], n_rows: int, blocks: Iterable[Block]
) -> Iterator[ChunkSummary]:
    written = 0
    for index, block in enumerate(blocks):
        yield write(index, *block)
        written += block.X.shape[0]
    if written != n_rows:
        raise DataError(
            f"the source has {written} rows, not the expected {n_rows}.",
            "Do not change the source while it is read.",
        )


def _write_in_parallel(
    write: Callable[..., ChunkSummary], chunks: "Iterable[tuple[Delayed | None, ...]]"
) -> Sequence[ChunkSummary]:
    import dask

    task = dask.delayed(write, pure=False)
    return dask.compute(*(task(index, *chunk) for index, chunk in enumerate(chunks)))


def ingest_dask(
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
    """Write a dataset from dask collections, in parallel.

    Parameters
    ----------
    X : dask array (n, p), also of sparse blocks, or dask dataframe
        Sparse blocks are computed one at a time and written by this process.
    y : dask array (n,), dask series or None
        Integers or strings.
    location : Location
        Must be reachable from the workers if a `distributed.Client` is active.
    target : dask array (n,) or (n, q), dask series or dataframe, optional
        Numeric targets, instead of `y`. A dataframe or series also gives the names of the targets.
    weights : dask array (n,) or dask series, optional
        Weights of the rows, finite and above 0.
    missing, schema
        See `ingest_arrays`.
    unlabelled, chunk_rows, overwrite
        See `ingest_file`.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If lengths or types do not fit, a value is not finite, or a weight is not above 0.
    ParameterError
        If `y` and `target` are both given, or `missing` has another value.
    """
    check_one_kind("y", y, target)
    rows, schema = rows_and_schema(X, missing, schema)
    source = DaskRows(
        rows,
        None if y is None else dask_labels(y, unlabelled),
        weights,
        None if target is None else dask_numbers(as_columns(target), "target"),
    )
    source.schema = schema
    source.boolean_labels = y is not None and plain_dtype(y.dtype).kind == "b"
    source.feature_names = column_names(X)
    source.target_names = target_names_of(target) or source.target_names
    return ingest_source(
        source, location, unlabelled=unlabelled, chunk_rows=chunk_rows, overwrite=overwrite
    )


def _rows_of_chunk(
    source: Source, chunk_rows: int | None, dtype: np.dtype[Any], row_values: float | None
) -> int:
    """Return the rows of a chunk: `chunk_rows`, or 16 MiB of rows; at most all rows."""
    n_features, schema = source.n_features, source.schema
    if chunk_rows is None:
        if schema is not None and not schema.is_plain:
            # Tasks hold the features of a chunk.
            n_features, dtype = schema.n_features, FLOAT64
        n_numbers = len(source.target_names or ())
        chunk_rows = default_chunk_rows(
            n_features, dtype, row_values=row_values, n_numbers=n_numbers
        )
    elif chunk_rows < 1:
        raise ParameterError(f"`chunk_rows` is {chunk_rows}.", "Give an integer of at least 1.")
    return min(chunk_rows, source.n_rows)
