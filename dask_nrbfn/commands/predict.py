"""Predict: results of a model for all rows of a dataset, as a group, a table, or in their store."""

import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import DataError, ExistsError, ParameterError
from dask_nrbfn.numeric.bins import RANKING_BYTES
from dask_nrbfn.numeric.distances import basis_bytes
from dask_nrbfn.numeric.rows import mean_values
from dask_nrbfn.outputs import check_output_file, new_file
from dask_nrbfn.parts import run_tasks
from dask_nrbfn.scorer import Scorer, activations_bytes, scoring_rows
from dask_nrbfn.sources.anndata import import_anndata, obs_of
from dask_nrbfn.sources.files import damage_named
from dask_nrbfn.sources.source import Block, recut
from dask_nrbfn.sources.zarr_arrays import zarr_format
from dask_nrbfn.storage.array import Array, create_array, get_array, read_rows
from dask_nrbfn.storage.chunks import default_chunk_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import (
    Location,
    check_target,
    flush_member,
    locked_run,
    mark_complete,
    open_group,
    replace_group,
    replacing_group,
    scratch_beside,
    store_at,
)
from dask_nrbfn.storage.location import RemoteLocation, file_of, join
from dask_nrbfn.storage.model import Model, PinnedModel

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# Tasks of a worker: several, so that a slow worker does not delay the end; few, because reading the
# model, which each task does, should take less than a tenth of the time.
_MAX_TASKS_PER_WORKER, _TASK_ROWS = 4, 16_384

# Tasks write whole chunks. Small tables, perhaps a single chunk of the dataset, get enough chunks
# for every worker.
_MIN_CHUNKS, _MIN_CHUNK_ROWS = 64, 512

# Suffixes of Zarr groups. Any other suffix means another format.
GROUPS = ("", ".zarr")

# Suffixes of the files that predictions are written to.
TABLES = (".csv", ".parquet")

# The rest of a warning about some rows.
CLIPPED = "are predicted outside the range of the training targets; their numbers are clipped"

# Rows whose predicted and true numbers an evaluation keeps: enough for a scatter plot.
SAMPLED_ROWS = 2000


class Predicted(NamedTuple):
    """Numbers of rows with nulls, and of rows whose numbers were clipped."""

    n_skipped: int
    n_clipped: int


def predict_dataset(
    model: Location,
    dataset: Dataset,
    out: Location,
    engine: Engine,
    *,
    scores: bool = False,
    probabilities: bool = False,
    prediction_name: str | None = None,
    kept: "pa.RecordBatchReader | None" = None,
    skip_bad: bool = False,
    bad_rows: Sequence[int] = (),
    clip: bool = True,
    overwrite: bool = False,
) -> Predicted:
    """Write labels (n,), or values (n, q) of a regression, and further results for all rows.

    Parameters
    ----------
    model : Location
        Location of a model or a finished run.
    dataset : Dataset
        Needs no labels. Its ids are also written.
    out : Location
        A Zarr group, without suffix or with .zarr; or a local .csv or .parquet file with a column
        "prediction".
    engine : Engine
    scores, probabilities : bool
        Also write the scores or `Model.probabilities` (n, K) of every class; a Zarr group always
        has scores.
    prediction_name : str, optional
        Name of the column instead of "prediction". Several targets become ``NAME_TARGET``. By
        default numbers have the names of their targets, unless a kept column has this name.
    kept : RecordBatchReader, optional
        Further columns of the same rows for a .csv or .parquet file.
    skip_bad : bool
        Write nulls for rows with a missing feature, in a .csv or .parquet file.
    bad_rows : sequence of int
        Indices of further rows to write nulls for.
    clip : bool
        Whether predicted numbers are clipped to the range of the training targets.
    overwrite : bool
        Replace a file or group of predictions at `out` once the new one is complete.

    Raises
    ------
    DataError
        If the dataset does not have the columns of the training rows and the rows of `kept`.
    ExistsError, ParameterError, StorageError
        If `out` cannot be written, or an option does not apply to `out` or the model.
    """
    pinned = PinnedModel.at(model, clip=clip)
    opened = pinned.open()
    keep = () if kept is None else kept.schema.names
    asked: dict[str, Any] = {"scores": scores, "probabilities": probabilities, "keep": keep}
    asked |= {"skip_bad": skip_bad, "prediction_name": prediction_name}
    names = check_predictions(opened, out, overwrite=overwrite, **asked)
    dataset = encoded_for(opened, dataset, engine)
    if _suffix(out) not in TABLES:
        return Predicted(0, _write(pinned, dataset, out, engine, names, overwrite=overwrite))
    columns = _table_columns(opened, dataset, names, keep, prediction_name)
    if kept is not None and _suffix(out) == ".csv":
        check_in_csv(kept)
    with scratch_beside(out) as scratch:
        n_clipped = _write(pinned, dataset, scratch, engine, names)
        with new_file(str(out), overwrite=overwrite) as unfinished:
            group = open_group(scratch, kind="predictions")
            n_skipped = _write_table(group, unfinished, columns, kept, bad_rows)
    if n_skipped:
        logger.warning("%d of %d rows have no prediction.", n_skipped, dataset.n_rows)
    return Predicted(n_skipped, n_clipped)


