"""Stages "columns", "ranks" and "metric": column statistics, scores of ranks, learned weights."""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import Advice, DataError, ParameterError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.gradients import LEAST_WEIGHT, heaviest_columns
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.ranks import N_KNOTS, Line, RankLines
from dask_nrbfn.numeric.scaling import LEARNED, RANK, ColumnStatistics, Scaling, unseen_columns
from dask_nrbfn.numeric.small_fit import SmallNetwork, SmallTable, learned_root
from dask_nrbfn.numeric.threads import concurrent_bytes
from dask_nrbfn.numeric.trials import Trial, figures_of, trial_bytes
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import (
    PartResult,
    Reduction,
    Sums,
    map_parts,
    read_total,
    reduce_parts,
    run_task,
)
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.bases import drawn_rows
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.stage import OVERTIME, Stage, StageJob, StageRecord, in_words
from dask_nrbfn.stages.trials import SINGLE, JudgedRows, TrialRows, try_side_by_side
from dask_nrbfn.storage.chunks import check_finite
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows, narrow_block_rows
from dask_nrbfn.storage.run import Run, RunArray
from dask_nrbfn.weighting import RowReading, RowWeights, check_total_weight

logger = logging.getLogger(__name__)

# Maximum number of columns that one line of the log names.
_NAMED = 5

# Squares of smaller ranges have fewer digits than float64. Most targets differ in the first rows.
_LEAST_RANGE, _FIRST_ROWS = 1e-146, 100

# A column whose deviation is this many times smaller hardly changes a distance. The warning needs
# at least this share of such columns, because border pixels of images have small deviations too.
_UNLIKE, _UNLIKE_SHARE = 100.0, 0.25


@dataclass(frozen=True, kw_only=True)
class ColumnsRecord(StageRecord):
    """The columns without effect; groups of columns that are scaled together, as start and stop."""

    unseen: list[int]
    groups: list[list[int]] | None = None
    # Rows in CSR are not centred.
    sparse: bool | None = None


MEAN = RunArray("columns/mean", ("feature",), "mean of each column", verified=False)
SQUARED_DEVIATION = RunArray(
    "columns/squared_deviation",
    ("feature",),
    "sum of the squared deviations of each column from its mean",
    verified=False,
)


def _measure_columns(job: StageJob) -> ColumnsRecord:
    """Store the mean and squared deviation of every column; return columns without effect.

    Every chunk is read, so that a missing or damaged chunk, a NaN, an unknown label, and weights
    that overflow or underflow are found before the long stages.
    """
    run, dataset = job.run, job.dataset
    reduction = Reduction("columns", _ColumnsPass, {"": ColumnStatistics}, run.layout)
    record = reduce_parts(run, dataset, job.engine, reduction)
    check_total_weight(record.weight, whole=True)
    total: ColumnStatistics = read_total(run, reduction)
    extreme = np.flatnonzero(~np.isfinite(total.squared_deviation))
    if len(extreme):
        raise DataError(
            f"the values of {column_name(dataset, extreme[0])} are too large to be squared in "
            "float64.",
            "Divide the column by its largest value.",
        )
    MEAN.write(run, total.mean)
    SQUARED_DEVIATION.write(run, total.squared_deviation)
    params, is_table = run.spec.params, dataset.schema is not None and not dataset.is_sparse
    unseen = unseen_columns(params.scale, total, centred=not dataset.is_sparse)
    if len(unseen):
        _warn_of_unseen(dataset, total, unseen)
    elif is_table and run.begun.scales == ("none",):
        _warn_of_scales(dataset, total.standard_deviation)
    groups = [] if dataset.schema is None else [[*each] for each in dataset.schema.groups]
    return ColumnsRecord(
        unseen=unseen.tolist(), groups=groups or None, sparse=dataset.is_sparse or None
    )


