"""Rows that a model is used on: a dataset, or a file that is read as the training rows were."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources.formats import holds_rows, is_query, open_source
from dask_nrbfn.sources.options import ReadOptions
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, scratch_next_to
from dask_nrbfn.storage.location import RemoteLocation, file_of, normalize
from dask_nrbfn.storage.model import Model

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class OpenedRows(NamedTuple):
    """Rows that a model is used on."""

    dataset: Dataset
    # Columns of the file as they were read, and those that are not used.
    kept: "pa.RecordBatchReader | None" = None
    ignored: tuple[str, ...] = ()
    # Number of rows with a category that the model does not know, by column.
    unseen: Mapping[str, int] = {}


@contextmanager
def opened_rows(
    place: str | os.PathLike[str] | RemoteLocation,
    model: Location,
    *,
    beside: Location,
    labelled: bool = True,
    spoiled: bool = False,
    keep: Sequence[str] = (),
    **reading: Any,
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
        Whether missing values and unreadable cells are allowed; both are read as missing.
    keep : sequence of str
        Columns of a table that are returned as they were read, "*" for all. Ids are always
        returned.
    **reading
        Options of `ingest_file` such as `unlabelled`; by default the file is read as the training
        rows were read.

    Raises
    ------
    DataError, MissingDataError, DamagedDataError, ParameterError, StorageError
        If the place has no rows, or not the columns of the model; if an option for files is given
        and the place is a dataset.
    """
    path = file_of(place) if isinstance(place, RemoteLocation) else place
    if not holds_rows(path):
        dataset = Dataset.open(place)
        check_not_given(f"{place} is a dataset", **reading, keep=keep)
        yield OpenedRows(dataset)
        return
    options, trained = ReadOptions.of_named(reading), Model.load(model)
    check_not_given("the columns are those of the model", schema=options.schema)
    unread = () if labelled else ("y", "target", "weights", "unlabelled")
    read_as = {name: each for name, each in (trained.read_as or {}).items() if name not in unread}
    if "sql" in read_as and not is_query(path) and options.sql is None:
        logger.info("the training rows were read with the query %s", read_as["sql"])
    if options.unlabelled is None:
        options = replace(options, unlabelled=read_as.get("unlabelled"))
    source: Any = open_source(
        path,
        replace(options, schema=_schema_of(trained, labelled=labelled)),
        classes=trained.classes.tolist() if trained.target_names is None else None,
        spoiled=spoiled,
        read_as=read_as,
    )
    schema = source.schema
    # Only a table has this, and a schema.
    table: Any = getattr(source, "table", None)
    if keep and table is None:
        raise ParameterError(
            f"`keep` is given, but {place} is not a table.",
            "Give a text, Parquet or Arrow file, or leave `keep` out.",
        )
    keep = table.names if "*" in keep else keep
    names = [name for name in keep if schema is not None and name != schema.id]
    kept = source.carried(names) if names else None
    mark = None if source.y_dtype is None else options.unlabelled
    with scratch_next_to(beside) as scratch:
        ingest_source(source, scratch, unlabelled=mark, gaps=spoiled)
        dataset = Dataset.open(scratch).named(str(place if is_query(path) else normalize(place)))
        ignored = () if schema is None else schema.ignored
        unused = tuple(name for name in ignored if name not in keep)
        yield OpenedRows(dataset, kept, unused, dict(source.unseen))


def check_not_given(reason: str, **options: Any) -> None:
    """Raise ParameterError if an option is given, for a reason such as "rows is a dataset"."""
    for name, value in options.items():
        if value not in (None, False, ()):
            raise ParameterError(f"`{name}` is given, but {reason}.", f"Leave `{name}` out.")


def _schema_of(model: Model, *, labelled: bool) -> Schema | None:
    """Return the schema for a file that a model is used on; None if the model names no columns."""
    schema = model.schema
    if schema is None and model.feature_names is not None:
        schema = Schema(tuple(Column(name, "number") for name in model.feature_names))
    if schema is None or labelled:
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
