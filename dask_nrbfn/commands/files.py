"""Rows as people have them: a dataset, or a file that is read as a model's own rows were."""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dask_nrbfn.commands.ingest import Names, ingest_source, table_options
from dask_nrbfn.commands.version import read_model
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources import Source
from dask_nrbfn.sources.formats import holds_rows, open_source
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, hidden_sibling, kind_of, remove_group
from dask_nrbfn.storage.location import RemoteLocation, normalize
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import latest_place

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Rows:
    """Rows that a model is used on.

    Attributes
    ----------
    dataset : Dataset
    kept : RecordBatchReader or None
        Columns of the file that they are from, as they are there.
    ignored : tuple of str
        Columns of the file that are not used.
    bad_rows : list of int
        Rows that have a cell which cannot be read, though its column may have a filling.
    unseen : dict of int
        Rows of the file with a category that the model does not know, by column.
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
) -> Iterator[Rows]:
    """Give the rows at a place as a model is used on them, as long as the block runs.

    Parameters
    ----------
    place : path, URL or RemoteLocation
        Of a dataset, or of a file or directory that `ingest_file` takes. Of a table the columns of
        the model are found by their names.
    model : Location
        Of a model or a run.
    beside : Location
        What a file gives is written beside it, under a hidden name, where all workers must find
        it, and removed when the block ends.
    labelled : bool
        Whether labels, numbers or weights are wanted, those that the model learned with.
    spoiled : bool
        Whether rows may lack values, or have cells that are none: their features are NaN.
    keep : sequence of str
        Columns of a table that are given as they are. Ids are given anyway.
    unlabelled, id, missing_values, **options
        How the file is read, as `ingest_file` has it; what is not said is as it was when the
        model's rows were ingested.

    Raises
    ------
    DataError, MissingDataError, DamagedDataError, ParameterError, StorageError
        If the place has no rows, or others than the model takes; if something is said of a file,
        and it is a dataset.
    """
    path, storage_options = (
        (place.url, place.storage_options) if isinstance(place, RemoteLocation) else (place, {})
    )
    if not holds_rows(path, storage_options, format=options.get("format")):
        said = {"unlabelled": unlabelled, "id": id, "missing_values": missing_values}
        check_nothing_said(place, "a dataset", **said, **options, keep=keep)
        yield Rows(Dataset.open(place))
        return
    trained = _model_at(model)
    source = open_source(
        path,
        schema=_schema_of(trained, labelled=labelled),
        classes=trained.classes.tolist() if trained.target_names is None else None,
        trained_features=trained.n_features,
        spoiled=spoiled,
        table=table_options({"missing_values": missing_values}, id=id),
        storage_options=storage_options,
        unlabelled=unlabelled,
        read_as=_read_as(trained, labelled=labelled),
        **options,
    )
    check_places = getattr(source, "check_places", None)
    if trained.schema is not None and check_places is not None:
        # Without labels the schema that it was opened with does not know which column they were.
        check_places(trained.schema)
    schema = source.schema
    kept = _kept(source, [name for name in keep if schema is None or name != schema.id], place)
    ignored = () if schema is None else schema.ignored
    scratch = hidden_sibling(beside, f"{uuid.uuid4().hex[:8]}.unfinished")
    try:
        ingest_source(source, scratch, unlabelled=unlabelled, gaps=spoiled)
        dataset = Dataset.open(scratch).named(str(normalize(place)))
        unused = tuple(name for name in ignored if name not in keep)
        unseen = {name: each.n_values for name, each in getattr(source, "unseen", {}).items()}
        yield Rows(dataset, kept, unused, getattr(source, "bad_rows", ()), unseen)
    finally:
        remove_group(scratch)


def _kept(source: Source, names: Sequence[str], place: object) -> "pa.RecordBatchReader | None":
    """Return some columns of a table, None if there are no names."""
    if not names:
        return None
    # With pyarrow, which files of arrays do without.
    from dask_nrbfn.sources.tabular import TableSource

    if not isinstance(source, TableSource):
        raise ParameterError(
            f"`keep` is given, and {place} is no table.",
            "Give a CSV, Parquet or Arrow file, or leave it out.",
        )
    return source.carried(names)


def _model_at(location: Location) -> Model:
    """Return a model, or the latest one of a run, which may be a branch without rows."""
    if kind_of(location, ("run", "model")) == "model":
        return Model.load(location)
    run = Run.open(location)
    return read_model(run, latest_place(run.attributes))


def check_nothing_said(place: Any, what: str, **options: Any) -> None:
    """Raise ParameterError if anything is said that is for files alone, of what is none."""
    for name, value in options.items():
        if value not in (None, False, ()):
            raise ParameterError(
                f"`{name}` is given, and {place} is {what}.", "Say so of a file only."
            )


def _read_as(model: Model, *, labelled: bool) -> dict[str, str]:
    """Return how the rows were found that a model learned from."""
    recorded = model.read_as or {}
    targets = () if labelled else ("y", "target", "weights")
    return {name: value for name, value in recorded.items() if name not in targets}


def _schema_of(model: Model, *, labelled: bool) -> Schema | None:
    """Return what the columns of a file are that a model is used on, None if nothing tells."""
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
        # Every row gets its line.
        missing="error" if schema.missing == "drop" else schema.missing,
    )
