"""Ingest: rows of any source, streamed into a dataset."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import ArrayLike

from dask_nrbfn.commands.collections import (
    SparseBlocks,
    dask_labels,
    dask_numbers,
    dask_weights,
    rows_and_schema,
)
from dask_nrbfn.commands.schemas import check_schema_file, load_schema, save_schema
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import Rows, canonical, dense, is_scipy
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.outputs import check_output_file
from dask_nrbfn.sources import ArraySource, Source, open_source
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    INT64,
    checked_mark,
    sparse_dtype,
)
from dask_nrbfn.sources.frames import (
    are_boolean,
    as_columns,
    column_names,
    plain_dtype,
    plain_rows,
    target_names_of,
    typed_labels,
)
from dask_nrbfn.sources.layout import check_one_kind, numbered_targets
from dask_nrbfn.sources.open import named_columns
from dask_nrbfn.sources.source import Block
from dask_nrbfn.sources.sparseness import expanded_values, stored_values
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


def ingest_file(
    source: str | os.PathLike[str] | RemoteLocation,
    location: Location,
    *,
    format: str | None = None,
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
    date_format: str | Sequence[str] | None = None,
    variable: str | None = None,
    feature_dim: str | None = None,
    missing: str = "error",
    missing_values: Names = None,
    max_categories: int = 100,
    schema: Schema | Location | None = None,
    write_schema: str | os.PathLike[str] | None = None,
    n_features: int | None = None,
    sparse: str = "auto",
    unlabelled: str | int | float | None = None,
    chunk_rows: int | None = None,
    copy: bool = False,
    overwrite: bool = False,
) -> Dataset:
    """Write a dataset from a file, or from all files of a directory.

    Parameters
    ----------
    source : path, URL or RemoteLocation
        .npz, also of `scipy.sparse.save_npz`, .npy, .csv, .tsv (both also with .gz or .zst),
        .parquet, .arrow, .arrows, .feather, .svm, .svmlight, .libsvm, .h5ad, .xlsx or a Zarr store
        of AnnData; with `feature_dim` or `variable` what xarray opens.
    location : Location
    format : str, optional
        csv, parquet, arrow, excel, npz, npy or svmlight; by default the suffix tells, and where it
        is unknown, the first lines of text do.
    x, y : str, optional
        Members of an .npz file; for .npy, y is the file of the labels; for Parquet and Arrow, x
        names the columns of the features, by default all others: a list has one for each element.
        Of AnnData x is X, raw/X, layers/NAME or obsm/NAME, by default X, and y obs/NAME.
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
        commas a semicolon), a space for any number of blanks; around text, by default double
        quotes; both unless the first lines contradict it. Before decimals, by default a point.
        The encoding, by default UTF-8, or UTF-16 where a file begins with its mark.
    no_header : bool
        Whether the first line of CSV is a row; the columns are column_0, column_1, ... By default
        the first lines tell, and whether a column is named that is in the first one.
    columns, drop : str or sequence of str, optional
        Columns of a table that become features, by default all that are nothing else; and those
        that are left out. Names as "A,B", here and below, with double quotes around one that has a
        comma.
    id : str, optional
        Column that names the rows of a table and is carried along to their predictions.
    categorical, numeric, date : str or sequence of str, optional
        Columns of that kind. By default their cells decide: text is numbers if 99 % of it has one
        unit, dates if all of it has one format, else a category, left out if nearly all rows
        differ.
    date_format : str or sequence of str, optional
        How dates are written, such as "%d/%m/%Y", or "COLUMN=%d/%m/%Y" for one column; by default
        what the values show.
    variable, feature_dim : str, optional
        `source` is a Zarr group, netCDF or another file that xarray opens: its rows are the pixels
        of this variable, whose features lie along this dimension, but for those that lack a feature
        or, unless there is an `unlabelled`, a label. Variables "A,B" are a feature each, or have
        one for every coordinate of the dimension. `label` and `target` are variables too. Ids of
        the rows number the pixels in the order of their dimensions.
    missing : {"error", "drop", "impute"}
        What becomes of rows that lack a value: refused; left out, those without a label, target
        or weight too; filled, numbers, booleans and dates with the median, with a feature that
        says so where more than 1 % of the rows do.
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
    n_features : int, optional
        Features of svmlight text, which leaves zeros out; by default as many as it shows.
    sparse : {"auto", "yes", "no"}
        Whether rows are in CSR; "auto": if they have at least 256 features, mostly 0, and take less
        than half as many bytes then. It decides for svmlight, sparse matrices, tables of 0 and 1
        and those whose categories make such features.
    unlabelled : str, int or float, optional
        The label of rows that have none, such as -1, "?", or "" for an empty cell; of numbers what
        stands for none, such as "nan", in all targets of a row. Such rows join the basis, scale and
        width of a fit, and no sum over targets. None: every row has its label.
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
        date_format=(date_format,) if isinstance(date_format, str) else tuple(date_format or ()),
        id=id,
        missing=missing,
        max_categories=max_categories,
    )
    if write_schema is not None:
        check_schema_file(write_schema)
        check_output_file(write_schema, overwrite=overwrite)
    opened = open_source(
        path,
        format=format,
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
        n_features=n_features,
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
    """Log what stands against a fit: no labels or targets, or labels of one class."""
    if not dataset.has_targets:
        columns = ""
        if dataset.schema is not None:
            from dask_nrbfn.sources.tables import shown_names

            names = [*(column.name for column in dataset.schema.columns), *dataset.schema.ignored]
            columns = f" Its columns are {shown_names(names)}."
        logger.info(
            "ingest: no label or target is named: the dataset has rows only, to be predicted.%s",
            columns,
        )
    elif dataset.n_classes < 2 and not dataset.of_numbers:
        only = f"1 class only: {dataset.classes.tolist()[0]!r}" if dataset.n_classes else "no label"
        logger.warning("ingest: the rows have %s. A fit needs at least two classes.", only)


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
        None if y is None else typed_labels(y, unlabelled=unlabelled),
        None if weights is None else np.asarray(weights),
        None if target is None else np.asarray(plain_rows(as_columns(target), "target")),
    )
    source.schema = schema
    if source.y_dtype == INT64:
        source.boolean_labels = are_boolean(y, unlabelled)
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


