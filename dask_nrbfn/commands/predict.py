"""Predict and evaluate: a model applied to all rows of a dataset, part by part."""

import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.commands.export import (
    TABLES,
    check_distinct_columns,
    check_in_csv,
    column_names,
    write_predictions,
)
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import PROCESS_BYTES, check_budget
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.bins import RANKING_BYTES, RankedScores
from dask_nrbfn.numeric.distances import basis_bytes
from dask_nrbfn.numeric.held_out import ResidualSums, class_figures
from dask_nrbfn.numeric.rows import mean_values
from dask_nrbfn.numeric.svd import project_bytes
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.outputs import check_output_file, new_file
from dask_nrbfn.parts import run_tasks
from dask_nrbfn.scorer import Scorer, scoring_rows
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.stages.neighbor_search import row_width
from dask_nrbfn.storage.array import create_array, get_array, read_rows
from dask_nrbfn.storage.blocks import regroup
from dask_nrbfn.storage.chunks import default_chunk_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import (
    Location,
    check_target,
    hidden_sibling,
    mark_complete,
    remove_group,
    replacing_group,
)
from dask_nrbfn.storage.model import Model, PinnedModel

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# Tasks of a worker: enough that a slow worker does not hold up the rest, and not so many that
# reading the model, which each of them does, takes more than a tenth of the time.
_MAX_TASKS_PER_WORKER, _TASK_ROWS = 4, 16_384

# Tasks write whole chunks. Small tables, which may be a single chunk of the dataset, have enough of
# them for every worker.
_MIN_CHUNKS, _MIN_CHUNK_ROWS = 64, 512

# The least probability of a true class, as in scikit-learn's log loss.
_LEAST_PROBABILITY = float(np.finfo(np.float64).eps)

# Rows of which predicted and true numbers are kept: enough to be seen as points.
_SAMPLED_ROWS = 2000

# Of a Zarr group, by its suffix. Whoever writes another one expects another format.
GROUPS = ("", ".zarr")


@dataclass(frozen=True)
class Evaluation:
    """How a model does on labelled rows.

    Attributes
    ----------
    n_rows, n_errors : int
        All rows, and those that got another label than their own. A label that the model does not
        know is never got, so its rows are errors.
    classes : tuple of int or str
        Of the model.
    confusion : tuple of tuples of int
        Rows of each class of the model (first index) by the label they got. Where there are labels
        that the model does not know, their rows together are one more, the last. Adds up to
        `n_rows`.
    log_loss : float
        Of a row on average, among those whose label the model knows.
    n_unknown_labels : int
        Rows whose label the model does not know.
    n_unlabelled : int
        Further rows, which have no label and were left out.
    roc_auc, roc_auc_bound : float or None
        Of two classes that both have rows: the area under the ROC curve of the second one's score
        less the first one's, and how far at most it is from the exact one: 0 for up to 16,384
        different scores. Rows of unknown labels have no part in it.
    """

    n_rows: int
    n_errors: int
    classes: tuple[Any, ...]
    confusion: tuple[tuple[int, ...], ...]
    log_loss: float
    n_unknown_labels: int = 0
    n_unlabelled: int = 0
    roc_auc: float | None = None
    roc_auc_bound: float | None = None

    @property
    def error_rate(self) -> float:
        """Share of all rows whose predicted label is wrong, unknown labels among them."""
        return self.n_errors / self.n_rows

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """``class``, ``precision``, ``recall``, ``f1``, ``support`` of each, as `class_figures`."""
        return class_figures(self.classes, self.confusion)

    def beyond(self, allowed: float, *, on: Location) -> str:
        """Return what a model does that errs on some rows more than is allowed."""
        return (
            f"makes {100 * self.error_rate:.2f} % errors on {on}, allowed are {100 * allowed:.2f} %"
        )

    def figures(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "n_rows": self.n_rows,
            "n_unlabelled": self.n_unlabelled,
            "n_errors": self.n_errors,
            "n_unknown_labels": self.n_unknown_labels,
            "error_rate": self.error_rate,
            "log_loss": self.log_loss,
            "roc_auc": self.roc_auc,
            "roc_auc_bound": self.roc_auc_bound,
            "classes": list(self.classes),
            "per_class": self.per_class,
            "confusion": self.confusion,
        }


