"""Stage "metric": the weight of every feature in distances, learned on a sample."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.folds import folds_of_rows
from dask_nrbfn.numeric.gradients import LEAST_WEIGHT, heaviest_features
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.scaling import LEARNED, Scaling
from dask_nrbfn.numeric.small_fit import SmallNetwork, best_place, learned_root, try_bytes
from dask_nrbfn.numeric.threads import blas_threads, side_by_side
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.stages.bases import Chosen
from dask_nrbfn.stages.columns import column_name, unlearned_scaling
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.sample import (
    judged_sums,
    read_sample,
    tried_bytes,
    try_side_by_side,
    trying_bytes,
    write_rows,
)
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import Trials
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Prefix of the groups that are deleted after the weights are stored: the sample and the rounds.
_SCRATCH = "metric-"
_SAMPLE, _ROUND = f"{_SCRATCH}sample", f"{_SCRATCH}round-"

# Rows of the sample, fewer where they are wide: 256 MiB of float64.
_MOST_ROWS, _FEWEST_ROWS, _SAMPLE_ELEMENTS = 20_000, 1000, 2**25
_MOST_BASIS = 1000

# One fold is held out, because the error on rows that weights were learned from is too small.
_N_FOLDS, _HELD_OUT = 5, 0

# Share of the error that may be gained by chance with one held-out row; n rows: over sqrt(n).
_CHANCE = 0.5

# The rounds end after this many rounds without a gain.
_PATIENCE = 2

_ALPHAS = tuple(10.0**-power for power in range(3, 10))
_FACTORS = {
    "gaussian": (0.2, 0.35, 0.5, 0.75, 1.0, 1.5),
    "laplacian": (0.5, 1.0, 2.0, 4.0, 8.0),
    "laplace-l1": (0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
}

# Width factors of later rounds, times the best of the round before.
_STEPS = (0.5, 1.0, 2.0)

# Fields that a round keeps of its best network.
_NETWORK = ("kernel", "width_factor", "alpha")

# Number of columns that the log names, and that the run records.
_NAMED, _RECORDED = 5, 20


@dataclass(frozen=True)
class MetricRecord:
    """The results of every round.

    rounds: the best network of each round, and the figures of held-out rows. The first round of
        each kind of distances has equal column weights.
    kept: the round whose column weights the fit uses.
    heaviest: names and weights of the twenty columns with the largest weights, the largest first.
    unused: columns without effect on the scores.
    """

    rounds: list[dict[str, Any]]
    kept: int
    heaviest: dict[str, float]
    unused: list[int]
    n_rows: int
    n_held_out: int
    n_basis: int


def _compute(job: StageJob) -> MetricRecord:
    """Store the square roots of the weights of the features.

    In every round the best network of the sample is found with the weights of the round before,
    and its squared derivatives become the weights of the next (recursive feature machines of
    Radhakrishnan, Beaglehole, Pandit and Belkin, Science, 2024).
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    sample = run_task(engine, _write_sample, run, dataset, label="metric")
    rounds = _rounds(job, sample["n_held_out"]) if sample["n_held_out"] else []
    kept = _best_round(rounds, dataset, sample["n_held_out"])
    root = _root(run, kept, rounds[kept]["kernel"]) if kept else np.ones(dataset.n_features)
    write_array(run.group("metric"), "root", root, "feature")
    unused = np.flatnonzero(root**2 <= 2 * LEAST_WEIGHT).tolist() if kept else []
    heaviest = heaviest_features(root**2, dataset.feature_names, _RECORDED)
    _log_weights(dataset, kept, heaviest, unused)
    return MetricRecord(rounds, kept, heaviest, unused, **sample)


def _rounds(job: StageJob, n_held_out: int) -> list[dict[str, Any]]:
    """Return the best network of every round; no round if no network could be solved.

    Each kind of distances has its own rounds, because a kernel that is worse at first may be better
    in the end. On 45 columns of noise beside 5 with interactions, l1 distances do better at first
    but learn only three columns.
    """
    rounds: list[dict[str, Any]] = []
    for kernels in _learning(job.run.chosen_params, job.run.tuning):
        rounds += _rounds_of(job, kernels, n_held_out, first=len(rounds))
    return rounds