def _check_columns(context: FitContext) -> None:
    """Raise DataError unless the rows have targets to learn: numbers, or two classes."""
    dataset = context.dataset
    if context.spec.mode == "embed":
        return
    check_targets(dataset, dataset.target_names)
    if not dataset.of_numbers:
        check_classes(dataset.classes)
    elif dataset.of_labelled().n_rows < 2:
        raise DataError("X has n_samples = 1.", "Give at least two rows with targets.")
    else:
        _check_range(dataset)


def _check_range(dataset: Dataset) -> None:
    """Raise DataError if numeric targets differ, but by too little to be squared in float64."""
    labelled = dataset.of_labelled()
    first = labelled.take_targets(np.arange(min(labelled.n_rows, _FIRST_ROWS)))
    if np.all(np.ptp(first, axis=0) > _LEAST_RANGE):
        return
    whole = dataset.target_range()
    assert whole is not None
    assert dataset.target_names is not None
    for name, width in zip(dataset.target_names, whole[1] - whole[0], strict=True):
        if 0 < width < _LEAST_RANGE:
            raise DataError(
                f"{name} has values that differ by at most {width:.3g}, whose square underflows "
                "float64.",
                "Multiply the target by a large number, such as 1e200.",
            )


def check_targets(dataset: Dataset, target_names: tuple[str, ...] | None) -> None:
    """Raise DataError unless some rows have numeric targets of these names; None: labels."""
    if target_names is None and (dataset.y is None or dataset.of_numbers):
        has = "numeric targets, not labels" if dataset.y is not None else "no labels"
        raise DataError(
            f"{dataset.location} has {has}.",
            "Name the labels: a column of a table as `label`, a member of an .npz file or the path "
            "of an .npy file as `y`.",
        )
    if target_names is not None and dataset.target_names != target_names:
        labels = "labels" if dataset.y is not None else "none"
        found = labels if dataset.target_names is None else ", ".join(dataset.target_names)
        raise DataError(
            f"the targets of {dataset.location} are {found}, but the network predicts "
            f"{', '.join(target_names)}.",
            f"Write the rows again with {', '.join(target_names)} as `target`.",
        )
    if dataset.n_rows == dataset.n_unlabelled:
        raise DataError(
            f"no row of {dataset.location} has a label or a numeric target.",
            "Give some rows with a label or targets.",
        )


def check_classes(classes: NDArray[Any]) -> None:
    """Raise DataError unless there are at least two classes."""
    if len(classes) < 2:
        only = f"1 class only: {classes.tolist()[0]!r}" if len(classes) else "no label in any row"
        raise DataError(f"y has {only}.", "Give rows of at least two classes.")


def read_statistics(run: Run) -> ColumnStatistics:
    """Return the column statistics of all rows, including rows without labels."""
    return ColumnStatistics(run.attributes["n_rows"], MEAN.read(run), SQUARED_DEVIATION.read(run))


def read_scaling(run: Run, scale: str | None = None) -> Scaling:
    """Return a scaling of the columns of a run, by default that of its parameters."""
    scale, columns = scale or run.spec.params.scale, COLUMNS.recorded(run)
    if scale == LEARNED:
        return weighted(read_scaling(run, METRIC.recorded(run).start), ROOT.read(run))
    groups = [(start, stop) for start, stop in columns.groups or ()]
    scaling = Scaling.from_statistics(
        scale, read_statistics(run), groups, centred=not columns.sparse
    )
    if scale != RANK or not RANKS.recorded(run).n_ranked:
        return scaling
    return scaling.with_ranks(RankLines(RANKED.read(run), KNOTS.read(run), SCORES.read(run)))


def weighted(scaling: Scaling, root: Floats) -> Scaling:
    """Return the scaling by learned weights, by their square roots, on top of another."""
    return replace(scaling, kind=LEARNED, root=root)


def column_name(dataset: Dataset, column: int) -> str:
    """Return the name of a column in messages."""
    names = dataset.feature_names
    return f"column {column}" if names is None else f"column {names[column]!r}"