def check_predictions(
    model: Model,
    out: Location,
    *,
    overwrite: bool,
    scores: bool,
    probabilities: bool,
    skip_bad: bool,
    keep: Sequence[str],
    prediction_name: str | None = None,
) -> tuple[str, ...]:
    """Return the names in `RESULTS` to write to `out`; raise an error if they cannot be."""
    check_prediction_place(out, overwrite=overwrite)
    in_table, of_numbers = _suffix(out) in TABLES, model.target_names is not None
    for name, is_asked in {"scores": scores, "probabilities": probabilities}.items():
        if is_asked and of_numbers:
            raise ParameterError(
                f"`{name}` is set, but the model predicts numbers.", f"Leave `{name}` out."
            )
    of_tables = {"keep": keep, "skip_bad": skip_bad, "prediction_name": prediction_name}
    for name, value in of_tables.items():
        if value and not in_table:
            raise ParameterError(
                f"`{name}` is given, but {out} is not a .csv or .parquet file.",
                "Give an output path that ends in .csv or .parquet.",
            )
    wanted = {
        "labels": not of_numbers,
        "values": of_numbers,
        "scores": scores or not (in_table or of_numbers),
        "probabilities": probabilities,
        "skipped": skip_bad,
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def check_prediction_place(out: Location, *, overwrite: bool) -> None:
    """Raise an error if predictions cannot be written to `out`."""
    if _suffix(out) in TABLES:
        check_output_file(str(out), overwrite=overwrite)
    else:
        check_target(out, kind="predictions", overwrite=overwrite)


def _suffix(out: Location) -> str:
    """Return the suffix of a path or URL; a store object has none."""
    if isinstance(out, zarr.abc.store.Store):
        return ""
    suffix = Path(str(out)).suffix.lower()
    if suffix not in TABLES + GROUPS:
        raise ParameterError(
            f"{out} ends in {suffix}, which is not a format of predictions.",
            "Give a path that ends in .csv, .parquet or .zarr, or a name without a dot.",
        )
    return suffix


def encoded_for(model: Model, dataset: Dataset, engine: Engine) -> Dataset:
    """Return a dataset with the features of a model; set and check the bytes of the engine."""
    dataset = dataset.encoded_like(model)
    rows, (r, p), n_targets = scoring_rows(model), model.basis.shape, model.n_targets
    # A block of activations; the basis as read and as factors; the weights; rows as stored, read
    # ahead and centred; the scores, probabilities and labels of a chunk and a block.
    scored = output_chunk_rows(dataset.n_rows, n_targets) + rows
    held = 8 * (rows * 4 * dataset.row_width + 2 * r * n_targets + 5 * scored * n_targets)
    held += activations_bytes(model)
    values = mean_values(model.basis)
    held += basis_bytes(r, p, values, copies=3, of_sparse=dataset.is_sparse)
    held += 3 * scored * model.classes.itemsize
    if model.target_names is not None:
        # The sample that an evaluation returns.
        held += 2 * 8 * min(dataset.n_rows, SAMPLED_ROWS) * n_targets
    else:
        # An evaluation ranks rows by their probability, and two classes also by their score.
        held += RANKING_BYTES * (2 if n_targets == 2 else 1)
    held += process_bytes(l1=model.l1, gpu=engine.device == "gpu")
    engine.expected_bytes = held + dataset.reading_bytes
    remedy = "Ingest with a smaller `chunk_rows`"
    engine.check_budget("predict", engine.expected_bytes, remedy=remedy)
    return dataset


def _write(
    pinned: PinnedModel,
    dataset: Dataset,
    out: Location,
    engine: Engine,
    names: tuple[str, ...],
    *,
    overwrite: bool = False,
) -> int:
    """Write the named results, and ids, to a Zarr group; return the number of clipped rows."""
    model = pinned.open()
    chunk_rows = output_chunk_rows(dataset.n_rows, model.n_targets)
    empty = {name: Scorer(model).no_result(name) for name in names} | _ids_of(dataset)
    dimensions = ("row", "class" if model.target_names is None else "target")
    with replacing_group(out, kind="predictions", overwrite=overwrite) as group:
        for name, values in empty.items():
            create_array(
                group,
                name,
                shape=(dataset.n_rows, *values.shape[1:]),
                dtype=values.dtype,
                chunks=(chunk_rows, *values.shape[1:]),
                dimensions=dimensions[: values.ndim],
                compress=True,
            )
        spans = task_spans(dataset.n_rows, chunk_rows, engine)
        arguments = [(pinned, dataset, group, names, *span) for span in spans]
        n_clipped = sum(run_tasks(engine, _write_rows, arguments, label="predict"))
        ids = {"id": _id_name(dataset)} if "ids" in empty else {}
        classes: dict[str, Any] = {"classes": model.classes.tolist()}
        named = {"target_names": list(model.target_names)} if model.target_names else classes
        attributes = {**named, "fingerprint": dataset.fingerprint, "results": list(names), **ids}
        mark_complete(group, kind="predictions", attributes=attributes)
    if n_clipped:
        logger.warning("%d of %d rows %s.", n_clipped, dataset.n_rows, CLIPPED)
    return n_clipped


def _id_name(dataset: Dataset) -> str | None:
    return "id" if dataset.schema is None else dataset.schema.id


def _ids_of(dataset: Dataset, start: int = 0, stop: int = 0) -> dict[str, NDArray[Any]]:
    """Return the ids of some rows as an array "ids", if all rows of the dataset have one."""
    ids = dataset.ids
    if ids is None or ids.shape[0] != dataset.n_rows:
        return {}
    return {"ids": read_rows(ids, start, stop)}


def output_chunk_rows(n_rows: int, n_classes: int) -> int:
    """Return the number of rows of a chunk of predictions, whatever the chunks of the dataset."""
    few = max(-(-n_rows // _MIN_CHUNKS), _MIN_CHUNK_ROWS)
    return min(few, default_chunk_rows(n_classes, np.float64), n_rows)


def task_spans(n_rows: int, chunk_rows: int, engine: Engine) -> list[tuple[int, int]]:
    """Return row spans of whole chunks, of similar size, the same number for every worker."""
    n_chunks = -(-n_rows // chunk_rows)
    per_worker = round(n_rows / (engine.n_workers * _TASK_ROWS))
    n_tasks = min(n_chunks, engine.n_workers * min(max(per_worker, 1), _MAX_TASKS_PER_WORKER))
    edges = [n_chunks * task // n_tasks * chunk_rows for task in range(n_tasks + 1)]
    return [(start, min(stop, n_rows)) for start, stop in pairwise(edges)]


def _write_rows(
    model: Model,
    dataset: Dataset,
    group: zarr.Group,
    names: tuple[str, ...],
    start: int,
    stop: int,
) -> int:
    """Write the named results of some rows; return the number of clipped rows."""
    scorer, n_clipped = Scorer(model), 0
    scored = (Block(scores, None) for scores, _ in scorer.blocks(dataset, start, stop))
    for scores, *_ in recut(scored, get_array(group, names[0]).chunks[0]):
        stop = start + len(scores)
        results = {name: scorer.result(name, scores) for name in names}
        for name, values in (results | _ids_of(dataset, start, stop)).items():
            array = get_array(group, name)
            array[start:stop] = values.astype(array.dtype, copy=False)
        n_clipped += model.n_clipped(scores)
        start = stop
    return n_clipped


def _table_columns(
    model: Model,
    dataset: Dataset,
    names: Sequence[str],
    keep: Sequence[str],
    prediction_name: str | None,
) -> dict[str, list[str]]:
    """Return the columns of each array in a table, in order; ParameterError if two are equal."""
    classes, targets = model.classes.tolist(), [*(model.target_names or ())]
    values, own = targets, prediction_name or "prediction"
    if prediction_name or {*targets} & {*keep}:
        values = [own] if len(targets) == 1 else [f"{own}_{target}" for target in targets]
    every = {
        "labels": [own],
        "values": values,
        "probabilities": [f"probability_{label}" for label in classes],
        "scores": [f"score_{label}" for label in classes],
    }
    columns = {"ids": [str(_id_name(dataset))]} if _ids_of(dataset) else {}
    columns |= {name: every[name] for name in every if name in names}
    (name, count), *_ = Counter(chain(*columns.values(), keep)).most_common(1)
    if count > 1:
        raise ParameterError(
            f"two columns of the predictions would be called {name!r}.",
            "Leave the column out of `keep`, or name the predictions with `prediction_name`.",
        )
    return columns


def check_in_csv(kept: "pa.RecordBatchReader") -> None:
    """Raise ParameterError if a column cannot be written as CSV."""
    import pyarrow as pa

    for field in kept.schema:
        if pa.types.is_nested(field.type) or "binary" in str(field.type):
            raise ParameterError(
                f"`keep` names {field.name!r} of type {field.type}, which CSV does not support.",
                "Write .parquet, or leave the column out of `keep`.",
            )


def _write_table(
    group: zarr.Group,
    target: Path,
    columns: Mapping[str, list[str]],
    kept: "pa.RecordBatchReader | None",
    bad_rows: Sequence[int],
) -> int:
    """Write predictions and kept columns as CSV or Parquet; return the number of skipped rows."""
    # Loading pyarrow takes longer than a whole command that writes no table.
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    in_csv, skipped = target.suffix.lower() == ".csv", None
    if "skipped" in group:
        skipped = read_rows(get_array(group, "skipped"))
        skipped[[*bad_rows]] = True
    tables = _tables(group, columns, kept, skipped, in_csv=in_csv)
    first = next(tables)
    if in_csv and skipped is not None and first.num_columns == 1:
        # Readers skip empty lines, so a null is written as "".
        texts = (table[0].cast(pa.string()).fill_null("") for table in chain([first], tables))
        tables = (pa.table([text], names=first.column_names) for text in texts)
        first = next(tables)
    write = pa.csv.CSVWriter if in_csv else pa.parquet.ParquetWriter
    with write(target, first.schema) as out:
        for table in chain([first], tables):
            out.write_table(table)
    return 0 if skipped is None else int(np.count_nonzero(skipped))


def _tables(
    group: zarr.Group,
    columns: Mapping[str, list[str]],
    kept: "pa.RecordBatchReader | None",
    skipped: NDArray[np.bool_] | None,
    *,
    in_csv: bool,
) -> "Iterator[pa.Table]":
    """Yield the ids, kept columns and predictions of consecutive rows as tables."""
    import pyarrow as pa

    arrays = {name: get_array(group, name) for name in columns}
    n_rows, step = next((each.shape[0], each.chunks[0]) for each in arrays.values())
    names = [] if kept is None else kept.schema.names
    order = [*columns.get("ids", ()), *names]
    order += [column for name, each in columns.items() if name != "ids" for column in each]
    steps: Iterable[Any] = ((min(step, n_rows - start), ()) for start in range(0, n_rows, step))
    if kept is not None:
        steps = ((len(batch), batch.columns) for batch in kept)
    start = 0
    for length, of_file in steps:
        table = dict(zip(names, of_file, strict=True))
        stop = start + length
        for name, array in arrays.items():
            none = None if skipped is None or name == "ids" else skipped[start:stop]
            chunk = read_rows(array, start, stop)
            if in_csv and name == "labels" and chunk.dtype == bool:
                # As Python and pandas write booleans; pyarrow writes them in lower case.
                chunk = np.where(chunk, "True", "False")
            for column, values in zip(columns[name], np.atleast_2d(chunk.T), strict=True):
                if values.dtype.kind == "T":
                    table[column] = pa.array(values.tolist(), pa.string(), mask=none)
                else:
                    table[column] = pa.array(values, mask=none)
        start = stop
        if start <= n_rows:
            yield pa.table(table).select(order)
    if start != n_rows:
        raise DataError(
            "the rows of the file changed during the prediction.",
            "Start again, and do not change the file meanwhile.",
        )


# Attribute of an array of predictions in a Zarr group of another tool.
_WRITER = "dask_nrbfn predict"


class ObsTarget:
    """Columns of an AnnData store, or arrays of a Zarr group, for the predictions of a model.

    `to` is "obs/NAME" or the name of an array, for the labels or one numeric target. The
    probability of the predicted label is in NAME_confidence. Several targets get NAME_TARGET each.
    `overwrite` replaces columns, and arrays of earlier predictions.
    """

    def __init__(
        self,
        cells: str | os.PathLike[str] | RemoteLocation,
        to: str,
        model: Model,
        *,
        overwrite: bool,
    ) -> None:
        self.cells, self.model, self.overwrite = cells, model, overwrite
        self._place = place = file_of(cells)
        found = zarr_format(place) if place.is_directory() else None
        in_obs = found == "anndata"
        if found not in ("anndata", "zarr"):
            raise ParameterError(
                f"`to` is given, but {cells} is no AnnData store in Zarr and no Zarr group.",
                "Give such a store, or `out` instead of `to`.",
            )
        if in_obs:
            import_anndata()
        self.inside = "obs/" if in_obs else ""
        # Zarr reserves names with two underscores; hidden names are those of unfinished writes.
        if not re.fullmatch(rf"{self.inside}(?!\.|__)[^/]+", to):
            raise ParameterError(
                f"`to` is {to!r}.",
                f"Give a name without slashes: {self.inside}NAME, such as {self.inside}predicted.",
            )
        name, targets = to.removeprefix(self.inside), model.target_names
        self.columns: tuple[str, ...] = (name, f"{name}_confidence")
        if targets is not None:
            self.columns = tuple(f"{name}_{each}" for each in targets) if targets[1:] else (name,)
        self._check_free()

    def write(self, run: Location, dataset: Dataset, engine: Engine) -> None:
        """Predict all rows with a model or a finished run, then write the columns."""
        of_classes, n_columns = self.model.target_names is None, len(self.columns)
        names = ("labels", "confidence") if of_classes else ("values",)
        with locked_run(self.cells) as check_still_locked, scratch_beside(self.cells) as scratch:
            # Another job may have written a column since.
            self._check_free()
            pinned = PinnedModel.at(run)
            dataset = encoded_for(pinned.open(), dataset, engine)
            _write(pinned, dataset, scratch, engine, names)
            group = open_group(scratch, kind="predictions")
            # One array (n, q) has all targets.
            results = [get_array(group, name) for name in names] * (1 if of_classes else n_columns)
            check_still_locked()
            named = dict(zip(self.columns, results, strict=True))
            if self.inside:
                self._add_to_obs(named)
            else:
                self._add_arrays(named, join(scratch, "columns"))

    def _check_free(self) -> None:
        """Raise ExistsError if a column may not be written."""
        package = "AnnData" if self.inside else "Zarr"
        with damage_named(self._place, package):
            root = self._opened()
            if self.inside:
                obs = obs_of(root, self._place)
                existing, kept = list(obs.attrs["column-order"]), {obs.attrs["_index"]}
            else:
                existing = [name for name in self.columns if name in root]
                kept = {name for name in existing if root[name].attrs.get("written_by") != _WRITER}
        for name in self.columns:
            if name in kept or (name in existing and not self.overwrite):
                raise ExistsError(
                    f"{self.cells} already has {self.inside}{name}.",
                    "Give another name, or set `overwrite` to replace earlier predictions.",
                )

    def _opened(self) -> Any:
        """Return the writable root group of the store."""
        return zarr.open_group(store_at(self.cells), mode="r+", use_consolidated=False)

    def _add_arrays(self, results: Mapping[str, Array], scratch: Location) -> None:
        zarr_format = self._opened().metadata.zarr_format
        new = zarr.open_group(store_at(scratch), zarr_format=zarr_format)
        for name, stored in results.items():
            n_rows, step = stored.shape[0], stored.chunks[0]
            sizes: Any = {"shape": (n_rows,), "chunks": (step,), "dtype": stored.dtype}
            array: Any = new.create_array(name, **sizes, attributes={"written_by": _WRITER})
            for start in range(0, n_rows, step):
                array[start : start + step] = self._values(name, stored, start, start + step)
            replace_group(join(scratch, name), join(self.cells, name))

    def _values(self, name: str, stored: Array, start: int = 0, stop: int | None = None) -> Any:
        """Return some values of a column, (stop - start,), from results (n,) or (n, q)."""
        rows = read_rows(stored, start, stop)
        return rows if rows.ndim == 1 else rows[:, self.columns.index(name)]

    def _add_to_obs(self, results: Mapping[str, Array]) -> None:
        import pandas as pd

        root = self._opened()
        others = [name for name in root["obs"].attrs["column-order"] if name not in results]
        self._list(root, others)
        for name, stored in results.items():
            values = self._values(name, stored)
            if stored.basename == "labels":
                values = pd.Categorical(values.tolist(), self.model.classes.tolist())
            with warnings.catch_warnings():
                # AnnData warns about its next version.
                warnings.filterwarnings("ignore", "zarr v3 autosharding")
                import_anndata().io.write_elem(root["obs"], name, values)
            flush_member(self.cells, f"obs/{name}")
        self._list(root, [*others, *results])

    def _list(self, root: Any, names: list[str]) -> None:
        """List the columns of obs, and renew the consolidated metadata."""
        root["obs"].attrs["column-order"] = names
        with warnings.catch_warnings():
            # zarr warns that Zarr 3 does not specify this metadata yet; AnnData reads it.
            warnings.simplefilter("ignore")
            if zarr.open_group(root.store, mode="r").metadata.consolidated_metadata:
                zarr.consolidate_metadata(root.store)
