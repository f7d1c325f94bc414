"""Stage "search": scale, basis, features, kernel and width, tried on a sample."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.eigenfunctions import eigenfunctions_bytes, eigenfunctions_flops
from dask_nrbfn.numeric.folds import folds_of_rows, places_among
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.ridge import components_bytes
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.numeric.small_fit import Entry, SmallNetwork, SmallTable, try_bytes, try_networks
from dask_nrbfn.numeric.threads import blas_threads, concurrent_bytes
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.spec import ALPHAS_NEXT, Combination, Spec
from dask_nrbfn.stages.bases import (
    MOST_FOUND,
    MOST_SCORED,
    Chosen,
    TableRows,
    bases_of_rows,
    requested_size,
    source_of,
)
from dask_nrbfn.stages.columns import (
    METRIC,
    JudgedRows,
    judged_sums,
    network_of,
    read_scaling,
    tried_bytes,
    try_side_by_side,
)
from dask_nrbfn.stages.context import FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.moments import most_components
from dask_nrbfn.stages.resolve import n_judged_folds
from dask_nrbfn.stages.stage import OVERTIME, Stage, StageJob, StageRecord, in_words
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Prefix of the groups that are deleted after the search.
_SCRATCH = "search-"
_SAMPLE, _BASES = f"{_SCRATCH}sample/", f"{_SCRATCH}bases"
_ROUND, _FINALS = f"{_SCRATCH}round-", f"{_SCRATCH}comparing-"

# Elements of the sample if the number of rows is not given, and the limits of that number. On
# 40,000 rows an error of 1 % is known to within 0.05 %.
_SAMPLE_ELEMENTS = 2**25
_MIN_SAMPLE_ROWS, _MAX_SAMPLE_ROWS = 20_000, 100_000

# How often the search refines widths that are not given.
_REFINEMENTS = {"quick": 1, "normal": 2, "thorough": 4}

# Prefix of the arrays with rows that are drawn from all rows, with or without labels.
_ALL = "all_"

# Successive halving (Jamieson & Talwalkar 2016): a third of the rows, half of the basis, every
# second alpha and a few folds are enough to leave out three of four combinations, until a few are
# left for all rows. These are the minimum numbers of rows, basis rows and held-out rows of a round:
# with fewer rows the errors would be mostly chance.
_FINALISTS, _KEPT_OF = 12, 4
_LESS_ROWS, _LESS_BASIS, _ALPHA_STEP = 3, 2, 2
_FEWEST_ROWS, _SMALLEST_BASIS, _FEWEST_JUDGED = 2000, 250, 500

# Later rounds try the best penalty of the last round, and this many alphas on either side of the
# best alpha; the finals more, because their basis may have another size.
_ALPHAS_OF_ROUNDS, _ALPHAS_OF_FINALS = 1, 2


def n_refinements(spec: Spec) -> int:
    """Return the number of times that the search refines widths; 0 if widths are given."""
    return 0 if spec.width_factors else _REFINEMENTS[spec.effort]


def search_rows(n_rows: int, row_values: float, spec: Spec) -> int:
    """Return the number of rows of the sample, at most all rows."""
    affordable = int(_SAMPLE_ELEMENTS / max(row_values, 1))
    default = max(_MIN_SAMPLE_ROWS, min(affordable, _MAX_SAMPLE_ROWS))
    return min(default if spec.search_rows is None else spec.search_rows, n_rows)


def search_basis_size(dataset: Dataset, params: FitParams, most: int) -> int:
    """Return the basis size of the search, at most the basis size of the fit and `most`."""
    size = requested_size(params, dataset) or dataset.n_rows
    return max(min(most, size, dataset.n_rows), dataset.n_classes)


class Round(NamedTuple):
    """The numbers of combinations, rows, basis rows and folds of one round."""

    n_tried: int
    n_rows: int
    n_basis: int
    n_folds: int


def planned_rounds(n_tried: int, n_rows: int, n_basis: int, n_folds: int) -> list[Round]:
    """Return the rounds of a search, the last on all rows."""
    sizes = [(n_rows, n_basis)]
    while n_tried > _FINALISTS * _KEPT_OF ** (len(sizes) - 1):
        rows, basis = sizes[0]
        less = max(rows // _LESS_ROWS, _FEWEST_ROWS), max(basis // _LESS_BASIS, _SMALLEST_BASIS)
        less = min(rows, less[0]), min(basis, less[1])
        if less == (rows, basis) and len(sizes) > 1:
            break
        sizes.insert(0, less)
    folds = [min(n_folds, -(-n_folds * _FEWEST_JUDGED // rows)) for rows, _ in sizes[:-1]]
    folds.append(n_judged_folds(n_rows, n_folds))
    return [
        Round(-(-n_tried // _KEPT_OF**number), *size, judged)
        for number, (size, judged) in enumerate(zip(sizes, folds, strict=True))
    ]


# The best combinations are compared with at most this many basis rows. Twice as many take four
# times as long.
_MOST_COMPARED = 1024

# Number of compared combinations that differ in more than the width; see `finalists`.
_N_KINDS = 3

# Sizes that are tried at once; the last is the largest of --effort quick. Larger sizes double until
# a doubling gains nothing.
_FIRST_SIZES = tuple(2**power for power in range(4, 11))

# Up to this size a basis costs so little that only the error decides.
_CHEAP = 256

# Most columns of a linear model, whose time grows with their square.
_MOST_LINEAR = 1000

# Sampled rows for each row of the largest basis.
_ROWS_OF_BASIS_ROW = 2

# Assignments of rows to centres, each as long as an exponential for every row and centre.
_MOVES = 12

Left = dict[str, Any]
"""The penalties and alphas of a tuning that are left to try with a combination."""

Trials = Sequence[tuple[Combination, Left]]
"""Combinations, each with the ridges that are left to try."""


@dataclass(frozen=True, eq=False)
class Final(JudgedRows):
    """A combination, and its entry of `try_networks` with "n_basis", with a basis of some size."""

    combination: Combination
    entry: Entry

    @property
    def n_basis(self) -> int:
        """Number of basis rows."""
        return int(self.entry["n_basis"])


def best_of(finals: Sequence[Final]) -> Final:
    """Return the final with the smallest mean loss; of equal ones the first."""
    return min(finals, key=lambda each: each.loss)


def close_to_best(finals: Sequence[Final], best: Final, *, n_losses: int = 1) -> list[Final]:
    """Return the finals within a standard error of the best (Breiman et al. 1984, section 3.4)."""
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
    chosen, equal = kinds[:_N_KINDS], [each for each in kinds if each.scale != LEARNED]
    return chosen if not equal or equal[0] in chosen else [*chosen, equal[0]]


def largest_size(spec: Spec, dataset: Dataset, n_sampled: int) -> int:
    """Return the largest size of a basis that is tried on a sample."""
    if not spec.chooses_size:
        return min(requested_size(spec.params, dataset) or _MOST_COMPARED, _MOST_COMPARED)
    most = _FIRST_SIZES[-1] if spec.effort == "quick" else MOST_FOUND
    return max(min(most, n_sampled // _ROWS_OF_BASIS_ROW), dataset.n_classes, 1)


def _judge(job: StageJob, stage: str, sizes: list[int], tried: Trials) -> list[Final]:
    """Try combinations with bases of some sizes; leave out combinations with singular systems."""
    run, smooth = job.run, judged_sums(job.dataset).smooth
    groups: dict[tuple[str, str, str], list[tuple[Combination, Left]]] = {}
    for each, left in tried:
        names = (each.scale, each.basis, each.basis_rule)
        groups.setdefault(names, []).append((each, left))
    units = [(sizes, group) for group in groups.values()]
    parts = map_parts(run, job.dataset, job.engine, stage=stage, task=_try_sizes, units=units)
    weights, finals = run.read(f"{_SAMPLE}weights"), []
    for place, (group, part) in enumerate(zip(groups.values(), parts, strict=True)):
        all_losses = run.read_part(stage, place, "losses")
        of_sizes = [each for each, _ in group] * len(sizes)
        for each, entry, losses in zip(of_sizes, part["tried"], all_losses, strict=True):
            seen = np.isfinite(losses[0])
            if entry[smooth] is not None:
                shares = weights[seen] / weights[seen].sum()
                finals.append(Final(losses[:, seen], shares, each, entry))
    return finals


def _learning_curve(job: StageJob, best: Combination, left: Left, most: int) -> list[Final]:
    """Return the results of a combination with larger and larger bases, until no gain is left."""
    spec = job.run.spec
    # Drawn bases are tried as long as they are close to the best.
    drawn = () if spec.effort == "quick" else ("random",)
    bases = dict.fromkeys((spec.params.basis, *drawn))
    tried = [(replace(best, basis=basis, basis_rule="uniform"), left) for basis in bases]
    sizes = [size for size in _FIRST_SIZES if job.dataset.n_classes <= size < most]
    cheap = max(_CHEAP, 2 * job.dataset.n_classes)
    sizes = [size for size in sizes if size <= cheap or job.left_s(size) > 0]
    if not sizes or (most <= _FIRST_SIZES[-1] and job.left_s(most) > 0):
        sizes.append(min(most, max(_FIRST_SIZES[-1], job.dataset.n_classes)))
    curve = _judge(job, f"{_FINALS}sizes", sizes, tried)
    largest = max((each.n_basis for each in curve), default=0)
    latest, size = [each for each in curve if each.n_basis == largest], 2 * sizes[-1]
    while latest and size <= most and job.left_s(size) > 0:
        tried = [
            (each.combination, _left_next_to(spec.alphas, each.entry, _ALPHAS_OF_ROUNDS))
            for each in close_to_best(latest, best_of(latest))
        ]
        latest, before = _judge(job, f"{_FINALS}size-{size}", [size], tried), best_of(curve)
        curve += latest
        if latest:
            gains, errors = best_of(latest).gains_over(before)
            if (gains <= errors).all():
                break
        size *= 2
    return curve


class _Search:
    """Rounds of trials, and the result of each combination in its last round."""

    def __init__(self, job: StageJob, bases: list[tuple[str, str]], n_rounds: int) -> None:
        self._job, self._bases, self._n_rounds = job, bases, n_rounds
        sums = judged_sums(job.dataset)
        self._compared, self._figures = sums.compared, (sums.compared[0], sums.smooth)
        self._alphas = job.run.spec.alphas
        self.judged: dict[Combination, dict[str, Any]] = {}

    def try_all(self, tried: list[Combination], size: Round, number: int) -> list[Combination]:
        """Try combinations in a round; return all, the best first, singular ones last."""
        job = self._job
        together: dict[tuple[str, str, str, str], list[Combination]] = {}
        for each in tried:
            names = (each.scale, each.basis, each.basis_rule, each.kernel)
            together.setdefault(names, []).append(each)
        units = [
            (self._bases.index(names[:2]), [(each, self._left(each)) for each in group], *size[1:])
            for names, group in together.items()
        ]
        stage = f"{_ROUND}{number + 1}-of-{self._n_rounds}"
        parts = map_parts(job.run, job.dataset, job.engine, stage=stage, task=_try, units=units)
        kept = (*asdict(tried[0]), *Ridge._fields, *self._compared)
        for group, part in zip(together.values(), parts, strict=True):
            for each, entry in zip(group, part["tried"], strict=True):
                found = asdict(each) | entry
                self.judged[each] = {name: found.get(name) for name in kept} | {"round": number}
        return sorted(tried, key=self._standing)

    def _left(self, combination: Combination) -> Left:
        """Return the alphas and penalties to try: those next to the best so far, if any."""
        if near := _left_next_to(self._alphas, self.judged.get(combination), _ALPHAS_OF_ROUNDS):
            return near
        descending = sorted(set(self._alphas), reverse=True)
        # The first of several rounds tries every second alpha.
        return {"alphas": descending[:: _ALPHA_STEP if self._n_rounds > 1 else 1]}

    @property
    def ordered(self) -> list[Combination]:
        """The combinations with a solution: from the last round to the first, the best first."""
        ordered = sorted(
            self.judged, key=lambda each: (-self.judged[each]["round"], *self._standing(each))
        )
        return [each for each in ordered if self.judged[each]["alpha"] is not None]

    def _standing(self, combination: Combination) -> list[float]:
        figures = [self.judged[combination][name] for name in self._figures]
        return [math.inf if figure is None else figure for figure in figures]


def _left_next_to(alphas: Sequence[float], judged: Mapping[str, Any] | None, n_next: int) -> Left:
    """Return the penalty of a network and alphas next to its alpha; empty without a solution."""
    if judged is None or judged["alpha"] is None:
        return {}
    descending = sorted(set(alphas), reverse=True)
    place = descending.index(judged["alpha"])
    near = descending[max(place - n_next, 0) : place + n_next + 1]
    return {"penalties": [judged["penalty"]], "alphas": [each for each in alphas if each in near]}


def _factors_next_to(factor: float, tried: Iterable[float]) -> list[float]:
    """Return the geometric means of a factor and its neighbours; at an end, a factor outside."""
    below = max((each for each in tried if each < factor), default=None)
    above = min((each for each in tried if each > factor), default=None)
    factors = [
        math.sqrt(factor * near) if near else factor**2 / (far or factor)
        for near, far in ((below, above), (above, below))
    ]
    return [float(f"{each:.3g}") for each in factors]


@dataclass(frozen=True, kw_only=True)
class SearchRecord(StageRecord):
    """The results of a search.

    tried: every combination with its figures in its last round. rounds: the sizes of each `Round`.
    curve, finals: combinations with bases of several sizes, and those compared at the end.
    linear: the loss of linear functions of the columns. stopped: why no other widths were tried.
    """

    tried: list[dict[str, Any]]
    rounds: list[dict[str, int]]
    curve: list[dict[str, Any]]
    finals: list[dict[str, Any]]
    n_rows: int
    n_basis: int
    linear: float | None = None
    stopped: str | None = None


def _run_search(job: StageJob) -> SearchRecord:
    """Try all combinations on a sample; return their results and the best."""
    run, dataset, engine, spec = job.run, job.dataset, job.engine, job.run.spec
    tried = _different(run)
    n_rows = run_task(engine, _write_sample, run, dataset, label="search")
    rules: dict[tuple[str, str], set[str]] = {}
    for each in tried:
        rules.setdefault((each.scale, each.basis), set()).add(each.basis_rule)
    units = [(*names, sorted(rules[names])) for names in rules]
    found = map_parts(run, dataset, engine, stage=_BASES, task=_choose_bases, units=units)
    n_basis = max(record["n_basis"] for record in found)
    rounds = planned_rounds(len(tried), n_rows, n_basis, spec.folds)
    search = _Search(job, [*rules], len(rounds))
    for number, size in enumerate(rounds):
        if number and job.left_s() < 0:
            break
        tried = search.try_all(tried[: size.n_tried], size, number)
        shown = "search: round %d of %d, %d combinations, %d rows, %d basis rows, %d folds"
        logger.info(shown, number + 1, len(rounds), *size)
    best = tried[0]
    curve, compared, winner, stopped = _finals(job, search, best, n_rows)
    if stopped:
        logger.info("search: ended: %s", stopped)
    chosen: dict[str, Any] = asdict(winner.combination if winner else best)
    if curve:
        chosen["basis_size"] = smallest_of(curve).n_basis
    logger.info("search: chosen: %s", in_words(chosen))
    left = winner.entry if winner else search.judged[best]
    return SearchRecord(
        tried=[*search.judged.values()],
        rounds=[size._asdict() for size in rounds],
        curve=[asdict(each.combination) | each.entry for each in curve],
        finals=[asdict(each.combination) | each.entry for each in compared],
        n_rows=n_rows,
        n_basis=n_basis,
        linear=_compare_linear(job, best_of([winner, *curve])) if winner else None,
        stopped=stopped,
        chosen=chosen,
        # The ridges that are left to try with the whole basis.
        narrowed=_left_next_to(spec.alphas, left, ALPHAS_NEXT),
    )


def _compare_linear(job: StageJob, winner: Final) -> float | None:
    """Return the loss of linear functions of the columns; warn if it is clearly less."""
    run, dataset, stage = job.run, job.dataset, f"{_FINALS}linear-model"
    if dataset.is_sparse or dataset.n_features > _MOST_LINEAR:
        return None
    map_parts(run, dataset, job.engine, stage=stage, task=_try_linear, units=[()])
    losses = run.read_part(stage, 0, "losses")
    linear = JudgedRows(losses[:, np.isfinite(losses[0])], winner.shares)
    gains, errors = linear.gains_over(winner)
    if gains[0] > 2 * errors[0]:
        logger.warning(
            "A linear model of the same columns does better on held-out rows: %s %.4g, that of the "
            "network is %.4g. Use the linear model, or tune with a greater effort if there is one.",
            judged_sums(dataset).compared[0].replace("_", " "),
            linear.loss,
            winner.loss,
        )
    return linear.loss


def _finals(
    job: StageJob, search: _Search, best: Combination, n_rows: int
) -> tuple[list[Final], list[Final], Final | None, str | None]:
    """Return the learning curve, the compared combinations, the best, and why no more are tried."""
    spec = job.run.spec
    size = min(largest_size(spec, job.dataset, n_rows), job.largest_basis())
    tried = [
        (each, _left_next_to(spec.alphas, search.judged[each], _ALPHAS_OF_FINALS))
        for each in finalists(search.ordered)
    ]
    curve: list[Final] = []
    if spec.chooses_size:
        left = _left_next_to(spec.alphas, search.judged[best], ALPHAS_NEXT)
        curve = _learning_curve(job, best, left, size)
        if not curve:
            return [], [], None, "singular systems"
        chosen = smallest_of(curve)
        size, sized = chosen.n_basis, chosen.combination
        tried = [
            (replace(each, basis=sized.basis, basis_rule=sized.basis_rule), left)
            for each, left in tried
        ]
    if job.left_s(size) < 0:
        return curve, [], smallest_of(curve) if curve else None, OVERTIME
    compared = _judge(job, f"{_FINALS}kinds", [min(size, _MOST_COMPARED)], tried)
    if not compared:
        return curve, [], None, "singular systems"
    winner, n_steps = winner_of(compared), n_refinements(spec)
    widths = {
        each.width_factor for each in search.judged if each.kernel == winner.combination.kernel
    }
    for step in range(n_steps):
        if job.left_s(size) < 0:
            return curve, compared, winner, OVERTIME
        left = _left_next_to(spec.alphas, winner.entry, _ALPHAS_OF_ROUNDS)
        factors = _factors_next_to(winner.combination.width_factor, widths)
        new = [(replace(winner.combination, width_factor=factor), left) for factor in factors]
        others = _judge(job, f"{_FINALS}widths-{step}", [winner.n_basis], new)
        compared += others
        widths.update(factors)
        better = best_of([winner, *others])
        if better is winner:
            return curve, compared, winner, "no width next to the best does better"
        winner = better
    limit = f"the limit of {plural(n_steps, 'refinement')} of the width"
    return curve, compared, winner, limit if n_steps else None


def _different(run: Run) -> list[Combination]:
    """Return the combinations, without learned weights that are all equal ("standard")."""
    tried = run.spec.combinations
    both = {LEARNED, "standard"} <= {each.scale for each in tried}
    if not both or METRIC.recorded(run).kept:
        return tried
    return [each for each in tried if each.scale != LEARNED]


def _write_sample(run: Run, dataset: Dataset) -> int:
    """Store the rows on which combinations are tried; return their number."""
    spec, group = run.spec, run.group(_SAMPLE)
    labelled = dataset.of_labelled()
    n_rows = search_rows(labelled.n_rows, dataset.row_values, spec)
    TableRows.drawn(labelled, spec.params, n_rows).write(group)
    if dataset.n_unlabelled:
        n_all = search_rows(dataset.n_rows, dataset.row_values, spec)
        TableRows.drawn(dataset, spec.params, n_all).write(group, _ALL)
    return n_rows


def _sample_with(run: Run, dataset: Dataset, basis: Chosen) -> SmallTable:
    """Return the stored sample with a basis of some of its rows."""
    rows, seed = TableRows.read(run, _SAMPLE), run.spec.params.random_state
    folds = folds_of_rows(0, len(rows.targets), n_folds=run.spec.folds, seed=seed)
    places = places_among(rows.numbers, basis.rows)
    basis_folds = np.where(places < 0, -1, folds[places])
    table = rows.with_basis(basis, rows.targets_of(dataset), folds, basis_folds)
    if not run.has(f"{_SAMPLE}{_ALL}X"):
        return table
    spread = TableRows.read(run, _SAMPLE + _ALL)
    return replace(table, spread=spread.X, spread_weights=spread.weights)


def _bases_of_sample(
    run: Run, dataset: Dataset, params: FitParams, sizes: list[tuple[int, str]]
) -> list[Chosen]:
    """Return bases of the stored sample, see `bases_of_rows`."""
    if not dataset.n_unlabelled or source_of(params.basis).by_confidence:
        rows, n_all = TableRows.read(run, _SAMPLE), dataset.of_labelled().n_rows
    else:
        rows, n_all = TableRows.read(run, _SAMPLE + _ALL), dataset.n_rows
        rows = rows._replace(numbers=places_among(dataset.labelled_rows(), rows.numbers))
    scaling = read_scaling(run, params.scale)
    return bases_of_rows(run, dataset, rows, params, sizes, scaling=scaling, n_all=n_all)


def _choose_bases(
    run: Run, dataset: Dataset, scale: str, basis: str, rules: list[str]
) -> PartResult:
    """Choose a basis of the sample by every rule."""
    params = run.spec.params.with_checked(scale=scale, basis=basis)
    size = search_basis_size(dataset, params, run.spec.search_basis)
    bases = _bases_of_sample(run, dataset, params, [(size, rule) for rule in rules])
    arrays = {f"values_{rule}": each.values for rule, each in zip(rules, bases, strict=True)}
    arrays |= {f"rows_{rule}": each.rows for rule, each in zip(rules, bases, strict=True)}
    return PartResult({"n_basis": max(len(each.rows) for each in bases)}, arrays)


def _try(
    run: Run, dataset: Dataset, place: int, tried: Trials, n_rows: int, n_basis: int, n_folds: int
) -> PartResult:
    """Try combinations with one stored basis; a locality is summed only for the whole basis."""
    params, networks = _networks(run, tried)
    rule = params.basis_rule
    values, rows = (run.read_part(_BASES, place, f"{name}_{rule}") for name in ("values", "rows"))
    sample = _sample_with(run, dataset, Chosen(values, rows)).thinned(n_rows, n_basis)
    found = try_side_by_side(
        sample,
        read_scaling(run, params.scale),
        networks,
        held_out=range(n_folds),
        n_components=most_components(run),
    )
    return PartResult({"tried": [each.entry for each in found]})


def _try_sizes(run: Run, dataset: Dataset, sizes: list[int], tried: Trials) -> PartResult:
    """Try combinations with a basis of some sizes; keep the losses of every held-out row."""
    params, networks = _networks(run, tried)
    if run.spec.chooses_size:
        params = params.with_checked(basis_size=max(sizes))
    scaling, entries, losses = read_scaling(run, params.scale), [], []
    rules = [(size, params.basis_rule) for size in sizes]
    for basis in _bases_of_sample(run, dataset, params, rules):
        table = _sample_with(run, dataset, basis)
        held_out = range(n_judged_folds(len(table.folds), run.spec.folds))
        for _, group in groupby(networks, key=lambda network: network.l1):
            for found in try_networks(
                table,
                scaling,
                [*group],
                scored=True,
                held_out=held_out,
                n_components=most_components(run),
                threads=blas_threads(),
            ):
                entries.append(found.entry | {"n_basis": len(basis.rows)})
                losses.append(table.losses(found.scores, found.entry))
    return PartResult({"tried": entries}, {"losses": np.array(losses)})


def _try_linear(run: Run, dataset: Dataset) -> PartResult:
    """Return the losses of linear functions of the columns on the rows that judge finals."""
    none = Chosen.of_points(np.empty((0, dataset.n_features)))
    table = _sample_with(run, dataset, none)
    n_held_out = n_judged_folds(len(table.folds), run.spec.folds)
    scores = table.linear_scores(read_scaling(run, "standard"), n_held_out=n_held_out)
    return PartResult({}, {"losses": table.losses(scores, {})})


def _networks(run: Run, tried: Trials) -> tuple[FitParams, list[SmallNetwork]]:
    """Return parameters with the same scale and basis as all combinations, and their networks."""
    specs = [
        run.spec.narrowed({"chosen": asdict(combination), "narrowed": left})
        for combination, left in tried
    ]
    return specs[0].params, [network_of(each) for each in specs]


def _search_cost(s: FitSizes) -> StageCost:
    """Return the cost; combinations of a basis and a kernel run side by side in one task."""
    spec = s.spec
    n_rows = search_rows(s.n, s.row_values, spec)
    rounds = _expected_rounds(s, n_rows)
    largest = rounds[-1].n_basis
    # Of the rounds, the kinds and the widths.
    n_bases = len(spec.scales) + 2 + n_refinements(spec)
    confidences = n_bases * min(n_rows, MOST_SCORED) ** 2 * s.pair_flops
    linear = rounds[-1].n_folds * n_rows * s.p**2 if s.p <= _MOST_LINEAR else 0
    # Centres move until few rows change their cluster.
    clustering = n_bases * _MOVES * n_rows * largest if "kmeans" in spec.bases else 0
    # One sample of the labelled rows, and if other rows have no label, one of all rows.
    n_samples = 2 if s.dataset.n_unlabelled else 1
    sample_bytes = n_samples * n_rows * (s.block_row_bytes + 3 * 8)
    scaled_bytes = 16 * n_rows * s.width
    n_tried = sum(each.n_tried for each in rounds[:-1])
    return StageCost(
        products=sum(_products_of(s, each) for each in rounds) + confidences + linear,
        systems=_systems_of(spec, rounds),
        exponentials=clustering
        + sum(2 * each.n_tried * each.n_rows * each.n_basis for each in rounds),
        read_bytes=s.rows_bytes + round((len(rounds) - 1) * len(spec.scales) * sample_bytes),
        written_bytes=round(sample_bytes),
        held_bytes=s.held(
            3 * sample_bytes
            + scaled_bytes
            + s.basis_bytes(largest, copies=3)
            + _networks_bytes(s, n_rows, largest, n_tried)
        ),
        n_tasks=len(spec.scales),
    )


def _expected_rounds(s: FitSizes, n_rows: int) -> list[Round]:
    """Return the rounds of a search of `n_rows` rows, and last one round for all finals."""
    spec = s.spec
    size = search_basis_size(s.dataset, spec.params, spec.search_basis)
    largest = max(min(s.r, largest_size(spec, s.dataset, n_rows)), size)
    # A learning curve of two rules takes a third more than its last size.
    of_curve = 3 if spec.chooses_size else 0
    n_finals = _N_KINDS + 1 + 2 * n_refinements(spec) + of_curve
    finals = Round(n_finals, n_rows, largest, n_judged_folds(n_rows, spec.folds))
    return [*planned_rounds(len(spec.combinations), n_rows, size, spec.folds), finals]


def _products_of(s: FitSizes, each: Round) -> float:
    """Return the flops of the sums, distances and eigenfunctions of a round."""
    summing = each.n_rows * (each.n_basis**2 + 3 * s.product_flops(each.n_basis))
    spanning = each.n_folds * eigenfunctions_flops(each.n_basis) if s.n_components else 0.0
    return each.n_tried * (summing + spanning)


def _systems_of(spec: Spec, rounds: Sequence[Round]) -> Counter[int]:
    """Return the number of systems of each size; only the first round tries all ridges."""
    # The search does not sum a locality.
    n_ridges = len(spec.penalties) * len(spec.alphas) * len(spec.components)
    n_left = min(n_ridges, (2 * ALPHAS_NEXT + 1) * len(spec.components))
    systems = Counter[int]()
    for number, each in enumerate(rounds):
        systems[each.n_basis] += each.n_tried * each.n_folds * (n_left if number else n_ridges)
    return systems


def _networks_bytes(s: FitSizes, n_rows: int, n_basis: int, n_tried: int) -> int:
    """Return the bytes of networks of a size that are tried side by side."""
    spec = s.spec
    n_ridges = len(spec.penalties) * len(spec.alphas) * len(spec.components)
    network = tried_bytes(n_basis, s.q, n_held_out=spec.folds, n_ridges=n_ridges)
    network += 8 * spec.n_penalty_axes * n_basis**2
    if s.n_components:
        network += eigenfunctions_bytes(n_basis)
        network += components_bytes(n_basis, min(s.n_components, n_basis))
    return try_bytes(n_rows, n_basis) + network + concurrent_bytes(n_tried, network)


SEARCH = Stage(
    name="search",
    compute=_run_search,
    record=SearchRecord,
    cost=_search_cost,
    wanted=lambda spec: spec.is_searched,
    grows_with_basis=True,
    scratch=(_SCRATCH,),
    remedy=lambda params: "Lower `search_rows` or `search_basis`",
)
