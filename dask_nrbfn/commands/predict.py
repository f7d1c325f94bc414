"""Predict: results of a model for all rows of a dataset, as a Zarr group or a table."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.bins import RANKING_BYTES
from dask_nrbfn.numeric.distances import basis_bytes
from dask_nrbfn.numeric.rows import mean_values
from dask_nrbfn.outputs import check_output_file, new_file
from dask_nrbfn.parts import run_tasks
from dask_nrbfn.scorer import Scorer, activations_bytes, scoring_rows
from dask_nrbfn.storage.array import create_array, get_array, read_rows
from dask_nrbfn.storage.blocks import regroup
from dask_nrbfn.storage.chunks import default_chunk_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import (
    Location,
    check_target,
    mark_complete,
    open_group,
    replacing_group,
    scratch_beside,
)
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

# Name of the column of predictions, unless another one is asked for.
_PREDICTION = "prediction"

# The rest of a warning about some rows.
CLIPPED = "are predicted outside the range of the training targets; their numbers are clipped"

# Rows whose predicted and true numbers an evaluation keeps: enough for a scatter plot.
SAMPLED_ROWS = 2000


class Predicted(NamedTuple):
    """Numbers of rows without a prediction, and of rows whose numbers were clipped.

    A skipped row counts as clipped if its filled values would be.
    """

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

    Returns
    -------
    Predicted
        ``n_skipped``, the number of rows with nulls, and ``n_clipped``, the number of rows whose
        numbers were clipped.

    Raises
    ------
    DataError
        If the dataset has other columns than the training rows, or another number of rows than
        `kept`.
    ExistsError, ParameterError, StorageError
        As `check_prediction_place`. Also if another job has written to `out`, or if an option does
        not apply to `out` or the model.
    """
    check_prediction_place(out, overwrite=overwrite)
    pinned = PinnedModel.at(model, clip=clip)
    opened = pinned.open()
    keep = () if kept is None else kept.schema.names
    if kept is not None and _suffix(out) == ".csv":
        check_in_csv(kept)
    asked: dict[str, Any] = {"scores": scores, "probabilities": probabilities}
    asked |= {"skip_bad": skip_bad, "prediction_name": prediction_name}
    names = check_asked(opened, out, **asked, keep=keep)
    dataset = encoded_for(opened, dataset, engine)
    if _suffix(out) not in TABLES:
        n_clipped = _predict_to_zarr(
            pinned, opened, dataset, out, engine, names, overwrite=overwrite
        )
        return Predicted(0, n_clipped)
    arrays = [*_ids_of(dataset), *names]
    written = _table_columns(arrays, _attributes(opened, dataset), keep, prediction_name)
    _check_distinct_columns(written, keep)
    with scratch_beside(out) as scratch:
        n_clipped = _predict_to_zarr(
            pinned, opened, dataset, scratch, engine, names, overwrite=False
        )
        with new_file(str(out), overwrite=overwrite) as unfinished:
            n_skipped = _write_predictions(scratch, unfinished, written, kept, bad_rows)
    if n_skipped:
        logger.warning("%d of %d rows have no prediction.", n_skipped, dataset.n_rows)
    return Predicted(n_skipped, n_clipped)


def write_results(
    model: Location, dataset: Dataset, out: Location, engine: Engine, names: tuple[str, ...]
) -> None:
    """Write the named `RESULTS` of a model to a Zarr group."""
    pinned = PinnedModel.at(model)
    opened = pinned.open()
    dataset = encoded_for(opened, dataset, engine)
    _predict_to_zarr(pinned, opened, dataset, out, engine, names, overwrite=False)


def check_asked(
    model: Model,
    out: Location,
    *,
    scores: bool,
    probabilities: bool,
    skip_bad: bool,
    keep: Sequence[str],
    prediction_name: str | None = None,
) -> tuple[str, ...]:
    """Return the names in `RESULTS` to write; raise ParameterError if an option does not apply."""
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
    names = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    if prediction_name == "":
        raise ParameterError("`prediction_name` is empty.", "Pass a name for the column.")
    _check_distinct_columns(_table_columns(names, _columns_of(model), keep, prediction_name), keep)
    return names


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
    dataset = model.encoded(dataset)
    dataset.check_stored()
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
    engine.expected_bytes = process_bytes(l1=model.l1) + dataset.reading_bytes + held
    remedy = "Ingest with a smaller `chunk_rows`"
    engine.check_budget("predict", engine.expected_bytes, remedy=remedy)
    return dataset