def _learning(params: FitParams, tuning: TuneParams | None) -> list[list[str]]:
    """Return the kernels with learned weights, one list for each kind of distances."""
    tried = {kernel_named(name).l1 for name in Trials(params, tuning).kernels}
    return [
        [name for name in _FACTORS if kernel_named(name).l1 == each]
        for each in (False, True)
        if each in tried
    ]


def _rounds_of(
    job: StageJob, kernels: list[str], n_held_out: int, *, first: int
) -> list[dict[str, Any]]:
    run, dataset = job.run, job.dataset
    judged = judged_sums(dataset)
    rounds: list[dict[str, Any]] = []
    for number in range(run.chosen_params.metric_rounds + 1):
        before = tuple(rounds[-1][name] for name in _NETWORK) if rounds else None
        stage = _stage_of(kernels[0], first + number)
        units = [(first + number, kernels, before)]
        (best,) = map_parts(run, dataset, job.engine, stage=stage, task=_round, units=units)
        if best[judged.smooth] is None:
            break
        rounds.append({name: best[name] for name in (*_NETWORK, *judged.compared)})
        _log_round(first + number, rounds[-1])
        if number - _best_round(rounds, dataset, n_held_out) == _PATIENCE:
            break
    return rounds


def _stage_of(kernel: str, number: int) -> str:
    """Return the name of the parts of a round; kinds of distances may share a number."""
    kind = "l1-" if kernel_named(kernel).l1 else ""
    return f"{_ROUND}{kind}{number}"


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


def _networks(
    kernels: list[str], before: tuple[str, float, float] | None
) -> list[tuple[str, float]]:
    """Return all kernels and widths, or the best kernel before with widths near its best."""
    if before is None:
        return [(kernel, each) for kernel in kernels for each in _FACTORS[kernel]]
    kernel, factor, _ = before
    return [(kernel, factor * step) for step in _STEPS]


def _write_sample(run: Run, dataset: Dataset) -> dict[str, Any]:
    """Store the rows of the sample, and a basis of distinct rows that are not held out."""
    group, seed = run.group(_SAMPLE), run.chosen_params.random_state
    size = sample_size(dataset.n_rows, dataset.n_features)
    rows = write_rows(group, "", dataset, run.chosen_params, size)
    X = run.read(f"{_SAMPLE}/X")
    seen = np.flatnonzero(folds_of_rows(0, size, n_folds=_N_FOLDS, seed=seed) != _HELD_OUT)
    _, distinct = np.unique(hash_rows(X[seen], seed=seed), return_index=True)
    # Drawn by number: units of the columns do not matter.
    order = np.random.default_rng(seed).permutation(np.sort(distinct))
    places = np.sort(seen[order[: sample_basis(size)]])
    write_array(group, "basis_values", X[places], "basis", "feature")
    write_array(group, "basis_rows", rows[places], "basis")
    return {
        "n_rows": size,
        "n_held_out": size - len(seen) if len(seen) else 0,
        "n_basis": len(places),
    }


