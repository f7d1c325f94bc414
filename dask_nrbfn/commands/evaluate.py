"""Evaluate: the figures of a model on all rows of a dataset that has targets."""

import math
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.predict import SAMPLED_ROWS, encoded_for, run_spans
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.bins import RankedScores
from dask_nrbfn.numeric.held_out import ResidualSums, class_figures
from dask_nrbfn.numeric.reliability import RankedProbabilities, ReliabilityBin
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.sources.source import FORM, ONE_FORM, in_other_form
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.model import Model, PinnedModel

# The least probability of a true class, as in scikit-learn's log loss.
_LEAST_PROBABILITY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Evaluation:
    """The figures of a model on labelled rows; weighted if the rows have weights.

    Attributes
    ----------
    n_rows, n_errors, error_rate : int, int, float
        Number of rows, number of rows with a wrong predicted label, and their share, or share of
        the weight. Rows with a label that the model does not know are errors.
    classes : tuple of int or str
        Classes of the model.
    confusion : tuple of tuples of int or float
        Number, or weight, of rows by class (first index) and predicted label. If there are labels
        that the model does not know, one more line at the end is of all rows with these labels.
    log_loss, expected_calibration_error : float
        Of the rows whose label the model knows.
    reliability : list of dict
        Bins with equal numbers, or weights, of the same rows: ``n_rows``, ``mean_probability`` and
        ``observed_share``, of the second of two classes, or of the predicted label among more.
    n_unknown_labels, n_unlabelled : int
        Number of rows whose label the model does not know, and of further rows without a label.
    roc_auc, roc_auc_bound : float or None
        For two classes that both have rows: the area under the ROC curve of the score difference,
        and a bound of its error, which is 0 for up to 16,384 different scores.
    total_weight : float or None
        Sum of the weights of the rows; None if the rows have no weights.
    per_class : list of dict
        Class, precision, recall, f1 and support.
    """

    n_rows: int
    n_errors: int
    classes: tuple[Any, ...]
    confusion: tuple[tuple[float, ...], ...]
    log_loss: float
    expected_calibration_error: float
    reliability: list[ReliabilityBin] = field(repr=False)
    n_unknown_labels: int = 0
    n_unlabelled: int = 0
    roc_auc: float | None = None
    roc_auc_bound: float | None = None
    total_weight: float | None = None

    @property
    def error_rate(self) -> float:
        """Share of rows, or of their weight, whose predicted label is wrong."""
        if self.total_weight is None:
            return self.n_errors / self.n_rows
        confusion = np.asarray(self.confusion)
        return float((confusion.sum() - np.trace(confusion)) / confusion.sum())

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """The `class_figures`."""
        return class_figures(self.classes, self.confusion)

    def figures(self) -> dict[str, Any]:
        """Return all figures by name, as values that `json.dumps` accepts."""
        further = {"error_rate": self.error_rate, "per_class": self.per_class}
        return vars(self) | further | {"classes": list(self.classes)}


@dataclass(frozen=True)
class NumberEvaluation:
    """The figures of a model on rows with numeric targets; weighted if the rows have weights.

    Attributes
    ----------
    n_rows, n_unlabelled : int
        Number of rows with targets, and of other rows, which were left out.
    target_names : tuple of str
    relative_error, error_rate : float
        ``1 - R^2``, averaged over the targets.
    r2, rmse, mae : list of float
        R^2, root mean squared and mean absolute error of every target. R^2 of a constant target is
        1 if it is predicted exactly, else 0.
    sample : ndarray (2, m, q)
        True and predicted numbers of at most 2,000 equally spaced rows.
    total_weight : float or None
        Sum of the weights of the rows; None if the rows have no weights.
    """

    n_rows: int
    target_names: tuple[str, ...]
    relative_error: float
    r2: list[float]
    rmse: list[float]
    mae: list[float]
    sample: Floats = field(repr=False, compare=False)
    n_unlabelled: int = 0
    total_weight: float | None = None

    @property
    def error_rate(self) -> float:
        """The relative error."""
        return self.relative_error

    def figures(self) -> dict[str, Any]:
        """Return all figures except the sample, as values that `json.dumps` accepts."""
        return {name: value for name, value in vars(self).items() if name != "sample"}


def evaluate_dataset(
    model: Location, dataset: Dataset, engine: Engine, *, clip: bool = True
) -> Evaluation | NumberEvaluation:
    """Return the figures of a model on a dataset, a NumberEvaluation for numeric targets.

    Parameters
    ----------
    model, dataset, engine, clip : as in predict_dataset
        See `predict_dataset`.

    Raises
    ------
    DataError, ParameterError
        If the dataset has other columns or targets than the training rows, or no targets; if the
        model is an embedding.
    """
    pinned = PinnedModel.at(model, clip=clip)
    opened = pinned.open()
    dataset = encoded_for(opened, dataset, engine)
    if opened.embeds:
        raise ParameterError(
            f"{model} is an embedding, which learns no targets.", "Pass a run of fit or tune."
        )
    check_targets(dataset, opened.target_names)
    if opened.target_names is None:
        return _evaluate_classes(pinned, opened, dataset, engine)
    return _evaluate_numbers(pinned, opened.target_names, dataset, engine)


