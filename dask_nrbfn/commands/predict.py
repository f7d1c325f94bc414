"""Predict: results of a model for all rows of a dataset, as a Zarr group, a table, or in obs."""

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.commands.files import check_not_given
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import DataError, ExistsError, ParameterError
from dask_nrbfn.numeric.bins import RANKING_BYTES
from dask_nrbfn.numeric.distances import basis_bytes
from dask_nrbfn.numeric.rows import mean_stored_values
from dask_nrbfn.outputs import check_output_file, new_file
from dask_nrbfn.parts import run_tasks
from dask_nrbfn.scorer import Scorer, activations_bytes, scoring_rows
from dask_nrbfn.sources.anndata import import_anndata, obs_of
from dask_nrbfn.sources.files import damage_named
from dask_nrbfn.sources.source import Block, recut
from dask_nrbfn.sources.zarr_arrays import opened_zarr, zarr_format
from dask_nrbfn.storage.array import create_array, get_array, read_rows
from dask_nrbfn.storage.chunks import default_chunk_rows
from dask_nrbfn.storage.dataset import Dataset, check_apart
from dask_nrbfn.storage.group import (
    Location,
    check_target,
    flush_member,
    locked_run,
    mark_complete,
    open_group,
    replacing_group,
    scratch_next_to,
    store_at,
)
from dask_nrbfn.storage.location import file_of
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

# Suffixes of the files that predictions are written to.
TABLES = (".csv", ".parquet")

# Rows whose predicted and true numbers an evaluation keeps: enough for a scatter plot.
SAMPLED_ROWS = 2000

UNLIKE = "farther from the basis than 99.9 % of the held-out training rows"