def _predict_to_zarr(
    pinned: PinnedModel,
    model: Model,
    dataset: Dataset,
    out: Location,
    engine: Engine,
    names: tuple[str, ...],
    *,
    overwrite: bool,
) -> int:
    """Write the named results, and the ids if there are any; return the number of clipped rows."""
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
        arguments = [
            (pinned, dataset, group, names, start, stop)
            for start, stop in task_spans(dataset.n_rows, chunk_rows, engine)
        ]
        n_clipped = sum(run_tasks(engine, _write_results, arguments, label="predict"))
        mark_complete(group, kind="predictions", attributes=_attributes(model, dataset))
    if n_clipped:
        logger.warning("%d of %d rows %s.", n_clipped, dataset.n_rows, CLIPPED)
    return n_clipped


def _attributes(model: Model, dataset: Dataset) -> dict[str, Any]:
    """Return the attributes of a group of predictions."""
    told = {**_columns_of(model), "fingerprint": dataset.fingerprint}
    if _ids_of(dataset):
        told["id"] = "id" if dataset.schema is None else dataset.schema.id
    return told


def _columns_of(model: Model) -> dict[str, Any]:
    """Return the names of a model's scores: its classes or targets."""
    if model.target_names is None:
        return {"classes": model.classes.tolist()}
    return {"target_names": list(model.target_names)}


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


def _write_results(
    model: Model,
    dataset: Dataset,
    group: zarr.Group,
    names: tuple[str, ...],
    start: int,
    stop: int,
) -> int:
    """Write the named results of some rows; return the number of clipped rows."""
    scorer, n_clipped = Scorer(model), 0
    scores_of_blocks = (block.scores for block in scorer.blocks(dataset, start, stop))
    for scores in regroup(scores_of_blocks, get_array(group, names[0]).chunks[0]):
        stop = start + len(scores)
        results = {name: scorer.result(name, scores) for name in names}
        for name, values in (results | _ids_of(dataset, start, stop)).items():
            array = get_array(group, name)
            array[start:stop] = values.astype(array.dtype, copy=False)
        n_clipped += model.n_clipped(scores)
        start = stop
    return n_clipped


def _table_columns(
    arrays: Collection[str],
    attributes: Mapping[str, Any],
    keep: Collection[str] = (),
    prediction_name: str | None = None,
) -> dict[str, list[str]]:
    """Return the names of the columns of each array of predictions in a table, in order."""
    classes, targets = attributes.get("classes", []), attributes.get("target_names", [])
    values, own = targets, prediction_name or _PREDICTION
    if prediction_name is not None or {*targets} & {*keep}:
        values = [own] if len(targets) == 1 else [f"{own}_{target}" for target in targets]
    names = {
        "ids": [attributes.get("id", "")],
        "labels": [own],
        "values": values,
        "probabilities": [f"probability_{label}" for label in classes],
        "scores": [f"score_{label}" for label in classes],
    }
    return {array: columns for array, columns in names.items() if array in arrays}


def _check_distinct_columns(written: Mapping[str, list[str]], kept: Iterable[str]) -> None:
    """Raise ParameterError if two of the written and kept columns have the same name."""
    counts = Counter(chain(*written.values(), kept))
    name, count = counts.most_common(1)[0]
    if count > 1:
        other = "give the column of the file another name"
        if name in (*written.get("labels", ()), *written.get("values", ())):
            other = "name the predictions with `prediction_name`"
        raise ParameterError(
            f"two columns of the predictions would be called {name!r}.",
            f"Leave the column out of `keep`, or {other}.",
        )