class EvaluatedRows(NamedTuple):
    """Some rows: ``rows`` int64 (m,), their numbers, ``true`` and ``predicted`` float64 (m, q)."""

    rows: NDArray[np.int64]
    true: Floats
    predicted: Floats


@dataclass(frozen=True)
class NumberEvaluation:
    """How near a model comes to numbers.

    Attributes
    ----------
    n_rows : int
        Those with targets; `n_unlabelled` others were left out.
    target_names : tuple of str
    relative_error : float
        ``1 - R^2``, on average over the targets.
    r2, rmse, mae : list of float
        R^2, root mean squared and mean absolute error of every target. R^2 of one that does not
        vary is 1 if it is met, else 0.
    sample : EvaluatedRows
        At most 2,000 rows, evenly apart: the same ones however the work was divided.
    """

    n_rows: int
    target_names: tuple[str, ...]
    relative_error: float
    r2: list[float]
    rmse: list[float]
    mae: list[float]
    sample: EvaluatedRows = field(repr=False, compare=False)
    n_unlabelled: int = 0

    @property
    def error_rate(self) -> float:
        """The relative error."""
        return self.relative_error

    def beyond(self, allowed: float, *, on: Location) -> str:
        """Return what a model does that errs on some rows more than is allowed."""
        return (
            f"has a relative error, 1 - R2, of {self.relative_error:.4g} on {on}, allowed is "
            f"{allowed:.4g}"
        )

    def figures(self) -> dict[str, Any]:
        """Return all of it but the sample as JSON values."""
        return {
            "n_rows": self.n_rows,
            "n_unlabelled": self.n_unlabelled,
            "target_names": list(self.target_names),
            "relative_error": self.relative_error,
            "r2": self.r2,
            "rmse": self.rmse,
            "mae": self.mae,
        }


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
    overwrite: bool = False,
) -> int:
    """Write labels (n,) and what else is asked for of all rows, or values (n, q) of a regression.

    Parameters
    ----------
    model : Location
        Of a model or a finished run.
    dataset : Dataset
        Needs no labels. Its ids are written too.
    out : Location
        A Zarr group, without suffix or with .zarr; with .csv or .parquet a local file of that
        format, whose column of labels is called "prediction".
    engine : Engine
    scores, probabilities : bool
        Write these (n, K) too, of every class by its name; a Zarr group has scores in any case.
        Probabilities are those of `Model.probabilities`.
    prediction_name : str, optional
        Another name of that column, also of a predicted number; several numbers are
        ``NAME_TARGET``. By default numbers are called as their targets, but "prediction" beside
        a kept column of that name.
    kept : RecordBatchReader, optional
        Further columns of the same rows for a .csv or .parquet file.
    skip_bad : bool
        In such a file, write nulls for rows that have features without a value,
    bad_rows : sequence of int
        and for these.
    overwrite : bool
        Replace what is at `out`, once the predictions are complete: a file by a file, predictions
        by predictions.

    Returns
    -------
    int
        How many rows have nulls.

    Raises
    ------
    DataError
        If the dataset has other columns than the training rows, or `kept` other rows.
    ExistsError, ParameterError, StorageError
        As `check_prediction_place`; the first also if another job has written to `out` meanwhile,
        the second also if what is asked for does not go with `out` or the model.
    """
    check_prediction_place(out, overwrite=overwrite)
    pinned = PinnedModel.at(model)
    opened = pinned.load()
    keep = () if kept is None else kept.schema.names
    if kept is not None and _suffix(out) == ".csv":
        check_in_csv(kept)
    asked: dict[str, Any] = {"scores": scores, "probabilities": probabilities}
    asked |= {"skip_bad": skip_bad, "prediction_name": prediction_name}
    names = check_asked(opened, out, **asked, keep=keep)
    dataset = _checked(opened, dataset, engine)
    if _suffix(out) not in TABLES:
        _predict_to_zarr(pinned, opened, dataset, out, engine, names, overwrite=overwrite)
        return 0
    arrays = [*_ids_of(dataset), *names]
    written = column_names(arrays, _attributes(opened, dataset), keep, prediction_name)
    check_distinct_columns(written, keep)
    scratch = hidden_sibling(out, f"{uuid.uuid4().hex[:8]}.unfinished")
    try:
        _predict_to_zarr(pinned, opened, dataset, scratch, engine, names, overwrite=False)
        with new_file(str(out), overwrite=overwrite) as unfinished:
            n_skipped = write_predictions(scratch, unfinished, written, kept, bad_rows)
    finally:
        remove_group(scratch)
    if n_skipped:
        logger.warning("%d of %d rows have no prediction.", n_skipped, dataset.n_rows)
    return n_skipped


