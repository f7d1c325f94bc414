"""Stages "columns" and "metric": statistics of the columns, and their learned weights."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import Advice, DataError, ParameterError
from dask_nrbfn.numeric.folds import FoldedBlock, folds_of_rows
from dask_nrbfn.numeric.gradients import LEAST_WEIGHT, heaviest_features
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.held_out import HeldOutSums, JudgedSums, ResidualSums
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.scaling import LEARNED, ColumnStatistics, Scaling, unseen_columns
from dask_nrbfn.numeric.small_fit import (
    SmallNetwork,
    SmallTable,
    TriedNetwork,
    best_place,
    learned_root,
    try_bytes,
    try_networks,
)
from dask_nrbfn.numeric.threads import blas_threads, concurrent_bytes, concurrent_map
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import PartResult, Reduction, Sums, map_parts, read_total, reduce_parts
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.bases import Chosen, TableRows
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.stage import OVERTIME, Stage, StageJob, StageRecord, in_words
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


def read_scaling(run: Run, scale: str | None = None, *, root: Floats | None = None) -> Scaling:
    """Return a scaling of the columns of a run, by default that of its parameters and its root."""
    scale, columns = scale or run.spec.params.scale, COLUMNS.recorded(run)
    groups = [(start, stop) for start, stop in columns.groups or ()]
    scaling = Scaling.from_statistics(
        scale, read_statistics(run), groups, centred=not columns.sparse
    )
    if scale != LEARNED:
        return scaling
    return replace(scaling, root=ROOT.read(run) if root is None else root)


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


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """The losses (2, n) of held-out rows, see `JudgedSums.losses`, and their shares (n,)."""

    losses: Floats
    shares: Floats

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.losses[0] @ self.shares)

    @property
    def smooth(self) -> float:
        """The mean smooth loss."""
        return float(self.losses[1] @ self.shares)

    def gains_over(self, other: "JudgedRows") -> tuple[Floats, Floats]:
        """Return by how much both mean losses (2,) are less than those of another network."""
        less = other.losses - self.losses
        gains = less @ self.shares
        # For n equal weights this is the unbiased variance, with the divisor n - 1.
        unbiased = math.sqrt(max(1.0 - float(self.shares @ self.shares), 0.0)) or 1.0
        return gains, np.linalg.norm(self.shares * (less - gains[:, None]), axis=1) / unbiased


def network_of(spec: Spec) -> SmallNetwork:
    """Return the network of the parameters, with all ridges that are tried but no locality."""
    params = spec.params
    return SmallNetwork(
        params.kernel,
        params.width_factor,
        params.normalized,
        tuple(spec.trying(localities=(0.0,)).ridges),
    )


def judged_sums(dataset: Dataset) -> type[JudgedSums]:
    """Return the class that sums errors on held-out rows of a sample."""
    return ResidualSums if dataset.of_numbers else HeldOutSums


def try_side_by_side(
    sample: SmallTable,
    scaling: Scaling,
    networks: Sequence[SmallNetwork],
    *,
    held_out: Sequence[int],
    **options: Any,
) -> list[TriedNetwork]:
    """Return the result of `try_networks`; some networks are tried at the same time."""
    own = tried_bytes(
        sample.basis.shape[0],
        sample.targets.n_targets,
        n_held_out=len(held_out),
        n_ridges=max(len(each.ridges) for each in networks),
    )
    each, threads = concurrent_map(own), blas_threads()
    return try_networks(
        sample, scaling, networks, held_out=held_out, each=each, threads=threads, **options
    )


def tried_bytes(n_basis: int, n_targets: int, *, n_held_out: int, n_ridges: int) -> int:
    """Return the bytes of a tried network: sums, systems, activations, weights and scores."""
    scores, rows = n_ridges * n_targets, block_rows(n_basis)
    return 8 * (
        (n_held_out + 7) * n_basis**2
        + rows * n_basis
        + 2 * max(n_held_out, 1) * scores * n_basis
        + 4 * rows * scores
    )


# The group of the rounds, which is deleted after the weights are stored.
_ROUNDS = "metric-rounds"

# Rows of the sample, fewer where they are wide: 256 MiB of float64.
_MOST_ROWS, _FEWEST_ROWS, _SAMPLE_ELEMENTS = 20_000, 1000, 2**25
_MOST_BASIS, _BASIS_OF_ONE_ROUND, _FEW_BASIS = 1000, 500, 250

# One fold is held out, because the error on rows that weights were learned from is too small.
_N_FOLDS, _HELD_OUT = 5, 0

# Share of the error that may be gained by chance with one held-out row; n rows: over sqrt(n).
_CHANCE = 0.5

# The rounds end after this many rounds without a gain.
_PATIENCE = 2

_RIDGES = tuple(Ridge("weights", 10.0**-power) for power in range(3, 10))
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
    """All rounds, the number of the round that is used, and the largest weights by column."""

    rounds: list[dict[str, Any]]
    kept: int
    heaviest: dict[str, float]
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
    kinds = _kernels_of(run.begun)
    # The search needs about as much time.
    stopped = OVERTIME if 2 * job.needed_s > job.left_s() else None
    units = [(kernels,) for kernels in ([[]] if stopped else kinds)]
    parts = map_parts(run, dataset, engine, stage=_ROUNDS, task=_learn, units=units)
    rounds = [each for part in parts for each in part["rounds"]]
    for number, each in enumerate(rounds):
        logger.info("metric: round %d, %s", number, in_words(each))
    kept = _best_round(rounds, dataset, parts[0]["n_held_out"])
    root = np.ones(dataset.n_features)
    if kept:
        roots = [run.read_part(_ROUNDS, part, "roots") for part in range(len(units))]
        root = np.concatenate(roots)[kept]
    ROOT.write(run, root)
    heaviest = heaviest_features(root**2, dataset.feature_names, _RECORDED)
    named = ", ".join(f"{name} {weight:.3g}" for name, weight in [*heaviest.items()][:_NAMED])
    n_unused = np.count_nonzero(root**2 <= 2 * LEAST_WEIGHT)
    weights = f"weights of round {kept}, the heaviest {named}; {n_unused} columns without effect"
    equal = f"not learned: {stopped}" if stopped else "not learned: any gain may be chance"
    logger.info("metric: %s", weights if kept else equal)
    return MetricRecord(rounds=rounds, kept=kept, heaviest=heaviest, stopped=stopped)


def _kernels_of(spec: Spec) -> list[list[str]]:
    """Return the kernels with learned weights, one list for each kind of distances.

    A kernel that is worse at first may be better in the end: on 45 columns of noise next to 5 with
    interactions, l1 distances do better at first but learn only three columns. A single round
    learns from Euclidean distances.
    """
    kinds = sorted({kernel_named(name).l1 for name in spec.kernels})[: spec.params.most_rounds]
    return [[name for name in _FACTORS if kernel_named(name).l1 == kind] for kind in kinds]


def _best_round(rounds: list[dict[str, Any]], dataset: Dataset, n_held_out: int) -> int:
    """Return the round with the smallest error on held-out rows.

    Round 0, with equal weights, stays unless the gain of another round is more than chance.
    """
    figures = [each[judged_sums(dataset).smooth] for each in rounds]
    if not figures:
        return 0
    kinds = [kernel_named(each["kernel"]).l1 for each in rounds]
    equal = min(figures[kinds.index(each)] for each in set(kinds))
    gained = 1 - min(figures) / equal if equal > 0 else 0.0
    return figures.index(min(figures)) if gained > _CHANCE / math.sqrt(n_held_out) else 0


def _draw_sample(run: Run, dataset: Dataset) -> SmallTable:
    """Return drawn rows with a basis of distinct rows; held-out rows decide no widths either."""
    size, seed = sample_size(dataset.n_rows, dataset.n_features), run.spec.params.random_state
    rows = TableRows.drawn(dataset, run.spec.params, size)
    folds = folds_of_rows(0, size, n_folds=_N_FOLDS, seed=seed)
    seen = np.flatnonzero(folds != _HELD_OUT)
    _, distinct = np.unique(hash_rows(rows.X[seen], seed=seed), return_index=True)
    # Drawn by number: units of the columns do not matter.
    order = np.random.default_rng(seed).permutation(np.sort(distinct))
    places = np.sort(seen[order[: sample_basis(size, run.spec.params.most_rounds)]])
    basis, targets = Chosen(rows.X[places], rows.numbers[places]), rows.targets_of(dataset)
    sample = rows.with_basis(basis, targets, folds, folds[places])
    return replace(sample, spread=rows.X[seen], spread_weights=rows.weights[seen])


def sample_size(n_rows: int, n_features: int) -> int:
    """Return the number of rows of the sample of a table."""
    return min(n_rows, _MOST_ROWS, max(_FEWEST_ROWS, _SAMPLE_ELEMENTS // n_features))


def sample_basis(n_rows: int, n_rounds: int) -> int:
    """Return the largest number of basis rows of a sample; a quarter of a small sample."""
    most = _MOST_BASIS if n_rounds > 1 else _BASIS_OF_ONE_ROUND
    return min(most, max(n_rows // 4, min(_FEW_BASIS, -(-n_rows // 2))))


def _learn(run: Run, dataset: Dataset, kernels: list[str]) -> PartResult:
    """Return the rounds of kernels with the same kind of distances, and the roots of each round."""
    sample = _draw_sample(run, dataset)
    seen = sample.take(sample.folds != _HELD_OUT)
    n_held_out = len(sample.y) - len(seen.y)
    judged, root = judged_sums(dataset), np.ones(dataset.n_features)
    tried = [(kernel, factor) for kernel in kernels for factor in _FACTORS[kernel]]
    rounds: list[dict[str, Any]] = []
    roots: list[Floats] = []
    best: TriedNetwork | None = None
    most = run.spec.params.most_rounds + 1 if kernels and n_held_out and len(seen.y) else 0
    for number in range(most):
        if best is not None:
            weights = best.of_folds[0].weights[0]
            root = learned_root(seen, best.features, weights, threads=blas_threads())
            last = rounds[-1]
            tried = [(last["kernel"], last["width_factor"] * step) for step in _STEPS]
        networks = [SmallNetwork(*each, False, _RIDGES) for each in tried]
        found = try_side_by_side(
            sample,
            read_scaling(run, LEARNED, root=root),
            networks,
            held_out=(_HELD_OUT,),
            smoothly=True,
        )
        place = best_place([each.entry for each in found], judged.smooth)
        if place is None:
            break
        best = found[place]
        kernel, factor = tried[place]
        figures = {name: best.entry[name] for name in ("alpha", *judged.compared)}
        rounds.append({"kernel": kernel, "width_factor": factor, **figures})
        roots.append(root)
        if number - _best_round(rounds, dataset, n_held_out) == _PATIENCE:
            break
    return PartResult({"rounds": rounds, "n_held_out": n_held_out}, {"roots": np.array(roots)})


def _metric_cost(s: FitSizes) -> StageCost:
    """Return the cost; networks run side by side in the rounds of one task."""
    rows = sample_size(s.n, s.p)
    r = sample_basis(rows, s.spec.params.most_rounds)
    learning = _kernels_of(s.spec)
    n_firsts = [sum(len(_FACTORS[kernel]) for kernel in kernels) for kernels in learning]
    n_rounds = len(learning) * s.spec.params.most_rounds
    n_tried = sum(n_firsts) + len(_STEPS) * n_rounds
    gradients = n_rounds * rows * 2 * (s.q + 2) * r * s.p
    sample_bytes = rows * (s.p * s.dataset.dtype.itemsize + 3 * 8)
    own = tried_bytes(r, s.q, n_held_out=1, n_ridges=len(_RIDGES))
    trying = try_bytes(rows, r) + own + concurrent_bytes(max(n_firsts), own)
    return StageCost(
        products=n_tried * rows * (r**2 + 6 * r * s.p) + gradients,
        systems={r: n_tried * len(_RIDGES)},
        exponentials=2 * (n_tried + n_rounds) * rows * r,
        held_bytes=s.held(4 * sample_bytes + trying + 8 * block_rows(r) * (2 * r + 8 * s.p)),
        n_tasks=len(learning),
    )


def _check_metric(context: FitContext) -> None:
    """Raise ParameterError if no weights can be learned: from sparse rows, or without targets."""
    if context.dataset.is_sparse:
        name = "scale" if context.spec.params.scale == LEARNED else "scales"
        raise ParameterError(
            f"`{name}`={LEARNED} needs dense rows, but X is sparse.",
            f"Set `{name}` to none, standard or unit; or give X as an array.",
        )
    if context.spec.mode == "embed":
        raise ParameterError(
            "`scale`=learned needs targets, but an embedding has none.",
            "Set `scale` to none, standard or unit.",
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