def predict_dataset(
    model: Location,
    dataset: Dataset,
    out: Location,
    engine: Engine,
    *,
    scores: bool = False,
    probabilities: bool = False,
    interval: Sequence[float] = (),
    distance: bool = False,
    kept: "pa.RecordBatchReader | None" = None,
    skip_bad: bool = False,
    clip: bool = True,
    overwrite: bool = False,
) -> int:
    """Write labels (n,), or values (n, q), for all rows; return the number of rows with nulls.

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
    interval : sequence of float
        Coverages: also write the ends of intervals that contain the true number of a new row with
        these probabilities, or sets of labels that contain its class.
    distance : bool
        Also write how far each row is from the basis: above 1, farther than 99.9 % of held-out
        training rows.
    kept : RecordBatchReader, optional
        Further columns of the same rows for a .csv or .parquet file. Predicted numbers have the
        names of their targets; if a kept column has such a name, "prediction" for a single target,
        or "prediction_TARGET".
    skip_bad : bool
        Write nulls for rows with gaps that the model does not fill, in a .csv or .parquet file.
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
    check_apart(out, model, dataset)
    names = check_predictions(
        opened,
        out,
        overwrite=overwrite,
        keep=keep,
        skip_bad=skip_bad,
        scores=scores,
        probabilities=probabilities,
        interval=interval,
        distance=distance,
    )
    dataset = encoded_for(opened, dataset, engine)
    if not is_table(out):
        return _write(pinned, opened, dataset, out, engine, names, overwrite=overwrite)
    columns = _table_columns(opened, dataset, names, keep)
    if kept is not None and str(out).lower().endswith(".csv"):
        _check_in_csv(kept.schema)
    with scratch_next_to(out) as scratch:
        n_skipped = _write(pinned, opened, dataset, scratch, engine, names)
        with new_file(str(out), overwrite=overwrite) as unfinished:
            _write_table(open_group(scratch, kind="predictions"), unfinished, columns, kept)
    if n_skipped:
        logger.warning("%d of %d rows have no prediction.", n_skipped, dataset.n_rows)
    return n_skipped


def check_predictions(
    model: Model,
    out: Location,
    *,
    overwrite: bool,
    keep: Sequence[str],
    skip_bad: bool,
    scores: bool,
    probabilities: bool,
    interval: Sequence[float] = (),
    distance: bool = False,
) -> list[str]:
    """Return the names of the results to write to `out`; raise an error if they cannot be."""
    check_output(out, "predictions", overwrite=overwrite)
    of_classes = model.target_names is None
    if not of_classes:
        check_not_given("the model predicts numbers", probabilities=probabilities, scores=scores)
    if not is_table(out):
        check_not_given(f"{out} is not a .csv or .parquet file", keep=keep, skip_bad=skip_bad)
        scores = of_classes
    if interval or distance:
        model.check_intervals(interval)
    ends = ("label_sets",) if of_classes else ("lower", "upper")
    wanted = {
        "labels": of_classes,
        "values": not of_classes,
        "scores": scores,
        **{f"{end}@{coverage:g}": True for coverage in interval for end in ends},
        "probabilities": probabilities,
        "unlike": distance,
        "skipped": skip_bad,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def check_output(out: Location, kind: str, *, overwrite: bool) -> None:
    """Raise an error if "predictions", or a "map", cannot be written to `out`."""
    suffix = Path(str(out)).suffix.lower()
    known = (".zarr",) if kind == "map" else (*TABLES, ".zarr")
    if suffix not in ("", *known):
        raise ParameterError(
            f"{out} ends in {suffix}, which is not a format of {kind}.",
            f"Give a path that ends in {' or '.join(known)}, or a name without a dot.",
        )
    if suffix in TABLES:
        check_output_file(str(out), overwrite=overwrite)
    else:
        check_target(out, kind=kind, overwrite=overwrite)


def is_table(out: Location) -> bool:
    """Return whether predictions at `out` are a file, not a Zarr group."""
    return str(out).lower().endswith(TABLES)


def encoded_for(model: Model, dataset: Dataset, engine: Engine) -> Dataset:
    """Return a dataset with the features of a model; set and check the bytes of the engine."""
    dataset = dataset.encoded_like(model)
    n_targets = model.n_targets
    # The extended scores, probabilities, intervals and labels of a chunk and a block.
    scored = output_chunk_rows(dataset.n_rows, n_targets) + scoring_rows(model)
    held = scored * (8 * (5 * n_targets + model.n_extended) + 3 * model.classes.itemsize)
    if model.target_names is not None:
        # The sample that an evaluation returns.
        held += 2 * 8 * min(dataset.n_rows, SAMPLED_ROWS) * n_targets
    else:
        # An evaluation ranks rows by their probability, and two classes also by their score.
        held += RANKING_BYTES * (2 if n_targets == 2 else 1)
    expect_bytes(
        engine,
        model,
        held + dataset.reading_bytes,
        row_width=dataset.row_width,
        of_sparse=dataset.is_sparse,
        remedy="Ingest with a smaller `chunk_rows`",
    )
    return dataset


def expect_bytes(
    engine: Engine, model: Model, held: int, *, row_width: int, of_sparse: bool, remedy: str
) -> None:
    """Set and check the bytes of tasks that score rows and hold `held` further bytes."""
    rows, (r, p) = scoring_rows(model), model.basis.shape
    # A block of activations, and of rows as stored, read ahead and centred; the weights; the basis
    # as read and as factors.
    held += activations_bytes(model) + 8 * (rows * 4 * row_width + 2 * r * model.n_targets)
    held += basis_bytes(r, p, mean_stored_values(model.basis), copies=3, of_sparse=of_sparse)
    engine.expected_bytes = held + process_bytes(l1=model.l1, gpu=engine.device == "gpu")
    engine.check_budget("predict", engine.expected_bytes, remedy=remedy)


def _write(
    pinned: PinnedModel,
    model: Model,
    dataset: Dataset,
    out: Location,
    engine: Engine,
    names: Sequence[str],
    *,
    overwrite: bool = False,
) -> int:
    """Write the named results, and ids, to a Zarr group; return the number of rows with gaps."""
    chunk_rows = output_chunk_rows(dataset.n_rows, model.n_targets)
    scorer = Scorer(model, extended=model.intervals is not None)
    empty = {name: scorer.no_result(name) for name in names} | _ids_of(dataset)
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
        arguments, n_rows = (pinned, dataset, group, names), dataset.n_rows
        counts = run_spans(engine, _write_rows, arguments, n_rows, step=chunk_rows)
        n_skipped, n_unlike = np.sum(counts, axis=0).tolist()
        if n_unlike:
            logger.info("predict: %d of %d rows are %s", n_unlike, n_rows, UNLIKE)
        attributes: dict[str, Any] = {"fingerprint": dataset.fingerprint, "results": list(names)}
        if "ids" in empty:
            attributes["id"] = _id_name(dataset)
        if model.target_names is None:
            attributes["classes"] = model.classes.tolist()
        else:
            attributes["target_names"] = list(model.target_names)
        mark_complete(group, kind="predictions", attributes=attributes)
    return n_skipped


def _id_name(dataset: Dataset) -> str | None:
    return "id" if dataset.schema is None else dataset.schema.id


def _ids_of(dataset: Dataset, start: int = 0, stop: int = 0) -> dict[str, NDArray[Any]]:
    """Return the ids of some rows as an array "ids", if all rows of the dataset have one."""
    ids = dataset.ids
    return {} if ids is None else {"ids": read_rows(ids, start, stop)}


def output_chunk_rows(n_rows: int, n_classes: int) -> int:
    """Return the number of rows of a chunk of predictions, whatever the chunks of the dataset."""
    few = max(-(-n_rows // _MIN_CHUNKS), _MIN_CHUNK_ROWS)
    return min(few, default_chunk_rows(n_classes, np.float64), n_rows)


def run_spans(
    engine: Engine,
    task: Callable[..., Any],
    arguments: tuple[Any, ...],
    n_rows: int,
    *,
    step: int = 1,
    label: str = "predict",
) -> list[Any]:
    """Return the results of a task for spans of whole steps; each worker gets as many spans.

    The first and last-plus-one row of a span are the last arguments of the task.
    """
    n_steps = -(-n_rows // step)
    per_worker = round(n_rows / (engine.n_workers * _TASK_ROWS))
    n_tasks = min(n_steps, engine.n_workers * min(max(per_worker, 1), _MAX_TASKS_PER_WORKER))
    edges = [min(n_steps * task // n_tasks * step, n_rows) for task in range(n_tasks + 1)]
    spans = [(*arguments, start, stop) for start, stop in pairwise(edges)]
    return run_tasks(engine, task, spans, label=label)


def _write_rows(
    model: Model, dataset: Dataset, group: zarr.Group, names: Sequence[str], start: int, stop: int
) -> tuple[int, int]:
    """Write the named results of some rows; return how many have gaps, and are unlike all."""
    scorer, n_skipped, n_unlike = Scorer(model, extended=model.intervals is not None), 0, 0
    scored = (Block(scores, None) for scores, _, _ in scorer.blocks(dataset, start, stop))
    chunk_rows = get_array(group, names[0]).chunks[0]
    for block in recut(scored, chunk_rows):
        scores = block.X
        stop = start + len(scores)
        results = {name: scorer.result(name, scores) for name in names}
        for name, values in (results | _ids_of(dataset, start, stop)).items():
            array = get_array(group, name)
            array[start:stop] = values.astype(array.dtype, copy=False)
        n_skipped += int(np.count_nonzero(np.isnan(scores[:, 0])))
        n_unlike += scorer.count_unlike(scores)
        start = stop
    return n_skipped, n_unlike


def _table_columns(
    model: Model, dataset: Dataset, names: Sequence[str], keep: Sequence[str]
) -> dict[str, list[str]]:
    """Return the columns of each array, and those kept, in order; none may occur twice."""
    classes, targets = model.classes.tolist(), list(model.target_names or ())
    if not set(targets).isdisjoint(keep):
        targets = [f"prediction_{target}" for target in targets]
        if len(targets) == 1:
            targets = ["prediction"]
    every = {
        "ids": [str(_id_name(dataset))],
        "kept": list(keep),
        "labels": ["prediction"],
        "values": targets,
        **_interval_columns(names, targets),
        "probabilities": [f"probability_{label}" for label in classes],
        "scores": [f"score_{label}" for label in classes],
        "unlike": ["unlike"],
    }
    written = {"kept", *names, *_ids_of(dataset)}
    columns = {name: each for name, each in every.items() if name in written}
    ((name, count),) = Counter(chain(*columns.values())).most_common(1)
    if count > 1:
        raise ParameterError(
            f"two columns of the predictions would be called {name!r}.",
            "Leave the column out of `keep`, or rename it by a query.",
        )
    return columns


def _interval_columns(names: Sequence[str], targets: list[str]) -> dict[str, list[str]]:
    """Return the columns of each result with a coverage: "lower", "upper" or "labels".

    A coverage, if there are several, and one of several targets follow, as in "lower_0.9_price".
    """
    found = {}
    coverages = {name.partition("@")[2] for name in names if "@" in name}
    for name in names:
        kind, at, coverage = name.partition("@")
        if at:
            column = "labels" if kind == "label_sets" else kind
            column += f"_{coverage}" if len(coverages) > 1 else ""
            several = kind != "label_sets" and len(targets) > 1
            found[name] = [f"{column}_{each}" for each in targets] if several else [column]
    return found


def _check_in_csv(kept: "pa.Schema") -> None:
    import pyarrow as pa

    for field in kept:
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
) -> None:
    """Write predictions and kept columns as CSV or Parquet."""
    # Loading pyarrow takes longer than a whole command that writes no table.
    import pyarrow as pa
    import pyarrow.parquet

    tables = _tables(group, columns, kept)
    if target.suffix.lower() == ".csv":
        names = list(chain(*columns.values()))
        header = pa.table([[name] for name in names], names)
        with open(target, "wb") as file:
            for table in chain([header], tables):
                file.write(_in_csv(table))
        return
    first = next(tables)
    with pa.parquet.ParquetWriter(target, first.schema) as out:
        for table in chain([first], tables):
            out.write_table(table)


def _in_csv(table: "pa.Table") -> bytes:
    """Return rows as lines of CSV. Text has quotes where it needs them; pyarrow quotes all text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = []
    for column in table.columns:
        text = column.cast(pa.string())
        if not pa.types.is_primitive(column.type):
            special = pc.match_substring_regex(text, '[",\r\n]|^$')
            doubled = pc.replace_substring(text, '"', '""')
            text = pc.if_else(special, pc.binary_join_element_wise('"', doubled, '"', ""), text)
        texts.append(text)
    # Readers skip empty lines, so a line of one null is "".
    null = "" if len(texts) > 1 else '""'
    lines = pc.binary_join_element_wise(*texts, ",", null_handling="replace", null_replacement=null)
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


