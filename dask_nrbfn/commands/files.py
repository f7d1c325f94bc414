"""Rows that a model is used on: a dataset, or a file that is read as the training rows were."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources.dtypes import checked_mark
from dask_nrbfn.sources.formats import holds_rows, is_query, open_source
from dask_nrbfn.sources.source import Names, Source
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, scratch_beside
from dask_nrbfn.storage.location import RemoteLocation, normalize
from dask_nrbfn.storage.model import Model

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class OpenedRows:
    """Rows that a model is used on.

    kept: columns of the file, as they were read.
    ignored: columns of the file that are not used.
    bad_rows: indices of rows with a cell that cannot be read, even in an imputed column.
    unseen: number of rows with a category that the model does not know, by column.
    """

    dataset: Dataset
    kept: "pa.RecordBatchReader | None" = None
    ignored: tuple[str, ...] = ()
    bad_rows: Sequence[int] = ()
    unseen: Mapping[str, int] = field(default_factory=dict)


@contextmanager
def opened_rows(
    place: str | os.PathLike[str] | RemoteLocation,
    model: Location,
    *,
    beside: Location,
    labelled: bool = True,
    spoiled: bool = False,
    keep: Sequence[str] = (),
    unlabelled: str | int | float | None = None,
    id: str | None = None,
    missing_values: Names = None,
    **options: Any,
) -> Iterator[OpenedRows]:
    """Yield the rows at a place, encoded for a model; the rows exist until the block ends.

    Parameters
    ----------
    place : path, URL, RemoteLocation or query
        Location of a dataset, or a file, directory or query that `ingest_file` accepts. Columns of
        a table are found by name.
    model : Location
        Location of a model or a run.
    beside : Location
        The rows of a file are written next to this location, under a hidden name that all workers
        must be able to open, and removed when the block ends.
    labelled : bool
        Whether labels, numeric targets and weights are read, from the columns of the fit.
    spoiled : bool
        Whether missing values and unreadable cells are allowed; their features are NaN.
    keep : sequence of str
        Columns of a table that are returned as they were read. Ids are always returned.
    unlabelled, id, missing_values, **options
        How the file is read, as for `ingest_file`; by default as the training rows were read.

    Raises
    ------
    DataError, MissingDataError, DamagedDataError, ParameterError, StorageError
        If the place has no rows, or not the columns of the model; if an option for files is given
        and the place is a dataset.
    """
    path, storage_options = (
        (place.url, place.storage_options) if isinstance(place, RemoteLocation) else (place, {})
    )
    if not holds_rows(path, storage_options):
        dataset = Dataset.open(place)
        said = {"unlabelled": unlabelled, "id": id, "missing_values": missing_values}
        check_nothing_said(place, "a dataset", **said, **options, keep=keep)
        yield OpenedRows(dataset)
        return
    trained = Model.load(model)
    unread = () if labelled else ("y", "target", "weights", "unlabelled")
    read_as = {name: each for name, each in (trained.read_as or {}).items() if name not in unread}
    recorded = read_as.get("unlabelled")
    queried = is_query(path) or options.get("sql") is not None
    recalled = partial(_recalled, None if queried else read_as.pop("sql", None))
    with recalled():
        source = open_source(
            path,
            schema=_schema_of(trained, labelled=labelled),
            classes=trained.classes.tolist() if trained.target_names is None else None,
            spoiled=spoiled,
            missing_values=missing_values,
            id=id,
            storage_options=storage_options,
            unlabelled=recorded if unlabelled is None else unlabelled,
            read_as=read_as,
            **options,
        )
    schema = source.schema
    names = [name for name in keep if schema is None or name != schema.id]
    kept = _carried(source, names, place) if names else None
    ignored = () if schema is None else schema.ignored
    with scratch_beside(beside) as scratch:
        mark = unlabelled
        if mark is None:
            # Labels of another type than those of the fit have no marker.
            with suppress(ParameterError):
                checked_mark(recorded, source.y_dtype, source.target_names)
                mark = recorded
        with recalled():
            ingest_source(source, scratch, unlabelled=mark, gaps=spoiled)
        name = str(place if is_query(path) else normalize(place))
        dataset = Dataset.open(scratch).named(name)
        unused = tuple(name for name in ignored if name not in keep)
        yield OpenedRows(dataset, kept, unused, source.bad_rows, dict(source.unseen))


def _carried(source: Source, names: Sequence[str], place: Any) -> "pa.RecordBatchReader":
    """Return columns of a table as they were read."""
    carried: Any = getattr(source, "carried", None)
    if carried is None:
        raise ParameterError(
            f"`keep` is given, but {place} is not a table.",
            "Give a text, Parquet or Arrow file, or leave `keep` out.",
        )
    return carried(names)


@contextmanager
def _recalled(sql: str | None) -> Iterator[None]:
    """Add the query of the training rows, if any, to the remedy of an error about rows."""
    try:
        yield
    except DataError as error:
        if sql is None:
            raise
        problem, remedy = error.args
        query = f"The training rows were read with `sql`={sql!r}: pass such a query."
        raise DataError(problem, f"{remedy} {query}") from error


def check_nothing_said(place: Any, what: str, **options: Any) -> None:
    """Raise ParameterError if an option for files is given for `what`, such as "a dataset"."""
    for name, value in options.items():
        if value not in (None, False, ()):
            raise ParameterError(
                f"`{name}` is given, but {place} is {what}.", f"Leave `{name}` out."
            )


def _schema_of(model: Model, *, labelled: bool) -> Schema | None:
    """Return the schema for a file that a model is used on; None if the model names no columns."""
    schema = model.schema
    if schema is None:
        if model.feature_names is None:
            return None
        schema = Schema(tuple(Column(name, "number") for name in model.feature_names))
    if labelled:
        return schema
    others = (schema.label, *(schema.targets or ()), schema.weights)
    return replace(
        schema,
        label=None,
        targets=None,
        weights=None,
        ignored=(*schema.ignored, *(name for name in others if name is not None)),
        # Every row gets a prediction.
        missing="error" if schema.missing == "drop" else schema.missing,
    )