def _rows(X: Any) -> Rows:
    """Return rows that need no schema as an array, or of scipy.sparse in CSR."""
    return canonical(X) if is_scipy(X) else np.asarray(plain_rows(X))


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
) -> Dataset:
    """Write a dataset from an open source, chunk after chunk, `sparse` as in `ingest_file`.

    Rows that are in Zarr already stay there unless a `copy` is asked for. With `gaps` rows may lack
    values although its schema does not fill them; their features are NaN. The dataset has the
    `classes` even where no row has them.
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
    stored_at = None if copy else source.stored_at
    stays = sparse == "auto" and stored_at is not None
    n_values = source.n_values if stays else stored_values(source, sparse)
    if (n_values is None) != (source.n_values is None):
        # In its place it is in another form.
        stored_at = None
    x_dtype = source.x_dtype if n_values is None else sparse_dtype(source.x_dtype, "X")
    expanded = expanded_values(schema, sparse)
    row_values = expanded if n_values is None else n_values / source.n_rows
    rows = _check_chunk_rows(
        chunk_rows, source.n_features, x_dtype, n_numbers, schema, row_values=row_values
    )
    rows = min(rows, source.n_rows)
    if stored_at is not None and chunk_rows is None and rows < source.n_rows:
        # Chunks of theirs are decoded as a whole.
        own_rows = stored_at.chunk_rows
        rows = min(source.n_rows, max(rows // own_rows, 1) * own_rows)
    gaps = gaps or (schema is not None and schema.fills)
    with replacing_group(location, kind="dataset", overwrite=overwrite) as group:
        create_dataset_arrays(
            group,
            shape=(source.n_rows, source.n_features),
            x_dtype=x_dtype,
            y_dtype=source.y_dtype,
            chunk_rows=rows,
            n_values=n_values,
            n_numbers=n_numbers,
            weighted=source.has_weights,
            id_dtype=source.id_dtype,
            stored_at=stored_at,
        )
        blocks = _in_form(source.blocks(rows), None if n_values is None else x_dtype)
        summaries = list(_write_blocks(group, source.n_rows, blocks, mark, gaps=gaps))
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
    logger.info("ingest: %d x %d into %s", source.n_rows, source.n_features, location)
    return Dataset.open(location)


def _in_form(blocks: Iterable[Block], sparse: np.dtype[Any] | None) -> Iterator[Block]:
    """Yield blocks with X in CSR, of the type `sparse`, or as arrays where that is None."""
    for block in blocks:
        X = dense(block.X) if sparse is None else canonical(block.X).astype(sparse, copy=False)
        yield block._replace(X=X)


def _write_blocks(
    group: zarr.Group,
    n_rows: int,
    blocks: Iterable[Block],
    unlabelled: Mark | None,
    *,
    gaps: bool,
) -> Iterator[ChunkSummary]:
    written = 0
    for index, block in enumerate(blocks):
        yield write_chunk(group, index, *block, unlabelled=unlabelled, gaps=gaps)
        written += block.X.shape[0]
    if written != n_rows:
        raise DataError(
            f"the source has {written} rows, not the {n_rows} it announced.",
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
    X : dask array (n, p), also of sparse blocks, or dask dataframe
        Sparse blocks are computed one at a time and written by this process.
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
    rows, schema = rows_and_schema(X, missing, schema)
    targets, n_numbers, target_names = None, 0, None
    if target is not None:
        targets = dask_numbers(target, len(rows))
        n_numbers = targets.shape[1]
        target_names = target_names_of(target) or numbered_targets(n_numbers)
    elif y is not None:
        targets = dask_labels(y, len(rows), unlabelled)
    row_weights = None if weights is None else dask_weights(weights, len(rows))
    boolean = target is None and y is not None and plain_dtype(y.dtype).kind == "b"
    if is_scipy(rows._meta):
        source = SparseBlocks.of(rows, targets, row_weights, target_names)
        source.boolean_labels = boolean
        return ingest_source(
            source,
            location,
            sparse="yes",
            unlabelled=unlabelled,
            chunk_rows=chunk_rows,
            overwrite=overwrite,
        )
    y_dtype = None if targets is None else targets.dtype
    mark = checked_mark(unlabelled, y_dtype, target_names)
    expanded = expanded_values(schema, "auto")
    size = _check_chunk_rows(
        chunk_rows, rows.shape[1], rows.dtype, n_numbers, schema, row_values=expanded
    )
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
            sparse=expanded is not None,
            boolean_labels=boolean,
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