def _tables(
    group: zarr.Group, columns: Mapping[str, list[str]], kept: "pa.RecordBatchReader | None"
) -> "Iterator[pa.Table]":
    """Yield the ids, kept columns and predictions of consecutive rows as tables."""
    import pyarrow as pa

    arrays = {name: get_array(group, name) for name in columns if name != "kept"}
    skipped = get_array(group, "skipped") if "skipped" in group else None
    first = next(iter(arrays.values()))
    n_rows, step = first.shape[0], first.chunks[0]
    steps: Iterable[Any] = ((min(step, n_rows - start), ()) for start in range(0, n_rows, step))
    if kept is not None:
        steps = ((len(batch), batch.columns) for batch in kept)
    stop = 0
    for length, of_file in steps:
        start, stop = stop, stop + length
        if stop > n_rows:
            break
        table = dict(zip(columns["kept"], of_file, strict=True))
        gaps = None if skipped is None else read_rows(skipped, start, stop)
        for name, array in arrays.items():
            none = None if name == "ids" else gaps
            chunk = np.atleast_2d(read_rows(array, start, stop).T)
            for column, values in zip(columns[name], chunk, strict=True):
                if values.dtype.kind == "T":
                    table[column] = pa.array(values.tolist(), pa.string(), mask=none)
                else:
                    table[column] = pa.array(values, mask=none)
        yield pa.table(table).select(list(chain(*columns.values())))
    if stop != n_rows:
        raise DataError(
            "the rows of the file changed during the prediction.",
            "Start again, and do not change the file meanwhile.",
        )