def write_results(
    model: Location, dataset: Dataset, out: Location, engine: Engine, names: tuple[str, ...]
) -> None:
    """Write some of the results that there are to a Zarr group.

    Parameters
    ----------
    model : Location
        Of a model or a finished run.
    dataset : Dataset
    out : Location
    engine : Engine
    names : tuple of str
        "codes" are the places of labels among the classes of the model, "confidence" is their
        probability; "values" are numbers.

    Raises
    ------
    DataError
        If the dataset has other columns than the training rows.
    """
    pinned = PinnedModel.at(model)
    opened = pinned.load()
    dataset = _checked(opened, dataset, engine)
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
    """Return the names of the results to write, if all that is asked for goes with model and `out`.

    Raises
    ------
    ParameterError
        Otherwise.
    """
    in_table, of_numbers = _suffix(out) in TABLES, model.target_names is not None
    for name, is_asked in {"scores": scores, "probabilities": probabilities}.items():
        if is_asked and of_numbers:
            raise ParameterError(
                f"`{name}` are asked for, and the model predicts numbers.", f"Leave `{name}` out."
            )
    of_tables = {"keep": keep, "skip_bad": skip_bad, "prediction_name": prediction_name}
    for name, value in of_tables.items():
        if value and not in_table:
            raise ParameterError(
                f"`{name}` is given, and {out} is a Zarr group.", "Write .csv or .parquet with it."
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
        raise ParameterError("`prediction_name` is empty.", "Give the column a name.")
    check_distinct_columns(column_names(names, _columns_of(model), keep, prediction_name), keep)
    return names


def check_prediction_place(out: Location, *, overwrite: bool) -> None:
    """Raise an error if predictions cannot be written to `out`.

    Raises
    ------
    ExistsError
        If something is there and `overwrite` is false, or something else than is to be written.
    ParameterError
        If its suffix is that of another format, or it is inside a Zarr group.
    StorageError
        If nothing can be written there.
    """
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
            f"{out} ends in {suffix}, in which predictions are not written.",
            "Write .csv, .parquet, or a Zarr group: .zarr, or a name without a dot.",
        )
    return suffix


def evaluate_dataset(
    model: Location, dataset: Dataset, engine: Engine
) -> Evaluation | NumberEvaluation:
    """Return how a model predicts the targets of a dataset.

    Labels that the model was not trained on count as errors; how many there are is logged.

    Raises
    ------
    DataError
        If the dataset has other columns or targets than the training rows, or none.
    ParameterError
        If the model is an embedding.
    """
    pinned = PinnedModel.at(model)
    opened = pinned.load()
    dataset = _checked(opened, dataset, engine)
    if opened.embeds:
        raise ParameterError(
            f"{model} is an embedding, which learns no targets.", "Give a run of fit or tune."
        )
    check_targets(dataset, opened.target_names)
    n_unlabelled, dataset = dataset.n_unlabelled, dataset.of_labelled()
    if n_unlabelled:
        logger.info("evaluate: %d rows without a label are left out", n_unlabelled)
    arguments = [
        (*pinned, dataset.location, start, stop)
        for start, stop in task_spans(dataset.n_rows, 1, engine)
    ]
    if opened.target_names is not None:
        judged = run_tasks(engine, _residuals, arguments, label="evaluate")
        figures = reduce(add, (sums for sums, _ in judged)).figures(0)
        rows = np.arange(0, dataset.n_rows, _sample_step(dataset.n_rows))
        sample = EvaluatedRows(rows, *np.concatenate([sampled for _, sampled in judged], axis=1))
        return NumberEvaluation(
            dataset.n_rows, opened.target_names, **figures, n_unlabelled=n_unlabelled, sample=sample
        )
    if not set(opened.classes.tolist()) & set(dataset.classes.tolist()):
        raise DataError(
            f"the labels of {dataset.location}, such as {dataset.classes.tolist()[0]!r}, are none "
            f"of the model's, such as {opened.classes.tolist()[0]!r}.",
            "Ingest the labels as those of the training rows: all whole numbers, or all text.",
        )
    counts = run_tasks(engine, _count, arguments, label="evaluate")
    confusions, log_losses, rankings = zip(*counts, strict=True)
    confusion = np.sum(confusions, axis=0)
    n_unknown = int(confusion[-1].sum())
    if n_unknown:
        logger.warning(
            "%d of the %d rows of %s have labels that the model does not know; they are errors.",
            n_unknown,
            dataset.n_rows,
            dataset.location,
        )
    return Evaluation(
        n_rows=dataset.n_rows,
        n_errors=dataset.n_rows - int(np.trace(confusion)),
        classes=tuple(opened.classes.tolist()),
        confusion=tuple(map(tuple, confusion.tolist() if n_unknown else confusion[:-1].tolist())),
        log_loss=math.fsum(log_losses) / (dataset.n_rows - n_unknown),
        n_unknown_labels=n_unknown,
        n_unlabelled=n_unlabelled,
        **reduce(add, rankings).figures(),
    )