def sample_size(n_rows: int, n_features: int) -> int:
    """Return the number of rows of the sample of a table."""
    return min(n_rows, _MOST_ROWS, max(_FEWEST_ROWS, _SAMPLE_ELEMENTS // n_features))


def sample_basis(n_rows: int) -> int:
    """Return the largest number of basis rows of a sample; half of a small sample."""
    return min(_MOST_BASIS, -(-n_rows // 2))


def _root(run: Run, number: int, kernel: str) -> Floats:
    """Return the square roots of the weights of a round, whose best network has this kernel."""
    root: Floats = run.read_part(_stage_of(kernel, number), 0, "root")
    return root


def _scaling(run: Run, root: Floats) -> Scaling:
    return replace(unlearned_scaling(run, LEARNED), root=root)


def _small_network(kernel: str, width_factor: float, alphas: Sequence[float]) -> SmallNetwork:
    ridges = tuple(Ridge("weights", alpha) for alpha in alphas)
    return SmallNetwork(kernel, width_factor, False, ridges)


def _round(
    run: Run,
    dataset: Dataset,
    number: int,
    kernels: list[str],
    before: tuple[str, float, float] | None,
) -> PartResult:
    """Learn weights with the best network of the last round; find the best network with them."""
    basis = Chosen(run.read(f"{_SAMPLE}/basis_values"), run.read(f"{_SAMPLE}/basis_rows"))
    sample = read_sample(run, _SAMPLE, basis, n_folds=_N_FOLDS, n_targets=dataset.n_targets)
    seen = sample.folds != _HELD_OUT
    sample = replace(sample, spread=sample.X[seen], spread_weights=sample.weights[seen])
    root = np.ones(dataset.n_features)
    if before is not None:
        kernel, width_factor, alpha = before
        root = learned_root(
            sample.take(seen),
            _scaling(run, _root(run, number - 1, kernel)),
            _small_network(kernel, width_factor, [alpha]),
            each=partial(side_by_side, at_once=1),
            threads=blas_threads(),
        )
    tried = _networks(kernels, before)
    entries = try_side_by_side(
        sample,
        _scaling(run, root),
        [_small_network(*each, _ALPHAS) for each in tried],
        held_out=(_HELD_OUT,),
        smoothly=True,
    )
    networks = [
        {"kernel": kernel, "width_factor": factor, **entry}
        for (kernel, factor), entry in zip(tried, entries, strict=True)
    ]
    place = best_place(networks, judged_sums(dataset).smooth)
    best = dict.fromkeys(networks[0]) if place is None else networks[place]
    return PartResult(best, {"root": root})


def _log_round(number: int, best: dict[str, Any]) -> None:
    said = [f"{name.replace('_', ' ')} {value}" for name, value in best.items()]
    logger.info("metric: round %d, %s", number, ", ".join(said))


def _log_weights(
    dataset: Dataset, kept: int, heaviest: dict[str, float], unused: list[int]
) -> None:
    if not kept:
        logger.info("metric: no learned weights do better than equal weights")
        return
    named = ", ".join(f"{name} {weight:.3g}" for name, weight in list(heaviest.items())[:_NAMED])
    logger.info("metric: weights of round %d, the heaviest %s", kept, named)
    if unused:
        named = ", ".join(column_name(dataset, column) for column in unused[:_NAMED])
        more = f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
        logger.info("metric: features without effect: %s%s", named, more)


def _cost(s: FitSizes) -> StageCost:
    """Return the cost; every round is one task, in which networks run side by side."""
    rows = sample_size(s.n, s.p)
    r = sample_basis(rows)
    learning = _learning(s.params, s.tuning)
    n_firsts = [sum(len(_FACTORS[kernel]) for kernel in kernels) for kernels in learning]
    n_rounds = len(learning) * s.params.metric_rounds
    n_tried = sum(n_firsts) + len(_STEPS) * n_rounds
    products = rows * (r**2 + 6 * r * s.p)
    gradients = n_rounds * rows * (r**2 + 2 * (s.q + 2) * r * s.p)
    solves = len(_ALPHAS) * r**3 / 3
    sample_bytes = rows * (s.p * s.itemsize + 3 * 8)
    return StageCost(
        products=n_tried * (products + solves) + gradients,
        exponentials=2 * (n_tried + n_rounds) * rows * r,
        read_bytes=(len(learning) + n_rounds) * sample_bytes,
        written_bytes=sample_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + 4 * sample_bytes
        + try_bytes(rows, r)
        + trying_bytes(max(n_firsts), tried_bytes(r, s.q, n_held_out=1, n_ridges=len(_ALPHAS)))
        + 8 * (block_rows(r) * (2 * r + 8 * s.p) + 4 * r * s.p),
    )


def _remedy(params: FitParams) -> str:
    asked = params.scale == LEARNED
    return "Give `scale`=standard" if asked else f"Give `scales` without {LEARNED}"


def _check(context: FitContext) -> None:
    """Raise ParameterError if no weights can be learned: from sparse rows, or without targets."""
    if context.dataset.is_sparse:
        name = "scale" if context.params.scale == LEARNED else "scales"
        raise ParameterError(
            f"`{name}`={LEARNED} needs dense rows, but X is sparse.",
            f"Set `{name}` to none, standard or unit; or give X as an array.",
        )
    if context.embeds:
        raise ParameterError(
            "`scale`=learned needs targets, but an embedding has none.",
            "Set `scale` to none, standard or unit.",
        )


METRIC = Stage(
    name="metric",
    record=MetricRecord,
    compute=_compute,
    cost=_cost,
    wanted=lambda params, tuning, numbers: LEARNED in Trials(params, tuning).scales,
    check=_check,
    labelled_only=True,
    needs=("columns",),
    passes=("metric/root",),
    scratch=(_SCRATCH,),
    remedy=_remedy,
)