def obs_columns(cells: Location, to: str, model: Model, *, overwrite: bool) -> tuple[str, ...]:
    """Return the columns that `predict_obs` writes; raise an error if it cannot write them."""
    place = file_of(cells)
    if not place.is_directory() or zarr_format(place) != "anndata":
        raise ParameterError(
            f"`to` is given, but {cells} is no AnnData store in Zarr.",
            "Give such a store, or `out` instead of `to`.",
        )
    # Zarr reserves names with two underscores; hidden names are those of unfinished writes.
    if not re.fullmatch(r"obs/(?!\.|__)[^/]+", to):
        raise ParameterError(
            f"`to` is {to!r}.", "Give obs/ and a name without slashes, such as obs/predicted."
        )
    import_anndata()
    name, targets = to.removeprefix("obs/"), model.target_names
    columns: tuple[str, ...]
    if targets is None:
        columns = (name, f"{name}_confidence")
    elif len(targets) == 1:
        columns = (name,)
    else:
        columns = tuple(f"{name}_{target}" for target in targets)
    with damage_named(place, "AnnData"):
        attributes = obs_of(opened_zarr(place), place).attrs
    used = {attributes["_index"]}
    if not overwrite:
        used.update(attributes["column-order"])
    for column in columns:
        if column in used:
            raise ExistsError(
                f"{cells} already has obs/{column}.",
                "Give another name, or set `overwrite` to replace a column.",
            )
    return columns