def _checked(model: Model, dataset: Dataset, engine: Engine) -> Dataset:
    """Return a dataset as the model takes it, once it is known that its blocks fit the memory."""
    dataset = model.encoded(dataset)
    dataset.check_stored()
    rows, (r, n_scaled) = scoring_rows(model.n_basis), model.basis.shape
    p = model.n_features
    n_targets = model.n_targets
    # A block of activations, the basis as read and as factors, the weights as read, rows as stored,
    # one ahead and centred, and the scores, probabilities and labels of a chunk and a block.
    scored = output_chunk_rows(dataset.n_rows, n_targets) + rows
    held = 8 * (rows * (r + 4 * row_width(dataset)) + 2 * r * n_targets + 5 * scored * n_targets)
    values = mean_values(model.basis)
    of_sparse = dataset.is_sparse and model.projection is None
    held += basis_bytes(r, n_scaled, values, copies=3, of_sparse=of_sparse)
    if model.projection is not None:
        held += project_bytes(2 * rows, p, n_scaled)
    held += 3 * scored * model.classes.itemsize
    if model.target_names is not None:
        # The sample that an evaluation returns.
        held += 2 * 8 * min(dataset.n_rows, _SAMPLED_ROWS) * n_targets
    elif n_targets == 2:
        held += RANKING_BYTES
    engine.expected_bytes = PROCESS_BYTES + dataset.reading_bytes + held
    remedy = "Ingest with a smaller `chunk_rows`"
    check_budget("predict", engine.expected_bytes, engine, remedy=remedy)
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
) -> None:
    """Write the named results, and ids where the dataset has them."""
    chunk_rows = output_chunk_rows(dataset.n_rows, model.n_targets)
    empty = {name: Scorer(model).no_result(name) for name in names} | _ids_of(dataset)
    dimensions = ("row", "class" if model.target_names is None else "target")
    with replacing_group(out, kind="predictions", overwrite=overwrite, flush=False) as group:
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
            (*pinned, dataset.location, group, names, start, stop)
            for start, stop in task_spans(dataset.n_rows, chunk_rows, engine)
        ]
        run_tasks(engine, _write_results, arguments, label="predict")
        mark_complete(group, kind="predictions", attributes=_attributes(model, dataset))


def _attributes(model: Model, dataset: Dataset) -> dict[str, Any]:
    """Return what is recorded of predictions."""
    told = {**_columns_of(model), "fingerprint": dataset.fingerprint}
    if _ids_of(dataset):
        told["id"] = "id" if dataset.schema is None else dataset.schema.id
    return told


def _columns_of(model: Model) -> dict[str, Any]:
    """Return what names the scores of a model."""
    if model.target_names is None:
        return {"classes": model.classes.tolist()}
    return {"target_names": list(model.target_names)}


def _ids_of(dataset: Dataset, start: int = 0, stop: int = 0) -> dict[str, NDArray[Any]]:
    """Return the ids of some rows of a dataset, if all of its rows have one, by their name."""
    ids = dataset.ids
    if ids is None or ids.shape[0] != dataset.n_rows:
        return {}
    return {"ids": read_rows(ids, start, stop)}