def check_in_csv(kept: "pa.RecordBatchReader") -> None:
    """Raise ParameterError if a column cannot be written as CSV."""
    import pyarrow as pa

    for field in kept.schema:
        if pa.types.is_nested(field.type) or "binary" in str(field.type):
            raise ParameterError(
                f"`keep` names {field.name!r} of type {field.type}, which CSV does not support.",
                "Write .parquet, or leave the column out of `keep`.",
            )


def _write_predictions(
    source: Location,
    target: Path,
    names: Mapping[str, list[str]],
    kept: "pa.RecordBatchReader | None" = None,
    bad_rows: Sequence[int] = (),
) -> int:
    """Write predictions, and kept columns, as CSV or Parquet; return the number of skipped rows."""
    # Loading pyarrow takes longer than a whole command that writes no table.
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    group = open_group(source, kind="predictions")
    arrays = {name: get_array(group, name) for name in group.array_keys()}
    skipped = None
    if "skipped" in arrays:
        skipped = read_rows(arrays.pop("skipped"))
        skipped[[*bad_rows]] = True
    in_csv = target.suffix.lower() == ".csv"
    tables = _tables(arrays, names, skipped, in_csv=in_csv)
    if kept is not None:
        tables = _beside(tables, kept, place=int("ids" in arrays))
    if in_csv and skipped is not None:
        tables = map(_without_empty_lines, tables)
    first = next(tables)
    write = pa.csv.CSVWriter if in_csv else pa.parquet.ParquetWriter
    with write(target, first.schema) as out:
        for table in chain([first], tables):
            out.write_table(table)
    return 0 if skipped is None else int(np.count_nonzero(skipped))


def _tables(
    arrays: Mapping[str, "zarr.Array[Any]"],
    names: Mapping[str, list[str]],
    skipped: NDArray[np.bool_] | None,
    *,
    in_csv: bool,
) -> "Iterator[pa.Table]":
    """Yield the predictions of consecutive rows as tables."""
    import pyarrow as pa

    n_rows, chunk_rows = next((array.shape[0], array.chunks[0]) for array in arrays.values())
    for start in range(0, n_rows, chunk_rows):
        stop = start + chunk_rows
        chunk = {name: read_rows(each, start, stop) for name, each in arrays.items()}
        none = None if skipped is None else skipped[start:stop]
        if in_csv and "labels" in chunk and chunk["labels"].dtype == bool:
            # As Python and pandas write booleans; pyarrow writes them in lower case.
            chunk["labels"] = np.where(chunk["labels"], "True", "False")
        columns = {
            column: _arrow(values, None if name == "ids" else none)
            for name in names
            for column, values in zip(names[name], np.atleast_2d(chunk[name].T), strict=True)
        }
        yield pa.table(columns)


def _arrow(values: NDArray[Any], none: NDArray[np.bool_] | None) -> "pa.Array":
    import pyarrow as pa

    if values.dtype.kind == "T":
        return pa.array(values.tolist(), pa.string(), mask=none)
    return pa.array(values, mask=none)


def _without_empty_lines(table: "pa.Table") -> "pa.Table":
    """Return a table whose rows all have text in CSV, because readers skip empty lines."""
    import pyarrow as pa

    if table.num_columns > 1:
        return table
    return pa.table([table[0].cast(pa.string()).fill_null("")], names=table.column_names)


def _beside(
    tables: "Iterable[pa.Table]", kept: "pa.RecordBatchReader", *, place: int
) -> "Iterator[pa.Table]":
    """Yield tables with further columns of the same rows, inserted at a column index."""
    import pyarrow as pa

    held = kept.schema.empty_table()
    for table in tables:
        n_rows = len(table)
        while len(held) < n_rows and (batch := next(kept, None)) is not None:
            held = pa.concat_tables([held, pa.table(batch)])
        if len(held) < n_rows:
            raise _other_rows()
        for j, column in enumerate(held.schema):
            table = table.add_column(place + j, column, held[j][:n_rows])
        yield table
        held = held[n_rows:]
    if len(held) or any(map(len, kept)):
        raise _other_rows()


def _other_rows() -> DataError:
    return DataError(
        "the rows of the file changed during the prediction.",
        "Start again, and do not change the file meanwhile.",
    )
