"""Evaluate: the figures of a model on all rows of a dataset that has targets."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.predict import SAMPLED_ROWS, UNLIKE, encoded_for, run_spans
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.bins import RankedScores
from dask_nrbfn.numeric.held_out import ResidualSums, class_figures
from dask_nrbfn.numeric.intervals import masses
from dask_nrbfn.numeric.reliability import RankedProbabilities, ReliabilityBin
from dask_nrbfn.numeric.rows import Rows, with_columns
from dask_nrbfn.numeric.schema import source_columns
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.sources.source import FORM, ONE_FORM, in_other_form
from dask_nrbfn.stages.bases import drawn_rows
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.model import Model, PinnedModel

logger = logging.getLogger(__name__)

# The coverages of the intervals that are judged, and the results that are their ends.
COVERAGES = (0.5, 0.8, 0.9, 0.95)
ENDS = ("lower", "upper")

# The most columns that are permuted, how often, and the rows that are scored for all together. With
# 4,000 basis rows and 500 columns they take two minutes on one core.
MOST_PERMUTED, _N_REPEATS, _MOST_SCORED = 500, 3, 1_000_000

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
    intervals : list of dict
        For each of `COVERAGES`, the share of rows (weight) whose class is in the set of labels of
        this "coverage", as "covered", and the "mean_size" of the sets. Empty if the model held out
        no rows.
    n_unlike : int or None
        Rows that are farther from the basis than 99.9 % of the held-out training rows.
    importances : list of dict
        The `permutation_importances`, if `importance` was set.
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
    intervals: list[dict[str, Any]] = field(default_factory=list, repr=False)
    n_unlike: int | None = None
    importances: list[dict[str, Any]] = field(default_factory=list, repr=False)

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
    intervals : list of dict
        For each of `COVERAGES`, the share of rows (weight) that are within the intervals of this
        "coverage", as "covered", and their "mean_width", of every target. Empty if the model held
        out no rows.
    n_unlike : int or None
        Rows that are farther from the basis than 99.9 % of the held-out training rows.
    importances : list of dict
        The `permutation_importances`, if `importance` was set.
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
    intervals: list[dict[str, Any]] = field(default_factory=list, repr=False)
    n_unlike: int | None = None
    importances: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def error_rate(self) -> float:
        """The relative error."""
        return self.relative_error

    def figures(self) -> dict[str, Any]:
        """Return all figures except the sample, as values that `json.dumps` accepts."""
        return {name: value for name, value in vars(self).items() if name != "sample"}


def evaluate_dataset(
    model: Location,
    dataset: Dataset,
    engine: Engine,
    *,
    clip: bool = True,
    importance: bool = False,
) -> Evaluation | NumberEvaluation:
    """Return the figures of a model on a dataset, a NumberEvaluation for numeric targets.

    Parameters
    ----------
    model, dataset, engine, clip : as in predict_dataset
        See `predict_dataset`.
    importance : bool
        Whether to add the `permutation_importances`.

    Raises
    ------
    DataError, ParameterError
        If the dataset has other columns or targets than the training rows, or no targets; if the
        model is an embedding.
    """
    pinned, opened, dataset = _opened(model, dataset, engine, clip)
    found: Evaluation | NumberEvaluation
    if opened.target_names is None:
        found = _evaluate_classes(pinned, opened, dataset, engine)
    else:
        found = _evaluate_numbers(pinned, opened, dataset, engine)
    if found.n_unlike:
        logger.info("evaluate: %d of %d rows are %s", found.n_unlike, found.n_rows, UNLIKE)
    if importance:
        ranked = permutation_importances(model, dataset, engine, clip=clip)
        found = replace(found, importances=ranked)
    return found


def _opened(
    model: Location, dataset: Dataset, engine: Engine, clip: bool
) -> tuple[PinnedModel, Model, Dataset]:
    """Return a model, pinned and open, and rows with its features and the same kind of targets."""
    pinned = PinnedModel.at(model, clip=clip)
    opened = pinned.open()
    dataset = encoded_for(opened, dataset, engine)
    if opened.embeds:
        raise ParameterError(
            f"{model} is an embedding, which learns no targets.", "Pass a run of fit or tune."
        )
    check_targets(dataset, opened.target_names)
    if opened.target_names is None:
        _check_labels(opened, dataset)
    return pinned, opened, dataset


def _evaluate_numbers(
    pinned: PinnedModel, model: Model, dataset: Dataset, engine: Engine
) -> NumberEvaluation:
    assert model.target_names is not None
    n_unlabelled, rows = dataset.n_unlabelled, dataset.of_labelled()
    spans = run_spans(engine, _residuals, (pinned, rows), rows.n_rows, label="evaluate")
    of_spans, samples, covered = zip(*spans, strict=True)
    sums = reduce(add, of_spans)
    return NumberEvaluation(
        rows.n_rows,
        model.target_names,
        **sums.figures(0),
        n_unlabelled=n_unlabelled,
        sample=np.concatenate(samples, axis=1),
        total_weight=None if rows.sample_weights is None else sums.weight,
        **_coverage(model, covered, "mean_width"),
    )


@dataclass(frozen=True, eq=False)
class _Covered(RowSum):
    """Weights of covered rows, and weighted widths of intervals or sizes of sets, (C, q)."""

    covered: Floats
    widths: Floats
    weight: float
    n_unlike: int


def _covered_by(
    scorer: Scorer,
    scores: Floats,
    targets: NDArray[Any],
    weights: Floats | None,
    probabilities: Floats | None = None,
) -> _Covered:
    """Return the sums of some rows with extended scores; targets are numbers or codes.

    probabilities (b, K): those of the classes; None for numbers.
    """
    model, covered, widths = scorer.model, [], []
    assert model.intervals is not None
    own = np.ones(len(scores)) if weights is None else weights
    found = None if probabilities is None else masses(probabilities)
    for coverage in COVERAGES:
        if found is not None:
            sets = found <= model.intervals.at(coverage)
            inside = sets[np.arange(len(sets)), targets][:, None]
            width = sets.sum(axis=1)[:, None]
        else:
            lower, upper = (scorer.result(f"{end}@{coverage}", scores) for end in ENDS)
            inside, width = (lower <= targets) & (targets <= upper), upper - lower
        covered.append(own @ inside)
        widths.append(own @ width)
    n_unlike = scorer.count_unlike(scores)
    return _Covered(np.array(covered), np.array(widths), float(own.sum()), n_unlike)


def _coverage(model: Model, spans: Sequence[_Covered | None], width: str) -> dict[str, Any]:
    """Return the figures of the intervals that a model allows.

    "mean_width" or "mean_size" names those of widths.
    """
    found = [each for each in spans if each is not None]
    if model.intervals is None or not found:
        return {}
    total = reduce(add, found)
    shares, widths = total.covered / total.weight, total.widths / total.weight
    by_coverage = zip(COVERAGES, shares.tolist(), widths.tolist(), strict=True)
    intervals = [
        {"coverage": coverage, "covered": own, width: mean}
        for coverage, own, mean in by_coverage
        if model.intervals.allows(coverage)
    ]
    return {"intervals": intervals, "n_unlike": total.n_unlike}


def _residuals(
    model: Model, dataset: Dataset, start: int, stop: int
) -> tuple[ResidualSums, Floats, _Covered | None]:
    """Return residual sums, sampled true and predicted numbers (2, m, q), and what is covered."""
    assert model.intercept is not None
    origin = model.intercept
    sums = ResidualSums.zeros(1, model.n_targets)
    step, sampled, row = -(-dataset.n_rows // SAMPLED_ROWS), [], start
    scorer, covered = Scorer(model, extended=model.intervals is not None), []
    for scores, targets, weights in scorer.blocks(dataset, start, stop):
        assert targets is not None
        predicted = scorer.result("values", scores)
        if scorer.extended:
            covered.append(_covered_by(scorer, scores, targets, weights))
        sums += ResidualSums.from_block((predicted - origin)[:, None], targets - origin, weights)
        drawn = slice(-row % step, None, step)
        sampled.append(np.stack([targets[drawn], predicted[drawn]]))
        row += len(targets)
    return sums, np.concatenate(sampled, axis=1), reduce(add, covered) if covered else None


def _evaluate_classes(
    pinned: PinnedModel, model: Model, dataset: Dataset, engine: Engine
) -> Evaluation:
    n_unlabelled, rows = dataset.n_unlabelled, dataset.of_labelled()
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
        **_coverage(model, [span.covered for span in spans], "mean_size"),
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
    covered: _Covered | None


def _count(model: Model, dataset: Dataset, start: int, stop: int) -> _Counts:
    """Return the sums over some rows."""
    code_of = {label: code for code, label in enumerate(model.classes.tolist())}
    n_classes = len(code_of)
    code_in_model = np.array([code_of.get(label, n_classes) for label in dataset.classes.tolist()])
    dtype = np.int64 if dataset.sample_weights is None else np.float64
    confusion = np.zeros((n_classes + 1, n_classes), dtype=dtype)
    n_errors, n_unknown, log_loss = 0, 0, 0.0
    reliability, ranking = RankedProbabilities.zeros(), RankedScores.zeros()
    scorer, covered = Scorer(model, extended=model.intervals is not None), []
    for extended, block_codes, weights in scorer.blocks(dataset, start, stop):
        assert block_codes is not None
        scores = extended[:, :n_classes]
        codes, labels = code_in_model[block_codes], scores.argmax(axis=1)
        np.add.at(confusion, (codes, labels), 1 if weights is None else weights)
        known = codes < n_classes
        n_errors += int(np.count_nonzero(codes != labels))
        n_unknown += int(np.count_nonzero(~known))
        scores, codes = scores[known], codes[known]
        weights = None if weights is None else weights[known]
        probabilities = model.probabilities(scores)
        if scorer.extended:
            of_known = _covered_by(scorer, extended[known], codes, weights, probabilities)
            covered.append(replace(of_known, n_unlike=scorer.count_unlike(extended)))
        reliability += RankedProbabilities.from_block(probabilities, codes, weights)
        of_label = probabilities[np.arange(len(codes)), codes]
        # Clipped scores can give a probability of 0, whose loss would be infinite.
        losses = -np.log(np.maximum(of_label, _LEAST_PROBABILITY))
        log_loss += float(losses.sum() if weights is None else weights @ losses)
        if n_classes == 2:
            ranking += RankedScores.from_block(scores[:, 1] - scores[:, 0], codes, weights)
    return _Counts(
        confusion,
        n_errors,
        n_unknown,
        log_loss,
        reliability.binned(),
        ranking.binned(),
        reduce(add, covered) if covered else None,
    )


def permutation_importances(
    model: Location,
    dataset: Dataset,
    engine: Engine,
    *,
    n_rows: int = 10_000,
    random_state: int = 0,
    clip: bool = True,
) -> list[dict[str, Any]]:
    """Return how much the errors rise if a column is permuted, the most important column first.

    Parameters
    ----------
    model, dataset, engine, clip : as in predict_dataset
        See `predict_dataset`. Pass rows that the model was not trained on.
    n_rows : int
        Number of labelled rows that are drawn, with c columns at most ``1,000,000 / (3 c)``. Those
        with labels that the model does not know are left out.
    random_state : int
        Seed of the draw and of the permutations.

    Returns
    -------
    list of dict
        For each "column" of the source, whose features are permuted together: the increase of
        "error_rate" and "brier_score", or of "relative_error", ``1 - R^2`` averaged over the
        targets; and the "standard_error" of the increase of the Brier score or relative error, by
        which columns are sorted. All are weighted if the rows have weights.

    Raises
    ------
    DataError, ParameterError
        As `evaluate_dataset`; if there are more than 500 columns, or no drawn label is known.

    Notes
    -----
    Means of three permutations (Breiman, "Random forests", 2001). The Brier score is the mean of
    ``sum_c (P_ic - [y_i = c])^2``. Takes the time of predictions of ``3 c`` times the drawn rows,
    which each task holds.
    """
    pinned, opened, dataset = _opened(model, dataset, engine, clip)
    rows, n_columns = dataset.of_labelled(), dataset.X.shape[1]
    if n_columns > MOST_PERMUTED:
        raise ParameterError(
            f"{rows.location} has {n_columns} columns, and importances take up to {MOST_PERMUTED}.",
            "Permute groups of columns, and compare the figures of `evaluate_dataset`.",
        )
    n_rows = min(n_rows, rows.n_rows, _MOST_SCORED // (_N_REPEATS * n_columns))
    engine.expected_bytes += int(2 * n_rows * rows.row_bytes)
    engine.check_budget("importances", engine.expected_bytes, remedy="Pass a smaller `n_rows`")
    logger.info("importances: %d columns, permuted among %d rows", n_columns, n_rows)
    arguments = (pinned, rows, drawn_rows(rows.n_rows, n_rows, random_state), random_state)
    spans = run_spans(engine, _rises, arguments, n_columns, label="importances")
    by = "brier_score" if opened.target_names is None else "relative_error"
    return sorted((each for span in spans for each in span), key=lambda each: -each[by])


def _rises(
    model: Model, dataset: Dataset, drawn: NDArray[np.int64], seed: int, start: int, stop: int
) -> list[dict[str, Any]]:
    """Return the increases of the errors by some columns, in order."""
    X, targets, weights = (
        take(drawn) for take in (dataset.take, dataset.take_targets, dataset.take_weights)
    )
    names = ["error_rate", "brier_score"] if model.target_names is None else ["relative_error"]
    if model.target_names is None:
        code_of = {label: code for code, label in enumerate(model.classes.tolist())}
        targets = np.array([code_of.get(label, -1) for label in dataset.classes.tolist()])[targets]
        known = targets >= 0
        if not known.any():
            raise DataError("the model knows no drawn label.", "Pass a larger `n_rows`.")
        X, targets, weights = X[known], targets[known], weights[known]
    shares, scorer = weights / weights.sum(), Scorer(model)
    before = _losses(scorer, X, targets, shares, np.arange(len(shares)), slice(0, 0))
    random, found = np.random.default_rng((seed, len(drawn))), []
    orders = [random.permutation(len(shares)) for _ in range(_N_REPEATS)]
    columns = source_columns(model.schema, model.feature_names, model.n_features)
    for column, span in columns[start:stop]:
        after = [_losses(scorer, X, targets, shares, order, span) for order in orders]
        rises = np.mean(after, axis=0) - before
        means = rises @ shares
        error = np.linalg.norm(shares * (rises[-1] - means[-1]))
        figures = dict(zip(names, means.tolist(), strict=True))
        found.append({"column": column, **figures, "standard_error": float(error)})
    return found


def _losses(
    scorer: Scorer,
    X: Rows,
    targets: NDArray[Any],
    shares: Floats,
    order: NDArray[np.intp],
    span: slice,
) -> Floats:
    """Return losses (m, n) of rows with the features of a span of the rows in another order."""
    model, scores = scorer.model, []
    for start in range(0, len(order), scorer.block_rows):
        block = slice(start, start + scorer.block_rows)
        scores.append(scorer.scores_of(with_columns(X[block], X[order[block]], span)))
    values = np.concatenate(scores)
    if model.target_names is None:
        squares = np.square(model.probabilities(values) - np.eye(model.n_targets)[targets])
        return np.stack([values.argmax(axis=1) != targets, squares.sum(axis=1)])
    spread = shares @ np.square(targets - shares @ targets)
    squares = np.square(model.clipped(values) - targets) / np.where(spread > 0, spread, 1.0)
    return squares.mean(axis=1)[None]