def output_chunk_rows(n_rows: int, n_classes: int) -> int:
    """Return the rows of a chunk of the predictions, whatever the chunks of the dataset."""
    few = max(-(-n_rows // _MIN_CHUNKS), _MIN_CHUNK_ROWS)
    return min(few, default_chunk_rows(n_classes, np.float64), n_rows)


def task_spans(n_rows: int, chunk_rows: int, engine: Engine) -> list[tuple[int, int]]:
    """Return row spans of whole chunks, as equal as can be, as many for every worker."""
    n_chunks = -(-n_rows // chunk_rows)
    per_worker = round(n_rows / (engine.n_workers * _TASK_ROWS))
    n_tasks = min(n_chunks, engine.n_workers * min(max(per_worker, 1), _MAX_TASKS_PER_WORKER))
    edges = [n_chunks * task // n_tasks * chunk_rows for task in range(n_tasks + 1)]
    return [(start, min(stop, n_rows)) for start, stop in pairwise(edges)]


def _write_results(
    model_location: Location,
    checksum: str,
    dataset_location: Location,
    group: zarr.Group,
    names: tuple[str, ...],
    start: int,
    stop: int,
) -> None:
    scorer = Scorer(PinnedModel(model_location, checksum).load())
    dataset = Dataset.open(dataset_location)
    scores_of_blocks = (block.scores for block in scorer.blocks(dataset, start, stop))
    for scores in regroup(scores_of_blocks, get_array(group, names[0]).chunks[0]):
        stop = start + len(scores)
        results = {name: scorer.result(name, scores) for name in names}
        for name, values in (results | _ids_of(dataset, start, stop)).items():
            array = get_array(group, name)
            array[start:stop] = values.astype(array.dtype, copy=False)
        start = stop


def _residuals(
    model_location: Location, checksum: str, dataset_location: Location, start: int, stop: int
) -> tuple[ResidualSums, Floats]:
    """Return how near a model comes to the numbers of some rows, and those of the sampled ones.

    The latter, (2, m, q), are the true and the predicted ones.
    """
    model = PinnedModel(model_location, checksum).load()
    dataset = Dataset.open(dataset_location)
    assert model.intercept is not None
    origin = model.intercept
    sums = ResidualSums.zeros(1, model.n_targets)
    step, sampled, row = _sample_step(dataset.n_rows), [], start
    for scores, targets in Scorer(model).blocks(dataset, start, stop):
        assert targets is not None
        sums += ResidualSums.from_block((scores - origin)[:, None], targets - origin)
        drawn = slice(-row % step, None, step)
        sampled.append(np.stack([targets[drawn], scores[drawn]]))
        row += len(targets)
    return sums, np.concatenate(sampled, axis=1)


def _sample_step(n_rows: int) -> int:
    return -(-n_rows // _SAMPLED_ROWS)


def _count(
    model_location: Location, checksum: str, dataset_location: Location, start: int, stop: int
) -> tuple[NDArray[np.int64], float, RankedScores]:
    """Return the confusion (K + 1, K), the sum of log losses and, of two classes, the ranking.

    The last row of the confusion is of the rows whose class is not known, the others are of the
    rows whose class is.
    """
    model = PinnedModel(model_location, checksum).load()
    dataset = Dataset.open(dataset_location)
    own = {label: code for code, label in enumerate(model.classes.tolist())}
    n_classes = len(own)
    code_in_model = np.array([own.get(label, n_classes) for label in dataset.classes.tolist()])
    confusion, log_loss = np.zeros((n_classes + 1, n_classes), dtype=np.int64), 0.0
    ranking = RankedScores.zeros()
    for scores, block_codes in Scorer(model).blocks(dataset, start, stop):
        assert block_codes is not None
        codes = code_in_model[block_codes]
        np.add.at(confusion, (codes, scores.argmax(axis=1)), 1)
        known = codes < n_classes
        scores, codes = scores[known], codes[known]
        given = model.probabilities(scores)[np.arange(len(codes)), codes]
        # A probability of exactly 0, as clipped scores have, would make the loss infinite.
        log_loss -= float(np.log(np.maximum(given, _LEAST_PROBABILITY)).sum())
        if n_classes == 2:
            ranking += RankedScores.from_block(scores[:, 1] - scores[:, 0], codes)
    return confusion, log_loss, ranking.binned()