def _evaluate_numbers(
    pinned: PinnedModel, target_names: tuple[str, ...], dataset: Dataset, engine: Engine
) -> NumberEvaluation:
    n_unlabelled, rows = dataset.n_unlabelled, dataset.of_labelled()
    spans = run_spans(engine, _residuals, (pinned, rows), rows.n_rows, label="evaluate")
    of_spans, samples = zip(*spans, strict=True)
    sums = reduce(add, of_spans)
    return NumberEvaluation(
        rows.n_rows,
        target_names,
        **sums.figures(0),
        n_unlabelled=n_unlabelled,
        sample=np.concatenate(samples, axis=1),
        total_weight=None if rows.sample_weights is None else sums.weight,
    )


def _residuals(
    model: Model, dataset: Dataset, start: int, stop: int
) -> tuple[ResidualSums, Floats]:
    """Return residual sums, and sampled true and predicted numbers (2, m, q), of some rows."""
    assert model.intercept is not None
    origin = model.intercept
    sums = ResidualSums.zeros(1, model.n_targets)
    step, sampled, row = -(-dataset.n_rows // SAMPLED_ROWS), [], start
    for scores, targets, weights in Scorer(model).blocks(dataset, start, stop):
        assert targets is not None
        predicted = model.clipped(scores)
        sums += ResidualSums.from_block((predicted - origin)[:, None], targets - origin, weights)
        drawn = slice(-row % step, None, step)
        sampled.append(np.stack([targets[drawn], predicted[drawn]]))
        row += len(targets)
    return sums, np.concatenate(sampled, axis=1)


def _evaluate_classes(
    pinned: PinnedModel, model: Model, dataset: Dataset, engine: Engine
) -> Evaluation:
    n_unlabelled, rows = dataset.n_unlabelled, dataset.of_labelled()
    _check_labels(model, rows)
    spans = run_spans(engine, _count, (pinned, rows), rows.n_rows, label="evaluate")
    confusion = np.sum([span.confusion for span in spans], axis=0)
    of_known = confusion[:-1]
    n_unknown = sum(span.n_unknown for span in spans)
    return Evaluation(
        n_rows=rows.n_rows,
        n_errors=sum(span.n_errors for span in spans),
        classes=tuple(model.classes.tolist()),
        confusion=tuple(map(tuple, (confusion if n_unknown else of_known).tolist())),
        log_loss=math.fsum(span.log_loss for span in spans) / float(of_known.sum()),
        n_unknown_labels=n_unknown,
        n_unlabelled=n_unlabelled,
        total_weight=None if rows.sample_weights is None else float(confusion.sum()),
        **reduce(add, [span.reliability for span in spans]).figures(),
        **reduce(add, [span.ranking for span in spans]).figures(),
    )


def _check_labels(model: Model, dataset: Dataset) -> None:
    """Raise DataError if no label is a class of the model, or one is in another form."""
    # A dataset may declare classes that no row has.
    known, present = model.classes.tolist(), dataset.classes[dataset.class_counts > 0].tolist()
    if alike := in_other_form(known, sorted({*present} - {*known})):
        raise DataError(
            f"the label {alike[0]!r} of {dataset.location} differs from a class in {FORM}.",
            ONE_FORM,
        )
    if set(known).isdisjoint(present):
        raise DataError(
            f"the labels of {dataset.location}, such as {present[0]!r}, are not classes of the "
            f"model, such as {known[0]!r}.",
            "Ingest the labels with the type of the training labels: all integers, or all text.",
        )


class _Counts(NamedTuple):
    """Sums over some rows; the last line of `confusion` (K + 1, K) is of unknown labels.

    The log loss, the reliability and the ranking are of the rows whose label the model knows.
    """

    confusion: NDArray[Any]
    n_errors: int
    n_unknown: int
    log_loss: float
    reliability: RankedProbabilities
    ranking: RankedScores


def _count(model: Model, dataset: Dataset, start: int, stop: int) -> _Counts:
    """Return the sums over some rows."""
    code_of = {label: code for code, label in enumerate(model.classes.tolist())}
    n_classes = len(code_of)
    code_in_model = np.array([code_of.get(label, n_classes) for label in dataset.classes.tolist()])
    dtype = np.int64 if dataset.sample_weights is None else np.float64
    confusion = np.zeros((n_classes + 1, n_classes), dtype=dtype)
    n_errors, n_unknown, log_loss = 0, 0, 0.0
    reliability, ranking = RankedProbabilities.zeros(), RankedScores.zeros()
    for scores, block_codes, weights in Scorer(model).blocks(dataset, start, stop):
        assert block_codes is not None
        codes, labels = code_in_model[block_codes], scores.argmax(axis=1)
        np.add.at(confusion, (codes, labels), 1 if weights is None else weights)
        known = codes < n_classes
        n_errors += int(np.count_nonzero(codes != labels))
        n_unknown += int(np.count_nonzero(~known))
        scores, codes = scores[known], codes[known]
        weights = None if weights is None else weights[known]
        probabilities = model.probabilities(scores)
        reliability += RankedProbabilities.from_block(probabilities, codes, weights)
        of_label = probabilities[np.arange(len(codes)), codes]
        # Clipped scores can give a probability of 0, whose loss would be infinite.
        losses = -np.log(np.maximum(of_label, _LEAST_PROBABILITY))
        log_loss += float(losses.sum() if weights is None else weights @ losses)
        if n_classes == 2:
            ranking += RankedScores.from_block(scores[:, 1] - scores[:, 0], codes, weights)
    return _Counts(confusion, n_errors, n_unknown, log_loss, reliability.binned(), ranking.binned())