def predict_obs(
    model: Location, dataset: Dataset, cells: Location, to: str, engine: Engine, *, overwrite: bool
) -> None:
    """Write the predictions of all rows to the columns of `obs_columns`."""
    import pandas as pd

    pinned = PinnedModel.at(model)
    opened = pinned.open()
    names = ("labels", "confidence") if opened.target_names is None else ("values",)
    with locked_run(cells) as check_still_locked, scratch_next_to(cells) as scratch:
        # Another job may have written a column since.
        columns = obs_columns(cells, to, opened, overwrite=overwrite)
        _write(pinned, opened, encoded_for(opened, dataset, engine), scratch, engine, names)
        group = open_group(scratch, kind="predictions")
        values: list[Any] = []
        for name in names:
            # A result of several targets has a column for each.
            values.extend(np.atleast_2d(read_rows(get_array(group, name)).T))
        if opened.target_names is None:
            values[0] = pd.Categorical(values[0].tolist(), opened.classes.tolist())
        check_still_locked()
        _add_to_obs(cells, dict(zip(columns, values, strict=True)))


def _add_to_obs(cells: Location, columns: Mapping[str, Any]) -> None:
    """Write columns, which are listed last; until then, none of them is listed."""
    root: Any = zarr.open_group(store_at(cells), mode="r+", use_consolidated=False)
    others = [name for name in root["obs"].attrs["column-order"] if name not in columns]
    with warnings.catch_warnings():
        # AnnData warns about its next version, and zarr that Zarr 3 does not specify consolidated
        # metadata, which AnnData reads.
        warnings.simplefilter("ignore")
        _list_columns(root, others)
        for name, values in columns.items():
            import_anndata().io.write_elem(root["obs"], name, values)
            flush_member(cells, f"obs/{name}")
        _list_columns(root, [*others, *columns])


def _list_columns(root: Any, names: list[str]) -> None:
    root["obs"].attrs["column-order"] = names
    if zarr.open_group(root.store, mode="r").metadata.consolidated_metadata:
        zarr.consolidate_metadata(root.store)
