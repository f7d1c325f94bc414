"""The end of a search: the choice of the basis size, and of a combination with that basis size.

Networks are compared row by row, because chance changes the difference of two networks on the same
held-out rows less than their error rates.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.numeric.small_fit import Entry, judge_network
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import PartResult, map_parts
from dask_nrbfn.stages.bases import MOST_FOUND, asked_size
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.components import most_components
from dask_nrbfn.stages.sample import bases_of_sample, judged_sums, network_of, read_sample
from dask_nrbfn.stages.stage import StageJob
from dask_nrbfn.stages.trials import Combination, Trials
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

# The best combinations are compared with at most this many basis rows. With 2,048 basis rows and
# 12,000 rows of the sample each network takes a second.
MOST_COMPARED = 2048

# Number of combinations that differ in more than the width, and factors of the best width.
_FINALISTS = 3
_STEPS = (1 / math.sqrt(2), math.sqrt(2))
N_COMPARED = _FINALISTS + 1 + len(_STEPS)

# Sizes that are tried at once; the last is the largest of --effort quick. Larger sizes double until
# a doubling gains nothing.
_FIRST_SIZES = tuple(2**power for power in range(4, 11))

# Up to this size a basis costs so little that only the error decides.
_CHEAP = 256

# Sampled rows for each row of the largest basis.
_ROWS_OF_BASIS_ROW = 2

# Held-out rows that are enough to compare networks. Fewer folds of a larger sample are held out.
_JUDGED_ROWS = 10_000

Asked = tuple[Combination, Sequence[int], dict[str, Any]]
"""A combination, sizes of the basis, and the penalties and alphas to try."""


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


@dataclass(frozen=True, eq=False)
class Final(JudgedRows):
    """A combination, and its entry of `judge_network` with "n_basis", with a basis of some size."""

    combination: Combination
    entry: Entry

    @property
    def n_basis(self) -> int:
        """Number of basis rows."""
        return int(self.entry["n_basis"])

    @property
    def record(self) -> dict[str, Any]:
        """The record of the search."""
        return asdict(self.combination) | self.entry


def best_of(finals: Sequence[Final]) -> Final:
    """Return the final with the smallest mean loss; of equal ones the first."""
    return min(finals, key=lambda each: each.loss)


def close_to_best(finals: Sequence[Final], best: Final, *, n_losses: int = 1) -> list[Final]:
    """Return the finals within one standard error of the best (Breiman et al. 1984, section 3.4).

    By the loss alone, or with `n_losses` of 2 also by the smooth loss.
    """
    close = []
    for each in finals:
        gains, errors = best.gains_over(each)
        if (gains <= errors)[:n_losses].all():
            close.append(each)
    return close


def smallest_of(curve: Sequence[Final]) -> Final:
    """Return the final with the smallest basis among those close to the best.

    Among bases of up to 256 rows the loss decides. Finals must also be close in the smooth loss,
    because a small basis harms probabilities before labels.
    """
    close = close_to_best(curve, best_of(curve), n_losses=2)
    return min(close, key=lambda each: (max(each.n_basis, _CHEAP), each.loss))


def winner_of(finals: Sequence[Final]) -> Final:
    """Return the final with the best probabilities among those close to the best.

    Equal column weights win unless learned weights gain more than the standard error.
    """
    close = close_to_best(finals, best_of(finals))
    equal = [each for each in close if each.combination.scale != LEARNED]
    return min(equal or close, key=lambda each: each.smooth)


def finalists(ordered: Sequence[Combination]) -> list[Combination]:
    """Return the best of ordered combinations of each kind, and one with equal column weights."""
    firsts: dict[tuple[str, str, str], Combination] = {}
    for each in ordered:
        firsts.setdefault((each.scale, each.features, each.kernel), each)
    kinds = [*firsts.values()]
    chosen, equal = kinds[:_FINALISTS], [each for each in kinds if each.scale != LEARNED]
    return chosen if not equal or equal[0] in chosen else [*chosen, equal[0]]


def widths_beside(best: Combination) -> list[Combination]:
    """Return a combination with a smaller and with a larger width."""
    factors = [float(f"{best.width_factor * step:.3g}") for step in _STEPS]
    return [replace(best, width_factor=factor) for factor in factors]


def largest_size(params: FitParams, tuning: TuneParams, dataset: Dataset, n_sampled: int) -> int:
    """Return the largest size of a basis that is tried on a sample."""
    if not Trials(params, tuning).chooses_size:
        return min(asked_size(params, dataset) or MOST_COMPARED, MOST_COMPARED)
    most = _FIRST_SIZES[-1] if tuning.effort == "quick" else MOST_FOUND
    return max(min(most, n_sampled // _ROWS_OF_BASIS_ROW), dataset.n_classes, 1)


def n_judged_folds(n_rows: int, n_folds: int) -> int:
    """Return the number of folds of a sample that are held out."""
    return min(n_folds, -(-n_folds * _JUDGED_ROWS // n_rows))


def judge(job: StageJob, stage: str, sample: str, asked: Sequence[Asked]) -> list[Final]:
    """Try combinations with bases of some sizes; leave out combinations with singular systems."""
    run = job.run
    units = [(sample, asdict(each), [*sizes], left) for each, sizes, left in asked]
    parts = map_parts(run, job.dataset, job.engine, stage=stage, task=_judge, units=units)
    weights, smooth = run.read(f"{sample}/weights"), judged_sums(job.dataset).smooth
    finals = []
    for place, ((combination, _, _), part) in enumerate(zip(asked, parts, strict=True)):
        all_losses = run.read_part(stage, place, "losses")
        for entry, losses in zip(part["entries"], all_losses, strict=True):
            seen = np.isfinite(losses[0])
            if entry[smooth] is not None:
                shares = weights[seen] / weights[seen].sum()
                finals.append(Final(losses[:, seen], shares, combination, entry))
    return finals


def _judge(
    run: Run,
    dataset: Dataset,
    sample: str,
    combination: dict[str, Any],
    sizes: list[int],
    left: dict[str, Any],
) -> PartResult:
    tuning = run.tuning
    assert tuning is not None
    params = replace(run.chosen_params, **combination)
    if Trials(params, tuning).chooses_size:
        params = replace(params, basis_size=max(sizes))
    scaling, entries, losses = read_scaling(run, params.scale), [], []
    asked = [(size, params.basis_rule) for size in sizes]
    for chosen in bases_of_sample(run, dataset, sample, params, asked):
        table = read_sample(run, sample, chosen, n_folds=tuning.folds, n_targets=dataset.n_targets)
        entry, scores = judge_network(
            table,
            scaling,
            network_of(params, replace(tuning, **left)),
            held_out=range(n_judged_folds(len(table.folds), tuning.folds)),
            n_components=most_components(run),
            threads=blas_threads(),
        )
        entries.append(entry | {"n_basis": len(chosen.rows)})
        losses.append(table.losses(scores, entry))
    return PartResult({"entries": entries}, {"losses": np.array(losses)})


def learning_curve(
    job: StageJob, stage: str, sample: str, best: Combination, left: dict[str, Any], most: int
) -> list[Final]:
    """Return the results of a combination with larger and larger bases, until no gain is left.

    Several for each size if the tuning compares bases. See `judge`; `left` is penalties and alphas.
    """
    tuning = job.run.tuning
    assert tuning is not None
    bases = Trials(job.run.chosen_params, tuning).sized_bases
    tried = [replace(best, basis=basis, basis_rule="uniform") for basis in bases]
    sizes = [size for size in _FIRST_SIZES if job.dataset.n_classes <= size < most]
    if not sizes or most <= _FIRST_SIZES[-1]:
        sizes.append(min(most, max(_FIRST_SIZES[-1], job.dataset.n_classes)))
    curve = judge(job, f"{stage}first", sample, [(each, sizes, left) for each in tried])
    size = 2 * sizes[-1]
    while curve and size <= most:
        larger = judge(job, f"{stage}{size}", sample, [(each, [size], left) for each in tried])
        if not larger:
            break
        gains, errors = best_of(larger).gains_over(best_of(curve))
        curve += larger
        if (gains <= errors).all():
            break
        size *= 2
    return curve