def _warn_of_unseen(
    dataset: Dataset, statistics: ColumnStatistics, unseen: NDArray[np.intp]
) -> None:
    described = [
        f"{column_name(dataset, column)} (mean {statistics.mean[column]:.3g}, "
        f"deviation {statistics.standard_deviation[column]:.1g})"
        for column in unseen[:_NAMED]
    ]
    logger.warning(
        "distances in float64 do not see the changes of %d columns: %s. Leave such columns out, "
        "subtract their means beforehand, or scale them",
        len(unseen),
        ", ".join(described),
    )


def _warn_of_scales(dataset: Dataset, deviations: Floats) -> None:
    """Warn of columns that hardly change distances because others have far larger numbers."""
    varying = np.flatnonzero(deviations > 0)
    small = varying[deviations[varying] * _UNLIKE < deviations.max()]
    if len(small) < _UNLIKE_SHARE * max(len(varying), 1):
        return
    most, least = int(deviations.argmax()), int(small[deviations[small].argmin()])
    advice = Advice(
        f"the deviation of {column_name(dataset, most)} is {deviations[most]:.3g}, and of "
        f"{column_name(dataset, least)} {deviations[least]:.3g}: the columns with large numbers "
        "decide the distances. Use `scale`='standard', unless all columns have one unit"
    )
    logger.warning("%s", advice)


class _ColumnsPass:
    """Statistics of the columns of a part, whose values are finite."""

    def __init__(self, run: Run, dataset: Dataset, start: int, stop: int) -> None:
        self.reading = RowReading(
            block_rows=narrow_block_rows(dataset.row_values), weighting=RowWeights(None)
        )
        self._statistics = ColumnStatistics.zeros(dataset.n_features)

    def add(self, block: FoldedBlock) -> None:
        check_finite(block.X, first_row=block.start)
        self._statistics += ColumnStatistics.from_block(block.X)

    def sums(self) -> Sums:
        return {"": self._statistics}


def _columns_cost(s: FitSizes) -> StageCost:
    rows = narrow_block_rows(s.row_values)
    return StageCost(
        read_bytes=s.rows_bytes,
        held_bytes=s.held(8 * (3 * rows * s.width + 8 * s.p)),
        n_tasks=s.layout.n_parts,
    )


COLUMNS = Stage(
    name="columns",
    compute=_measure_columns,
    record=ColumnsRecord,
    arrays=(MEAN, SQUARED_DEVIATION),
    cost=_columns_cost,
    check=_check_columns,
)


# Rows of the sample that gives ranks, fewer where they are wide: 128 MiB of float64.
_RANKED_ROWS, _FEWEST_RANKED, _RANKED_ELEMENTS = 100_000, 1000, 2**24

# A tuning tries ranks if one column correlates with its scores by less. The values of a uniform
# distribution do so by 0.977, those of an exponential one by 0.903.
_UNLIKE_SCORES = 0.95


@dataclass(frozen=True, kw_only=True)
class RanksRecord(StageRecord):
    """The numbers of rows in the sample and of ranked columns.

    correlation: the least one of a column with its scores; None without ranked columns.
    """

    n_rows: int
    n_ranked: int
    correlation: float | None = None

    @property
    def differ(self) -> bool:
        """Whether the scores of a column are not almost proportional to its values."""
        return self.correlation is not None and self.correlation < _UNLIKE_SCORES


RANKED = RunArray("ranks/columns", ("ranked",), "columns that have scores of ranks")
KNOTS = RunArray("ranks/knots", ("ranked", "knot"), "values of ranked columns")
SCORES = RunArray("ranks/scores", ("ranked", "knot"), "normal scores of the knots")


def _rank_columns(job: StageJob) -> RanksRecord:
    """Store lines from the values of columns to the normal scores of their ranks."""
    record = run_task(job.engine, _write_lines, job.run, job.dataset, label="ranks")
    logger.info("ranks: %s", in_words(record.to_dict()))
    return record


