"""Ingest: rows of any source, streamed into a dataset."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.commands.schemas import check_schema_file, load_schema, save_schema
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import Rows, canonical, is_scipy
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.outputs import check_output_file
from dask_nrbfn.sources import ArraySource, Source, open_source
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    STRING,
    check_weight_dtype,
    checked_mark,
    feature_dtype,
    label_dtype,
    to_labels,
)
from dask_nrbfn.sources.frames import column_names, plain_dtype, plain_rows, typed_labels
from dask_nrbfn.sources.layout import check_one_kind, numbered_targets
from dask_nrbfn.sources.open import named_columns
from dask_nrbfn.storage.array import get_array
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
    import dask.array as da
    from dask.delayed import Delayed

    from dask_nrbfn.sources.survey import TableOptions

logger = logging.getLogger(__name__)

Names = str | Sequence[str] | None
"""Names of columns, or marks: with commas between them, or one by one."""

# Surveys that one task holds at once.
_MERGED = 8


def ingest_file(
    source: str | os.PathLike[str] | RemoteLocation,
    location: Location,
    *,
    x: str | None = None,
    y: str | None = None,
    label: str | None = None,
    target: str | None = None,
    weights: str | None = None,
    delimiter: str | None = None,
    quote: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
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
    unlabelled: str | int | float | None = None,
    chunk_rows: int | None = None,
    copy: bool = False,
    overwrite: bool = False,
) -> Dataset:
    """Write a dataset from a file, or from all files of a directory.

    Parameters
    ----------
    source : path, URL or RemoteLocation
        .npz, .npy, .csv, .tsv (both also with .gz or .zst), .parquet, .arrow, .arrows, .feather,
        .svm, .svmlight, .libsvm, .h5ad or a Zarr store of AnnData; with `feature_dim` one that
        xarray opens.
    location : Location
    x, y : str, optional
        Members of an .npz file; for .npy, y is the file of the labels; for Parquet and Arrow, x
        names the columns of the features, by default all others: a list has one for each element.
        Of AnnData x is X, layers/NAME or obsm/NAME, by default X, and y obs/NAME.
    label : str, optional
        Label column of a table. Without labels or numbers a dataset can be predicted only.
    target : str, optional
        What holds numbers to be learned, instead of labels: columns of a table, "C" or
        "C,C2", with double quotes around a name that has a comma; a member (n,) or (n, q) of an
        .npz file; for .npy, another such file; for svmlight "label", what each line begins with;
        of AnnData obs/NAME, as "A,B" too.
    weights : str, optional
        What holds one weight above 0 per row: a member of an .npz file, a column of a table,
        which then is no feature, obs/NAME of AnnData, or for .npy, another such file.
    delimiter, quote, decimal, encoding : str, optional
        How CSV is written: between its cells, by default a comma (in .tsv a tab, with decimal
        commas a semicolon); around text, by default double quotes; both unless the first lines
        contradict it. Before decimals, by default a point. The encoding, by default UTF-8, or
        UTF-16 where a file begins with its mark.
    no_header : bool
        Whether the first line of CSV is a row; the columns are column_0, column_1, ...
    columns, drop : str or sequence of str, optional
        Columns of a table that become features, by default all that are nothing else; and those
        that are left out. Names as "A,B", here and below, with double quotes around one that has a
        comma.
    id : str, optional
        Column that names the rows of a table and is carried along to their predictions.
    categorical, numeric, date : str or sequence of str, optional
        Columns of that kind. By default what their cells are decides: text is a category, and left
        out if nearly all rows differ.
    variable, feature_dim : str, optional
        `source` is a Zarr group that xarray opens: its rows are the pixels of this variable, whose
        features lie along this dimension, but for those that lack a feature or, unless there is an
        `unlabelled`, a label. `label` and `target` are variables too. The numbers of the pixels are
        the ids of the rows.
    missing : {"error", "drop", "impute"}
        What becomes of rows that lack a value: refused; left out; filled, numbers, booleans and
        dates with the median, with a feature that says so where more than 1 % of the rows do.
    missing_values : str or sequence of str, optional
        What stands in text for no value beside nothing at all; default: in CSV ?, NA, N/A, NaN,
        nan, null, NULL, None and #N/A.
    max_categories : int
        The most frequent ones have a feature of their own, the others one together.
    schema : Schema, path or Location, optional
        What the columns of a table are, or the TOML or JSON file, dataset, run or model that says
        so. A category column of a file may lack its categories: then they are looked for.
    write_schema : path, optional
        TOML or JSON file to which the schema is written.
    unlabelled : str, int or float, optional
        The label of rows that have none, such as -1 or "?"; of numbers what stands for none, such
        as "nan", in all targets of a row. Such rows join the basis, scale and width of a fit, and
        no sum over targets. None: every row has its label.
    chunk_rows : int, optional
        Rows of a chunk; default: 16 MiB.
    copy : bool
        Whether rows that are in Zarr already are copied. Otherwise the dataset refers to them, with
        a digest of every chunk, as it does not if a chunk of theirs has more than 128 MiB.
    overwrite : bool
        Replace what is at `location`, once the new dataset is complete.

    Raises
    ------
    DataError, MissingDataError, DamagedDataError, ParameterError, StorageError
        If the source cannot be used; names the place.
    ExistsError
        If something is at `location`.
    """
    path, storage_options = (
        (source.url, source.storage_options) if isinstance(source, RemoteLocation) else (source, {})
    )
    table = table_options(
        {
            **{"columns": columns, "drop": drop, "categorical": categorical, "numeric": numeric},
            **{"date": date, "missing_values": missing_values},
        },
        id=id,
        missing=missing,
        max_categories=max_categories,
    )
    if write_schema is not None:
        check_schema_file(write_schema)
        check_output_file(write_schema, overwrite=overwrite)
    opened = open_source(
        path,
        x=x,
        y=y,
        label=label,
        target=target,
        weights=weights,
        delimiter=delimiter,
        quote=quote,
        decimal=decimal,
        encoding=encoding,
        no_header=no_header,
        schema=schema if schema is None or isinstance(schema, Schema) else load_schema(schema),
        table=table,
        variable=variable,
        feature_dim=feature_dim,
        unlabelled=unlabelled,
        storage_options=storage_options,
    )
    if write_schema is not None and opened.schema is None:
        raise ParameterError(
            f"`write_schema` is given, and {path} is no table.",
            "Leave it out: arrays have no schema.",
        )
    dataset = ingest_source(
        opened,
        location,
        unlabelled=unlabelled,
        chunk_rows=chunk_rows,
        overwrite=overwrite,
        copy=copy,
    )
    if write_schema is not None and dataset.schema is not None:
        save_schema(dataset.schema, write_schema, overwrite=overwrite)
    return dataset


def table_options(names: Mapping[str, Names], **further: Any) -> "TableOptions":
    """Return what is said of a table: names, those that are not None, and further options."""
    from dask_nrbfn.sources.survey import TableOptions

    given: dict[str, Any] = {
        option: named_columns(option, value) if isinstance(value, str) else tuple(value)
        for option, value in names.items()
        if value is not None
    }
    return TableOptions(**given, **further)


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
        Numbers, instead of `y`. A frame names them, and so does a series.
    weights : array-like (n,), optional
        Weights of the rows, finite and above 0.
    missing : {"error", "impute"}
        What becomes of rows without a value: refused, or filled with the median of their column.
    schema : Schema, optional
        What the columns are; by default it is decided by what they have.
    unlabelled, chunk_rows, overwrite
        As in `ingest_file`.

    Raises
    ------
    DataError
        If shapes or types do not fit, a value is not finite, or a weight is not above 0.
    ParameterError
        If `y` and `target` are given.
    ExistsError
        If something is at `location`.
    """
    from dask_nrbfn.sources.stored import schema_of, stored_rows

    check_one_kind("y", y, target)
    schema = schema or (None if is_scipy(X) else schema_of(X, missing))
    source = ArraySource(
        _rows(X) if schema is None else stored_rows(X, schema),
        None if y is None else typed_labels(y),
        None if weights is None else np.asarray(weights),
        None if target is None else np.asarray(plain_rows(_as_frame(target), "target")),
    )
    source.schema = schema
    source.feature_names = column_names(X)
    source.target_names = target_names_of(target) or source.target_names
    return ingest_source(
        source, location, unlabelled=unlabelled, chunk_rows=chunk_rows, overwrite=overwrite
    )


def _rows(X: Any) -> Rows:
    """Return rows that need no schema as an array, or of scipy.sparse in CSR."""
    return canonical(X) if is_scipy(X) else np.asarray(plain_rows(X))


def ingest_source(
    source: Source,
    location: Location,
    *,
    unlabelled: Mark | None = None,
    chunk_rows: int | None = None,
    overwrite: bool = False,
    gaps: bool = False,
    copy: bool = False,
) -> Dataset:
    """Write a dataset from an open source, chunk after chunk.

    Rows that are in Zarr already stay there unless a `copy` is asked for. With `gaps` rows may lack
    values although its schema does not fill them; their features are NaN.
    """
    mark = checked_mark(
        source.unlabelled if unlabelled is None else unlabelled,
        source.y_dtype,
        source.target_names,
    )
    if source.unlabelled is not None:
        source.unlabelled = mark
    n_numbers = len(source.target_names or ())
    schema = source.schema
    n_values = source.n_values
    rows = min(
        source.n_rows,
        _check_chunk_rows(
            chunk_rows,
            source.n_features,
            source.x_dtype,
            n_numbers,
            schema,
            row_values=None if n_values is None else n_values / source.n_rows,
        ),
    )
    stored_at = None if copy else source.stored_at
    if stored_at is not None and chunk_rows is None and rows < source.n_rows:
        # Chunks of theirs are decoded as a whole.
        own_rows = stored_at.chunk_rows
        rows = min(source.n_rows, max(rows // own_rows, 1) * own_rows)
    gaps = gaps or (schema is not None and schema.fills)
    with replacing_group(location, kind="dataset", overwrite=overwrite) as group:
        create_dataset_arrays(
            group,
            shape=(source.n_rows, source.n_features),
            x_dtype=source.x_dtype,
            y_dtype=source.y_dtype,
            chunk_rows=rows,
            n_values=n_values,
            n_numbers=n_numbers,
            weighted=source.has_weights,
            id_dtype=source.id_dtype,
            stored_at=stored_at,
        )
        summaries = list(_write_blocks(group, source, rows, mark, gaps=gaps))
        finish_dataset(
            group,
            summaries,
            feature_names=source.feature_names,
            target_names=source.target_names,
            unlabelled=mark,
            schema=schema,
            read_as=source.read_as,
        )
    logger.info("ingest: %d x %d into %s", source.n_rows, source.n_features, location)
    return Dataset.open(location)


def _write_blocks(
    group: zarr.Group, source: Source, chunk_rows: int, unlabelled: Mark | None, *, gaps: bool
) -> Iterator[ChunkSummary]:
    written = 0
    for index, block in enumerate(source.blocks(chunk_rows)):
        yield write_chunk(group, index, *block, unlabelled=unlabelled, gaps=gaps)
        written += block.X.shape[0]
    if written != source.n_rows:
        raise DataError(
            f"the source has {written} rows, not the {source.n_rows} it announced.",
            "Do not change it while it is read.",
        )


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
    X : dask array (n, p) or dask dataframe
    y : dask array (n,), dask series or None
        Integers or strings.
    location : Location
        Must be reachable from the workers if a `distributed.Client` is active.
    target : dask array (n,) or (n, q), dask series or dataframe, optional
        Numbers, instead of `y`. A dataframe names them, and so does a series.
    weights : dask array (n,) or dask series, optional
        Weights of the rows, finite and above 0.
    missing, schema
        As in `ingest_arrays`.
    unlabelled, chunk_rows, overwrite
        As in `ingest_file`.

    Raises
    ------
    DataError
        If lengths or types do not fit, a value is not finite, or a weight is not above 0.
    ParameterError
        If `y` and `target` are given.
    """
    import dask

    check_one_kind("y", y, target)
    names = column_names(X)
    rows, schema = _rows_and_schema(X, missing, schema)
    targets, n_numbers, target_names = None, 0, None
    if target is not None:
        targets = _dask_numbers(target, len(rows))
        n_numbers = targets.shape[1]
        target_names = target_names_of(target) or numbered_targets(n_numbers)
    elif y is not None:
        targets = _dask_labels(y, len(rows))
    row_weights = None if weights is None else _dask_weights(weights, len(rows))
    y_dtype = None if targets is None else targets.dtype
    mark = checked_mark(unlabelled, y_dtype, target_names)
    size = _check_chunk_rows(chunk_rows, rows.shape[1], rows.dtype, n_numbers, schema)
    options = {"unlabelled": mark, "gaps": schema is not None and schema.fills}
    with replacing_group(location, kind="dataset", overwrite=overwrite) as group:
        create_dataset_arrays(
            group,
            shape=rows.shape,
            x_dtype=rows.dtype,
            y_dtype=y_dtype,
            chunk_rows=size,
            n_numbers=n_numbers,
            weighted=row_weights is not None,
        )
        writes = _delayed_writes(group, options, rows, targets, row_weights)
        finish_dataset(
            group,
            dask.compute(*writes),
            feature_names=names,
            target_names=target_names,
            unlabelled=mark,
            schema=schema,
        )
    return Dataset.open(location)


def _delayed_writes(
    group: zarr.Group, options: dict[str, Any], rows: "da.Array", *columns: "da.Array | None"
) -> "Iterator[Delayed]":
    import dask

    write = dask.delayed(write_chunk, pure=False)
    size = get_array(group, "X").chunks[0]
    blocks = rows.rechunk((size, -1)).to_delayed().ravel()
    others = (
        [None] * len(blocks)
        if column is None
        else column.rechunk((size, *column.shape[1:])).to_delayed().ravel()
        for column in columns
    )
    for index, chunk in enumerate(zip(blocks, *others, strict=True)):
        yield write(group, index, *chunk, **options)


def _as_frame(target: Any) -> Any:
    """Return a series, pandas' or dask's, as a frame of one column."""
    return target.to_frame() if hasattr(target, "to_frame") else target


def target_names_of(target: Any) -> tuple[str, ...] | None:
    """Return the names that a frame or series of targets has; None for other arrays."""
    if hasattr(target, "to_frame") and not (isinstance(target.name, str) and target.name):
        return None
    return column_names(_as_frame(target))


def dask_rows(
    X: Any, *, lengths: bool | None = None, name: str = "X", schema: Schema | None = None
) -> "da.Array":
    """Return the rows of a dask collection as numbers, or what is stored of them by a schema.

    `lengths` has those of a frame computed.

    Raises
    ------
    DataError
        If it is no table, a column is missing or no number; of Python objects, when they are
        computed.
    """
    if schema is not None:
        return _stored(X, schema, name)
    if hasattr(X, "columns"):
        for column, dtype in X.dtypes.items():
            if hasattr(dtype, "categories"):
                _check_known(X[column], f"Column {column!r} of {name}")
        X = X.map_partitions(plain_rows, name, meta=plain_rows(X._meta, name))
    rows = X.to_dask_array(lengths=lengths) if hasattr(X, "to_dask_array") else X
    if rows.ndim != 2 or 0 in rows.shape[1:]:
        raise _no_table(name, rows.shape)
    return rows.astype(feature_dtype(rows.dtype, name))


def _stored(X: Any, schema: Schema, name: str) -> "da.Array":
    """Return what is stored of the rows of a dask collection; a frame's are not counted."""
    from dask_nrbfn.sources.stored import column_labels, stored_rows

    # Rows are counted from the first of each.
    n_columns, part = len(schema.columns), f"a block of {name}"
    if hasattr(X, "columns"):
        own = X[column_labels(X._meta, schema, name)]
        return own.map_partitions(stored_rows, schema, part, meta=np.empty((0, n_columns)))
    # Refused before anything is computed.
    stored_rows(_no_rows(X), schema, name)
    chunks = (X.chunks[0], (n_columns,))
    whole = X.rechunk({1: -1})
    return whole.map_blocks(stored_rows, schema, part, chunks=chunks, dtype=FLOAT64)


def _rows_and_schema(
    X: Any, missing: str, schema: Schema | None
) -> "tuple[da.Array, Schema | None]":
    """Return the rows of a collection as they are to be stored, and what its columns are."""
    import dask
    import dask.array as da

    from dask_nrbfn.sources.stored import decided, frame_options, needs_schema

    options = frame_options(missing)
    if schema is not None or not needs_schema(_no_rows(X), options):
        return _counted_rows(X, schema=schema), schema
    parts = _parts(X)
    lengths = [dask.delayed(len)(part) for part in parts]
    surveys, *lengths = dask.compute(_surveyed(X, parts, options), *lengths)
    schema = decided(surveys, options)
    rows = dask_rows(X, schema=schema)
    return da.Array(rows.dask, rows.name, (tuple(lengths), rows.chunks[1]), rows.dtype), schema


def _no_rows(X: Any) -> Any:
    """Return the columns of a dask collection, in memory, without any row."""
    return X._meta if hasattr(X, "columns") else np.empty((0, *X.shape[1:]), dtype=X.dtype)


def _parts(X: Any) -> "list[Delayed]":
    """Return the parts of a frame, or the blocks of an array, that have whole rows."""
    whole = X if hasattr(X, "columns") else X.rechunk({1: -1})
    return list(np.ravel(whole.to_delayed()))


def _surveyed(X: Any, parts: "list[Delayed]", options: "TableOptions") -> "Delayed":
    """Return what the cells of each column are, of all parts together."""
    import dask

    from dask_nrbfn.sources.stored import kinds_of, merged, survey_columns, types_of

    found = [types_of(_no_rows(X))]
    if "null" in map(str, found[0].values()) or _has_unknown_categories(X):
        # Only the parts show what they are, and Python objects too.
        found = dask.compute(*map(dask.delayed(types_of), parts))
    types = {column: {part[column] for part in found} for column in found[0]}
    kinds = kinds_of(types, options)
    surveys = [dask.delayed(survey_columns)(part, kinds) for part in parts]
    while len(surveys) > 1:
        groups = [surveys[first : first + _MERGED] for first in range(0, len(surveys), _MERGED)]
        surveys = list(map(dask.delayed(merged), groups))
    return surveys[0]


def _has_unknown_categories(X: Any) -> bool:
    dtypes = X.dtypes.items() if hasattr(X, "columns") else ()
    return any(hasattr(of, "categories") and not X[column].cat.known for column, of in dtypes)


def _counted_rows(X: Any, name: str = "X", schema: Schema | None = None) -> "da.Array":
    rows = _with_lengths(dask_rows(X, lengths=True, name=name, schema=schema))
    if len(rows) == 0:
        raise _no_table(name, rows.shape)
    return rows


def _no_table(name: str, shape: tuple[float, ...]) -> DataError:
    return DataError(
        f"{name} has shape {shape}.", "Give a table with at least one row and one column."
    )


def _dask_numbers(target: Any, n_rows: int) -> "da.Array":
    table = _as_frame(target)
    numbers = _counted_rows(table[:, None] if table.ndim == 1 else table, "target")
    _check_length(numbers, n_rows, "target", "target")
    return numbers.astype(FLOAT64)


def _dask_labels(y: Any, n_rows: int) -> "da.Array":
    import dask.array as da

    if hasattr(y.dtype, "categories"):
        _check_known(y, "y")
    typed = isinstance(y.dtype, np.dtype)
    # Dask warns that it makes arrays of objects of pandas' own types.
    labels = _dask_column(y if typed else y.astype(object), n_rows, "y", "label")
    # A column of text is Python objects in pandas; each block is checked when it is computed.
    given = plain_dtype(y.dtype)
    dtype = STRING if given.kind in "OT" else label_dtype(given, "y")
    return da.map_blocks(_block_labels, labels, dtype, dtype=dtype, meta=np.empty(0, dtype=dtype))


def _check_known(column: Any, name: str) -> None:
    if not column.cat.known:
        raise DataError(
            f"{name} is a category whose values dask has not looked for.",
            "Let it do so: X = X.categorize(), or y = y.cat.as_known().",
        )


def _dask_weights(weights: Any, n_rows: int) -> "da.Array":
    column = _dask_column(weights, n_rows, "weights", "weight")
    check_weight_dtype(column.dtype, "weights")
    return column.astype(FLOAT64)


def _dask_column(values: Any, n_rows: int, name: str, noun: str) -> "da.Array":
    column = _with_lengths(values)
    if column.ndim != 1:
        raise DataError(f"{name} has shape {column.shape}.", f"Give one {noun} per row of X.")
    _check_length(column, n_rows, name, noun)
    return column


def _check_length(column: "da.Array", n_rows: int, name: str, noun: str) -> None:
    if len(column) != n_rows:
        raise DataError(
            f"{name} has {len(column)} rows but X has {n_rows}.",
            f"Write {name} with one {noun} per row of X.",
        )


def _with_lengths(values: Any) -> "da.Array":
    array = values.to_dask_array(lengths=True) if hasattr(values, "to_dask_array") else values
    return array.compute_chunk_sizes() if np.isnan(sum(array.shape)) else array


def _block_labels(
    labels: NDArray[Any], dtype: np.dtype[Any], block_info: Any = None
) -> NDArray[Any]:
    first_row = block_info[0]["array-location"][0][0] if block_info else 0
    values = to_labels(typed_labels(labels, first_row=first_row), "y", first_row=first_row)
    if values.dtype != dtype:
        raise DataError(
            f"y has the label {labels[0]!r} in row {first_row} (the first is 0), as an object.",
            "Give the column a type, such as y.astype(bool), y.astype(int) or y.astype(str).",
        )
    return values


def _check_chunk_rows(
    chunk_rows: int | None,
    n_features: int,
    dtype: np.dtype[Any],
    n_numbers: int,
    schema: Schema | None,
    *,
    row_values: float | None = None,
) -> int:
    if chunk_rows is None:
        if schema is not None and not schema.is_plain:
            # A chunk of features is what tasks hold.
            n_features, dtype = schema.n_features, FLOAT64
        return default_chunk_rows(n_features, dtype, row_values=row_values, n_numbers=n_numbers)
    if chunk_rows < 1:
        raise ParameterError(f"`chunk_rows` is {chunk_rows}.", "Give an integer of at least 1.")
    return chunk_rows