def _ranked_rows(n_rows: int, n_features: int) -> int:
    """Return the number of rows of the sample of a table that gives ranks."""
    return min(n_rows, _RANKED_ROWS, max(_FEWEST_RANKED, _RANKED_ELEMENTS // n_features))


def _write_lines(run: Run, dataset: Dataset) -> RanksRecord:
    """Write the lines of drawn rows.

    Only the first feature of a column of a table has a line: sines and cosines of dates belong
    together. Columns that vary by rounding alone have none.
    """
    size = _ranked_rows(dataset.n_rows, dataset.n_features)
    X = dataset.take(drawn_rows(dataset.n_rows, size, run.spec.params.random_state))
    firsts: Iterable[int] = range(X.shape[1])
    if dataset.schema is not None:
        firsts = [start for start, _ in dataset.schema.spans]
    left_out = {*unseen_columns(RANK, read_statistics(run)).tolist()}
    found = {each: Line.through(X[:, each]) for each in firsts if each not in left_out}
    lines = {column: line for column, line in found.items() if line is not None}
    if not lines:
        return RanksRecord(n_rows=size, n_ranked=0)
    ranks = RankLines.of(lines)
    RANKED.write(run, ranks.columns)
    KNOTS.write(run, ranks.knots)
    SCORES.write(run, ranks.scores)
    least = min(line.correlation for line in lines.values())
    return RanksRecord(n_rows=size, n_ranked=len(lines), correlation=least)


def _ranks_cost(s: FitSizes) -> StageCost:
    rows = _ranked_rows(s.n, s.p)
    # One column is sorted in float64, with its counts, shares and scores; the lines of all columns,
    # which are stacked and written.
    sorting = 8 * 12 * rows + 4 * 8 * min(rows, N_KNOTS) * s.p
    return StageCost(
        read_bytes=s.rows_bytes,
        held_bytes=s.held(2 * rows * s.p * s.dataset.dtype.itemsize + sorting),
        # A sort of a column of 100,000 rows takes some 20 ms.
        other_s=(5e-4 + 2e-7 * rows) * s.p,
    )


def _check_dense(context: FitContext, scale: str) -> None:
    """Raise ParameterError if a scale of arrays is tried on sparse rows."""
    if context.dataset.is_sparse and scale in context.spec.scales:
        name = "scale" if context.spec.params.scale == scale else "scales"
        raise ParameterError(
            f"`{name}`={scale} needs dense rows, but X is sparse.",
            f"Set `{name}` to none, standard or unit; or give X as an array.",
        )


RANKS = Stage(
    name="ranks",
    compute=_rank_columns,
    record=RanksRecord,
    arrays=(RANKED, KNOTS, SCORES),
    cost=_ranks_cost,
    wanted=lambda spec: not {RANK, LEARNED}.isdisjoint(spec.scales),
    # Zeros would get other scores.
    check=lambda context: _check_dense(context, RANK),
    remedy=lambda params: (
        "Give `scale`=standard"
        if params.scale in (RANK, LEARNED)
        else f"Give `scales` without {RANK} and {LEARNED}"
    ),
)


# The group of the rounds, which is deleted after the weights are stored.
_ROUNDS = "metric-rounds"

# Rows of the sample, fewer where they are wide: 256 MiB of float64.
_MOST_ROWS, _FEWEST_ROWS, _SAMPLE_ELEMENTS = 6000, 1000, 2**25
_MOST_BASIS, _FEW_BASIS = 512, 250

# One fold is held out, because the error on rows that weights were learned from is too small.
_HELD_OUT = 0

# Rows that choose the first width, with `_FEW_BASIS` basis rows.
_FEW_ROWS = 2500

# Rows whose derivatives are the weights of the next round.
_GRADIENT_ROWS = 5000

# Share of the error that may be gained by chance with one held-out row; n rows: over sqrt(n).
_CHANCE = 0.5

# The rounds end after this many rounds without a gain.
_PATIENCE = 2

_RIDGES = tuple(Ridge("weights", 10.0**-power) for power in range(1, 8))
_FACTORS = {
    "gaussian": (0.2, 0.35, 0.5, 0.75, 1.0, 1.5),
    "laplacian": (0.5, 1.0, 2.0, 4.0, 8.0),
    "laplace-l1": (0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
}

# Width factors of later rounds, times the best of the round before.
_STEPS = (0.5, 1.0, 2.0)

# Number of columns that the run records.
_RECORDED = 20


@dataclass(frozen=True, kw_only=True)
class MetricRecord(StageRecord):
    """All rounds, the number of the round that is used, and the largest weights by column.

    start: the scale that the weights multiply.
    """

    rounds: list[dict[str, Any]]
    kept: int
    heaviest: dict[str, float]
    start: str = "standard"
    # Why no weights were learned.
    stopped: str | None = None


ROOT = RunArray(
    "metric/root", ("feature",), "square root of the learned weight of each column", verified=False
)


def _learn_weights(job: StageJob) -> MetricRecord:
    """Store the square roots of the weights of the features; return the rounds and the kept one.

    In every round the best network of the sample is found with the weights of the round before,
    and its squared derivatives become the weights of the next (recursive feature machines of
    Radhakrishnan, Beaglehole, Pandit and Belkin, Science, 2024).
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    # The search needs about as much time.
    stopped = OVERTIME if 2 * job.needed_s > job.left_s() else None
    kinds, start = [] if stopped else _kernels_of(run.begun), "standard"
    if kinds and RANKS.recorded(run).differ:
        start = run_task(engine, _best_start, run, dataset, kinds[0], label="metric")
    units = [(kernels, start) for kernels in kinds]
    parts = map_parts(run, dataset, engine, stage=_ROUNDS, task=_learn, units=units)
    rounds = [each for part in parts for each in part["rounds"]]
    for number, each in enumerate(rounds):
        logger.info("metric: round %d, %s", number, in_words(each))
    kept, root = 0, np.ones(dataset.n_features)
    learned = [place for place, part in enumerate(parts) if part["kept"]]
    if learned:
        roots = [run.read_part(_ROUNDS, place, "roots")[parts[place]["kept"]] for place in learned]
        best = run_task(engine, _best_root, run, dataset, roots, start, label="metric")
        root, place = roots[best], learned[best]
        kept = sum(len(part["rounds"]) for part in parts[:place]) + parts[place]["kept"]
    ROOT.write(run, root)
    scaling, names = read_scaling(run, start), dataset.feature_names
    heaviest = heaviest_columns(root**2, scaling, dataset.schema, names, _RECORDED)
    named = ", ".join(f"{name} {weight:.3g}" for name, weight in [*heaviest.items()][:_NAMED])
    n_unused = np.count_nonzero(root**2 <= 2 * LEAST_WEIGHT)
    weights = f"weights of round {kept} on {start}, the heaviest {named}"
    weights += f"; {n_unused} columns without effect"
    equal = f"not learned: {stopped}" if stopped else "not learned: any gain may be chance"
    logger.info("metric: %s", weights if kept else equal)
    return MetricRecord(rounds=rounds, kept=kept, heaviest=heaviest, start=start, stopped=stopped)


def _kernels_of(spec: Spec) -> list[list[str]]:
    """Return the kernels with learned weights, one list for each kind of distances.

    A kernel that is worse at first may be better in the end: on 45 columns of noise next to 5 with
    interactions, l1 distances do better at first but learn only three columns. A quick tuning
    learns from Euclidean distances, if a tried kernel has them.
    """
    kinds = sorted({kernel_named(name).l1 for name in spec.kernels})
    if spec.is_quick:
        kinds = kinds[:1]
    return [[name for name in _FACTORS if kernel_named(name).l1 == kind] for kind in kinds]


def _best_round(rounds: list[dict[str, Any]], figure: str, n_held_out: int) -> int:
    """Return the round with the least loss of held-out rows.

    Round 0, with equal weights, stays unless the gain of another round is more than chance.
    """
    figures = [each[figure] for each in rounds]
    if not figures:
        return 0
    gained = 1 - min(figures) / figures[0] if figures[0] > 0 else 0.0
    return figures.index(min(figures)) if gained > _CHANCE / math.sqrt(n_held_out) else 0


def sample_size(n_rows: int, n_features: int) -> int:
    """Return the number of rows of the sample of a table."""
    return min(n_rows, _MOST_ROWS, max(_FEWEST_ROWS, _SAMPLE_ELEMENTS // n_features))


def sample_basis(n_rows: int) -> int:
    """Return the largest number of basis rows of a sample; a quarter of a small sample."""
    return min(_MOST_BASIS, max(n_rows // 4, min(_FEW_BASIS, -(-n_rows // 2))))


def _tables(run: Run, dataset: Dataset) -> tuple[SmallTable, SmallTable]:
    """Return the rows that judge column weights, and fewer of them that choose a first width."""
    size = sample_size(dataset.n_rows, dataset.n_features)
    sample = TrialRows.drawn(dataset, run.spec, size)
    table = sample.table(dataset, sample.basis(sample_basis(size)), size, size)
    return table, sample.table(dataset, sample.basis(_FEW_BASIS), _FEW_ROWS, size)


def _firsts(kernels: list[str]) -> list[SmallNetwork]:
    return [
        SmallNetwork(kernel, factor, False, _RIDGES)
        for kernel in kernels
        for factor in _FACTORS[kernel]
    ]


def _best_start(run: Run, dataset: Dataset, kernels: list[str]) -> str:
    """Return the scale with the best network of a few rows; "standard" if rank gains by chance."""
    _, few = _tables(run, dataset)
    firsts = {
        scale: _best(few, read_scaling(run, scale), _firsts(kernels))
        for scale in ("standard", RANK)
    }
    if firsts[RANK] is None or firsts["standard"] is None:
        return "standard" if firsts[RANK] is None else RANK
    weights = few.weights[few.folds == _HELD_OUT]
    standard, ranked = (
        JudgedRows(each.losses, weights / weights.sum()) for each in firsts.values() if each
    )
    return "standard" if standard.is_close_to(ranked) else RANK


def _best_root(run: Run, dataset: Dataset, roots: list[Floats], start: str) -> int:
    """Return the place of the weights with which the best network of any kernel has the least loss.

    The networks that learned weights differ in their distances, so their losses say less.
    """
    if len(roots) == 1:
        return 0
    table, few = _tables(run, dataset)
    losses = []
    for root in roots:
        scaling, of_root = weighted(read_scaling(run, start), root), []
        for kernels in _kernels_of(run.begun):
            best = _best(few, scaling, _firsts(kernels))
            best = best and _best(table, scaling, _near(best.network))
            of_root.append(best.loss if best else math.inf)
        losses.append(min(of_root))
    return losses.index(min(losses))


def _near(network: SmallNetwork) -> list[SmallNetwork]:
    """Return the network with widths next to its own."""
    return [replace(network, width_factor=network.width_factor * step) for step in _STEPS]


def _learn(run: Run, dataset: Dataset, kernels: list[str], start: str) -> PartResult:
    """Return the rounds of kernels with the same kind of distances, and the roots of each round."""
    unweighted = read_scaling(run, start)
    table, few = _tables(run, dataset)
    seen = np.flatnonzero(table.folds != _HELD_OUT)
    n_held_out = len(table.folds) - len(seen)
    learned_from = table.take(seen[:_GRADIENT_ROWS])
    figures, root = figures_of(of_numbers=dataset.of_numbers), np.ones(dataset.n_features)
    rounds: list[dict[str, Any]] = []
    roots: list[Floats] = []
    most = run.spec.params.most_rounds + 1 if n_held_out and len(seen) else 0
    best = _best(few, weighted(unweighted, root), _firsts(kernels)) if most else None
    for number in range(most):
        if best is None:
            break
        if number:
            root = learned_root(learned_from, best.features, best.weights)
        best = _best(table, weighted(unweighted, root), _near(best.network))
        if best is None:
            break
        entry = {name: each for name, each in best.entry.items() if name in ("alpha", *figures)}
        factor = best.network.width_factor
        rounds.append({"kernel": best.network.kernel, "width_factor": factor, **entry})
        roots.append(root)
        if number - _best_round(rounds, figures[0], n_held_out) == _PATIENCE:
            break
    kept = _best_round(rounds, figures[0], n_held_out)
    return PartResult({"rounds": rounds, "kept": kept}, {"roots": np.array(roots)})


def _best(table: SmallTable, scaling: Scaling, networks: Sequence[SmallNetwork]) -> Trial | None:
    """Return the trial with the least loss; None if all systems are singular."""
    trials = try_side_by_side(table, scaling, networks)
    return min(filter(None, trials), key=lambda each: each.loss, default=None)


def _metric_cost(s: FitSizes) -> StageCost:
    """Return the cost; networks run side by side in the rounds of one task."""
    rows = sample_size(s.n, s.p)
    r = sample_basis(rows)
    learning = _kernels_of(s.spec)
    n_firsts = [sum(len(_FACTORS[kernel]) for kernel in kernels) for kernels in learning]
    n_rounds = len(learning) * s.spec.params.most_rounds
    n_tried = sum(n_firsts) + len(_STEPS) * n_rounds
    # Few rows of both scales that weights may multiply, with networks of the first kind.
    few, b, n_starts = min(rows, _FEW_ROWS), min(r, _FEW_BASIS), 2 * n_firsts[0]
    gradients = n_rounds * min(rows, _GRADIENT_ROWS) * 2 * (s.q + 2) * r * s.p
    sample_bytes = rows * (s.p * s.dataset.dtype.itemsize + 3 * 8)
    own = trial_bytes(r, s.q, n_networks=max(n_firsts))
    products = n_tried * rows * (r**2 + 2 * r * s.p) + n_starts * few * (b**2 + 2 * b * s.p)
    systems = {r: SINGLE * n_tried * len(_RIDGES)}
    systems[b] = systems.get(b, 0.0) + SINGLE * n_starts * len(_RIDGES)
    return StageCost(
        products=SINGLE * products + gradients,
        systems=systems,
        exponentials=SINGLE * ((n_tried + n_rounds) * rows * r + n_starts * few * b),
        held_bytes=s.held(
            4 * sample_bytes
            + own
            + concurrent_bytes(s.search.threads, own)
            + 8 * block_rows(r) * (2 * r + 8 * s.p)
        ),
        n_tasks=len(learning),
    )


def _check_metric(context: FitContext) -> None:
    """Raise ParameterError if no weights can be learned: from sparse rows, or without targets."""
    _check_dense(context, LEARNED)
    if context.spec.mode == "embed":
        raise ParameterError(
            "`scale`=learned needs targets, but an embedding has none.",
            "Set `scale` to none, standard, rank or unit.",
        )


METRIC = Stage(
    name="metric",
    compute=_learn_weights,
    record=MetricRecord,
    arrays=(ROOT,),
    cost=_metric_cost,
    wanted=lambda spec: LEARNED in spec.scales,
    check=_check_metric,
    labelled_only=True,
    scratch=(_ROUNDS,),
    remedy=lambda params: (
        "Give `scale`=standard" if params.scale == LEARNED else f"Give `scales` without {LEARNED}"
    ),
)
