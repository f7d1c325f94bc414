"""Stage "search": scale, features, kernel, width, size and basis, tried on drawn rows."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.eigenfunctions import eigenfunctions_bytes, eigenfunctions_flops
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.ridge import components_bytes
from dask_nrbfn.numeric.scaling import LEARNED, RANK
from dask_nrbfn.numeric.threads import concurrent_bytes
from dask_nrbfn.numeric.trials import LEAST_SINGLE, Entry, figures_of, trial_bytes
from dask_nrbfn.parts import map_parts, run_task
from dask_nrbfn.spec import MOST_LEFT, Combination, Spec
from dask_nrbfn.stages.bases import MOST_FOUND, MOST_SCORED, requested_size
from dask_nrbfn.stages.columns import METRIC, RANKS
from dask_nrbfn.stages.context import FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.finals import (
    CLEARLY,
    Final,
    best_of,
    finalists,
    gains_by_doubling,
    kind_of,
    of_each_kind,
    smallest_of,
    winner_of,
)
from dask_nrbfn.stages.linear import compare_with_trial, linear_flops
from dask_nrbfn.stages.moments import most_components
from dask_nrbfn.stages.stage import OVERTIME, Stage, StageJob, StageRecord, in_words
from dask_nrbfn.stages.trials import MOST_JUDGED, SINGLE, Folds
from dask_nrbfn.stages.units import (
    SCRATCH,
    Left,
    Request,
    search_rows,
    try_units,
    write_sample,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

_TRIALS = f"{SCRATCH}trials-"

# Rows, basis rows and held-out rows of the rounds and of the comparison of kinds. Few basis rows
# rank the widths of one kernel, but not kernels: narrow ones gain more from a larger basis.
_FIRST, _SECOND, _KINDS = (2500, 256, 1000), (5000, 512, MOST_JUDGED), (12_000, 1024, MOST_JUDGED)

# Combinations that need no first round; kinds and widths of each kind in the second round. Kinds
# differ in more than the width.
_FEW, _KINDS_OF_ROUND, _WIDTHS_OF_ROUND = 16, 8, 2

# Kinds that are compared.
_N_KINDS = {"quick": 2, "normal": 3, "thorough": 3}

# How often the width is refined if it is not given.
_REFINEMENTS = {"quick": 1, "normal": 2, "thorough": 4}

# Sizes that are tried at once. Larger sizes double until a doubling gains nothing.
_FIRST_SIZES = tuple(2**power for power in range(4, 11))

# The largest size of a quick tuning, and those at which sources of the basis are compared.
_MOST_QUICK = 2048
_MOST_OF_SOURCES = {"quick": 1024, "normal": 2048, "thorough": 2048}

# Up to this size a basis costs so little that a smaller one saves nothing.
_CHEAP = 256

# A basis that takes the least time.
_DRAWN = {"basis": "random", "basis_rule": "uniform"}

# Most rows outside a fold with which sizes and sources are compared.
_MOST_OF_CURVE = 50_000

# From so many rows on, wider kernels are tried again with all of them: so many times as wide.
_MANY, _WIDER = 2 * _KINDS[0], (2.0, 4.0)

# Rows for each row of the largest basis.
_ROWS_OF_BASIS_ROW = 2

# Rows for each row of the basis that a plan expects.
_ROWS_OF_USUAL = 6

# The first of two rounds tries every second alpha.
_STEP_OF_FIRST = 2

# Alphas on either side of the best that are tried next: with as many, and with more basis rows.
_NEAR, _NEXT = 1, 2

# Alphas on either side of the best that are tried with all rows; more if the best is the least that
# float32 allows.
ALPHAS_LARGER, ALPHAS_SMALLER, ALPHAS_BEYOND = 1, 2, 4

# Assignments of rows to centres, each as long as an exponential for every row and centre.
_MOVES = 12


def _cheap_size(n_classes: int) -> int:
    """Return the size of a basis that is tried whatever the time that is left."""
    return max(_CHEAP, 2 * n_classes)


def least_work(spec: Spec, dataset: Dataset) -> dict[str, Any]:
    """Return parameters of the fit that takes the least time of those that a tuning may choose."""
    least: dict[str, Any] = {}
    if not spec.params.basis_is_given and (spec.chooses_size or "random" in spec.bases):
        least |= _DRAWN
    if spec.chooses_size:
        usual = usual_size(spec, dataset.of_labelled().n_rows)
        least["basis_size"] = min(_cheap_size(dataset.n_classes), usual)
    return least


def n_refinements(spec: Spec) -> int:
    """Return the number of times that the search refines widths; 0 if widths are given."""
    return 0 if spec.width_factors else _REFINEMENTS[spec.effort]


class Round(NamedTuple):
    """The trials of one step, their rows outside a fold, their basis rows and their ridges."""

    n_tried: int
    n_rows: int
    n_basis: int
    n_ridges: int


def largest_size(spec: Spec, dataset: Dataset, n_sampled: int) -> int:
    """Return the largest size of a basis that is tried on a sample."""
    if not spec.chooses_size:
        return min(requested_size(spec.params, dataset) or _KINDS[1], _KINDS[1])
    most = _MOST_QUICK if spec.is_quick else MOST_FOUND
    return max(min(most, n_sampled // _ROWS_OF_BASIS_ROW), dataset.n_classes, 1)


class _Search:
    """The trials of a search, step by step; each step is stored as parts of its own."""

    def __init__(self, job: StageJob, n_rows: int) -> None:
        self.job, self.spec, self.n_rows = job, job.run.spec, n_rows
        self.folds, self.rounds = Folds.of(n_rows, self.spec), list[dict[str, int]]()
        self.tried: dict[Combination, dict[str, Any]] = {}
        most = largest_size(self.spec, job.dataset, n_rows)
        self.largest = max(1, min(most, job.largest_basis()))

    def judge(self, step: str, requests: Sequence[Request]) -> list[Final]:
        """Return the results of requests that are not singular; workers share the units of work.

        A unit is a trial, or the trials of several widths if there are enough units.
        """
        job, engine = self.job, self.job.engine
        groups: dict[tuple[Any, ...], list[Request]] = {}
        for each in requests:
            groups.setdefault(each.shared, []).append(each)
        units = [*groups.values()]
        if len(units) < engine.n_workers * engine.threads:
            units = [[each] for each in requests]
        units.sort(key=lambda unit: -len(unit) * unit[0].work)
        n_tasks = min(engine.n_workers, len(units))
        dealt = [(units[first::n_tasks],) for first in range(n_tasks)]
        stage = _TRIALS + step
        records = map_parts(job.run, job.dataset, engine, stage=stage, task=try_units, units=dealt)
        finals = []
        for part, ((units_of_part,), record) in enumerate(zip(dealt, records, strict=True)):
            all_losses = job.run.read_part(stage, part, "losses")
            shares = job.run.read_part(stage, part, "shares")
            own = [each for unit in units_of_part for each in unit]
            for each, entry, losses in zip(own, record["tried"], all_losses, strict=True):
                if not each.by_source:
                    entry |= self._drawn(each.combination)
                if entry["alpha"] is not None:
                    finals.append(Final(losses, shares, each.combination, entry))
        places = {each.combination: place for place, each in enumerate(requests)}
        # In the order of the requests, whatever the workers.
        return sorted(finals, key=lambda each: (places[each.combination], each.n_basis))

    def _drawn(self, combination: Combination) -> dict[str, str]:
        """Return what a trial records of its basis if no source has chosen the rows."""
        is_drawn = self.spec.params.basis_is_given or combination.basis == "random"
        return {} if is_drawn else _DRAWN

    def round(
        self,
        name: str,
        tried: Sequence[tuple[Combination, Left]],
        size: tuple[int, int, int],
        *,
        exact: bool = False,
    ) -> list[Final]:
        """Return the results of a round, which are recorded."""
        n_rows, n_basis = self.sizes(*size[:2])
        requests = [Request(*each, n_rows, n_basis, size[2], exact=exact) for each in tried]
        finals = self.judge(name, requests)
        number = len(self.rounds)
        self.rounds.append({"n_tried": len(requests), "n_rows": n_rows, "n_basis": n_basis})
        logger.info(
            "search: %s, %d combinations, %d rows, %d basis rows", name, *self.rounds[-1].values()
        )
        names = figures_of(of_numbers=self.job.dataset.of_numbers)
        none = dict.fromkeys((*Ridge._fields, *names))
        for each, _ in tried:
            self.tried[each] = asdict(each) | self._drawn(each) | none | {"round": number}
        for final in finals:
            self.tried[final.combination] |= final.entry
        return finals

    def sizes(self, n_rows: int, n_basis: int) -> tuple[int, int]:
        """Return numbers of rows and basis rows, fewer if the table or a limit has fewer."""
        n_seen = self.most_rows
        most = min(self.spec.search_basis, self.largest, max(1, n_seen // _ROWS_OF_BASIS_ROW))
        least = 2 * most_components(self.job.run)
        # Tables of several folds are small, so no rows are left out.
        own = n_seen if self.folds.n_folds > 1 else min(n_rows, n_seen)
        return own, max(min(n_basis, most), min(least, most))

    def left(self, entry: Mapping[str, Any], n_next: int) -> Left:
        """Return the penalty of an entry and the alphas next to its alpha."""
        return left_next_to(self.spec.alphas, entry, n_next, n_next)

    def has_time(self, combination: Combination, n_basis: int, *, by_source: bool = False) -> bool:
        """Return whether a trial with so many basis rows and the fit end within the limit."""
        products = SINGLE * self.folds.n_folds * self.most_rows * float(n_basis) ** 2
        trial = StageCost(products=products, held_bytes=0)
        chosen = asdict(combination) | ({} if by_source else self._drawn(combination))
        if self.spec.chooses_size:
            chosen["basis_size"] = n_basis
        return bool(self.job.left_s(chosen, [trial]) > 0)

    @property
    def most_rows(self) -> int:
        """The number of rows outside a fold that are used."""
        return min(self.n_rows - self.folds.n_judged, _MOST_OF_CURVE)


def left_next_to(
    alphas: Sequence[float], entry: Mapping[str, Any], n_larger: int, n_smaller: int
) -> Left:
    """Return the penalty of an entry, and so many alphas next to its alpha."""
    descending = sorted(set(alphas), reverse=True)
    place = descending.index(entry["alpha"])
    near = descending[max(place - n_larger, 0) : place + n_smaller + 1]
    return {"penalties": [entry["penalty"]], "alphas": [each for each in alphas if each in near]}


def _left_at_end(alphas: Sequence[float], entry: Mapping[str, Any]) -> Left:
    """Return the ridges that are left to try with all rows."""
    smaller = ALPHAS_SMALLER
    if entry["alpha"] == min((a for a in alphas if a >= LEAST_SINGLE), default=None):
        smaller = ALPHAS_BEYOND
    return left_next_to(alphas, entry, ALPHAS_LARGER, smaller)


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

    tried: every combination with its figures in its last round. rounds: the sizes of each round.
    curve, finals: combinations with bases of several sizes, and those compared at the end.
    linear: the figure of linear functions of the columns. stopped: why no more was tried.
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
    """Try combinations, then sizes, then sources of the basis; return the results and the best.

    Each step compares losses of the same held-out rows, and the best so far stays in it.
    """
    run, spec = job.run, job.run.spec
    n_rows = run_task(job.engine, write_sample, run, job.dataset, label="search")
    search = _Search(job, n_rows)
    judged = _rank(search, _different(run))
    compared, winner, stopped = _compare_kinds(search, judged)
    curve: list[Final] = []
    of_width: list[Final] = []
    if winner is not None and spec.chooses_size:
        curve = _learning_curve(search, winner)
        winner = smallest_of(curve, _CHEAP) if curve else winner
        winner, wider = _compare_wider(search, winner, curve)
        compared += wider
        of_width = [each for each in (*curve, *wider) if each.combination == winner.combination]
    linear = (
        compare_with_trial(job, f"{_TRIALS}linear-model", winner) if winner is not None else None
    )
    if winner is not None:
        winner, sources = _compare_sources(search, winner, of_width)
        compared += sources
    best = winner.combination if winner else next(iter(search.tried))
    chosen: dict[str, Any] = asdict(best)
    if curve and winner:
        chosen["basis_size"] = winner.n_basis
    logger.info("search: chosen: %s", in_words(chosen))
    if stopped:
        logger.info("search: ended: %s", stopped)
    return SearchRecord(
        tried=[*search.tried.values()],
        rounds=search.rounds,
        curve=[asdict(each.combination) | each.entry for each in curve],
        finals=[asdict(each.combination) | each.entry for each in compared],
        n_rows=n_rows,
        n_basis=search.rounds[-1]["n_basis"],
        linear=linear,
        stopped=stopped,
        chosen=chosen,
        narrowed=_left_at_end(spec.alphas, winner.entry)
        if winner
        else _first_left(spec, best, sorted(spec.alphas, reverse=True)[:MOST_LEFT]),
    )


def _rank(search: _Search, combinations: list[Combination]) -> list[Final]:
    """Return the results of the second round; the first leaves out widths, and many kinds."""
    step = _STEP_OF_FIRST if len(combinations) > _FEW else 1
    tried = [
        (each, _first_left(search.spec, each, search.spec.alphas[::step])) for each in combinations
    ]
    if len(tried) > _FEW:
        first = search.round("round 1", tried, _FIRST)
        if first and search.job.left_s() > 0:
            kinds = of_each_kind(first, _WIDTHS_OF_ROUND)[:_KINDS_OF_ROUND]
            kept = [each for widths in kinds for each in widths]
            tried = [(each.combination, search.left(each.entry, _NEAR)) for each in kept]
        else:
            return first
    return search.round("round 2", tried, _SECOND)


def _first_left(spec: Spec, combination: Combination, alphas: Sequence[float]) -> Left:
    """Return the first penalty that a combination supports, and alphas."""
    penalties = spec.choosing(**asdict(combination)).supported_penalties
    return {"penalties": penalties[:1], "alphas": alphas}


def _compare_kinds(
    search: _Search, judged: list[Final]
) -> tuple[list[Final], Final | None, str | None]:
    """Return the compared kinds and widths, the best of them, and why no more are tried."""
    if not judged:
        return [], None, "singular systems"
    if search.job.left_s() < 0:
        return [], winner_of(judged), OVERTIME
    finals = finalists(judged, _N_KINDS[search.spec.effort])
    tried = [(each.combination, search.left(each.entry, _NEXT)) for each in finals]
    compared = search.round("kinds", tried, _KINDS, exact=True)
    if not compared:
        return [], winner_of(judged), "singular systems"
    winner, n_steps = winner_of(compared), n_refinements(search.spec)
    kind = kind_of(winner.combination)
    widths = {each.width_factor for each in search.tried if kind_of(each) == kind}
    for step in range(n_steps):
        if search.job.left_s() < 0:
            return compared, winner, OVERTIME
        factors = _factors_next_to(winner.combination.width_factor, widths)
        n_rows, n_basis = search.sizes(*_KINDS[:2])
        left = search.left(winner.entry, _NEAR)
        requests = [
            Request(replace(winner.combination, width_factor=factor), left, n_rows, n_basis)
            for factor in factors
        ]
        others = search.judge(f"widths-{step}", requests)
        compared += others
        widths.update(factors)
        better = best_of([winner, *others])
        if better is winner:
            return compared, winner, "no width next to the best does better"
        winner = better
    limit = f"the limit of {plural(n_steps, 'refinement')} of the width"
    return compared, winner, limit if n_steps else None


def _learning_curve(search: _Search, winner: Final) -> list[Final]:
    """Return the results of the best combination with larger and larger drawn bases.

    All sizes have the same rows. Sizes end after a doubling that gains no standard error, and of a
    quick tuning two standard errors.
    """
    most, n_classes = search.largest, search.job.dataset.n_classes
    has_time = partial(search.has_time, winner.combination)
    sizes = [size for size in _FIRST_SIZES if n_classes <= size < most]
    sizes = [size for size in sizes if size <= _cheap_size(n_classes) or has_time(size)]
    if not sizes or (most <= _FIRST_SIZES[-1] and has_time(most)):
        sizes.append(min(most, max(_FIRST_SIZES[-1], n_classes)))

    def judge(name: str, sizes: list[int], entry: Entry) -> list[Final]:
        left = search.left(entry, _NEXT if len(sizes) > 1 else _NEAR)
        own = [Request(winner.combination, left, search.most_rows, size) for size in sizes]
        return search.judge(name, own)

    curve = judge("sizes", sizes, winner.entry)
    size, n_errors = 2 * sizes[-1], CLEARLY if search.spec.is_quick else 1.0
    while gains_by_doubling(curve, n_errors) and size <= most and has_time(size):
        latest = judge(f"size-{size}", [size], curve[-1].entry)
        curve += latest
        size = 2 * size if latest else most + 1
    return curve


def _compare_wider(
    search: _Search, winner: Final, curve: Sequence[Final]
) -> tuple[Final, list[Final]]:
    """Return the winner, with a wider kernel if that gains, and all tried.

    Other steps compare widths with few rows. With more rows smaller alphas suit, and wider kernels.
    """
    if not n_refinements(search.spec) or search.most_rows < _MANY:
        return winner, []
    if not curve or not search.has_time(winner.combination, winner.n_basis):
        return winner, []
    drawn, own = _of_most(search, winner, curve), winner.combination
    requests = [
        Request(
            replace(own, width_factor=own.width_factor * step),
            search.left(drawn.entry, _NEXT),
            search.most_rows,
            drawn.n_basis,
        )
        for step in _WIDER
    ]
    tried = search.judge("wider", requests)
    best = best_of([drawn, *tried])
    if drawn.is_close_to(best):
        return winner, tried
    entry = winner.entry | {"alpha": best.entry["alpha"]}
    if best.n_basis == winner.n_basis:
        entry = best.entry
    return replace(winner, combination=best.combination, entry=entry), tried


def _of_most(search: _Search, winner: Final, curve: Sequence[Final]) -> Final:
    """Return the largest final of a curve up to the winner's size that takes little time."""
    most = min(winner.n_basis, _MOST_OF_SOURCES[search.spec.effort])
    sizes = [each for each in curve if each.n_basis <= most]
    return max(sizes, key=lambda each: each.n_basis, default=winner)


def _compare_sources(
    search: _Search, winner: Final, curve: Sequence[Final]
) -> tuple[Final, list[Final]]:
    """Return the winner with the best source of its basis and the best penalty, and all tried.

    The winner has drawn basis rows, which stay if they are one of the sources. Sources of large
    bases are compared at a size of the curve that takes less time.
    """
    spec, own = search.spec, winner.combination
    drawn = _of_most(search, winner, curve)
    requests, firsts = [], []
    for basis, rule in _sources(spec, own):
        named = replace(own, basis=basis, basis_rule=rule)
        is_drawn = basis == "random" or spec.params.basis_is_given
        for penalty in spec.choosing(**asdict(named)).supported_penalties:
            if is_drawn and penalty == winner.entry["penalty"]:
                firsts.append(replace(drawn, combination=named))
                continue
            left = search.left({**drawn.entry, "penalty": penalty}, _NEAR)
            own_size = search.most_rows, drawn.n_basis
            requests.append(Request(named, left, *own_size, by_source=not is_drawn))
    if firsts:
        requests = [
            each
            for each in requests
            if search.has_time(each.combination, winner.n_basis, by_source=each.by_source)
        ]
    tried = search.judge("sources", requests) if requests else []
    if not (firsts or tried):
        return winner, []
    best = best_of([*firsts, *tried])
    entry = winner.entry | {"penalty": best.entry["penalty"]}
    if best.n_basis == winner.n_basis:
        entry = best.entry
    return replace(winner, combination=best.combination, entry=entry), tried


def _sources(spec: Spec, combination: Combination) -> list[tuple[str, str]]:
    """Return the sources of the basis, and their rules, that a combination can have."""
    if spec.chooses_size:
        drawn = () if spec.params.basis_is_given else ("random",)
        return [(basis, "uniform") for basis in dict.fromkeys((spec.params.basis, *drawn))]
    kind = kind_of(combination)
    own = [(each.basis, each.basis_rule) for each in spec.combinations if kind_of(each) == kind]
    return [*dict.fromkeys(own)]


def _different(run: Run) -> list[Combination]:
    """Return the combinations that differ in more than the source of the basis.

    Learned weights that are all equal are those of the scale that they multiply. Scores of ranks
    that are almost proportional to the values are left out, and so is "standard" if it did worse
    than ranks before weights were learned.
    """
    firsts: dict[Combination, Combination] = {}
    for each in run.spec.combinations:
        firsts.setdefault(replace(each, basis="", basis_rule=""), each)
    tried = [*firsts.values()]
    scales, left_out = {each.scale for each in tried}, set()
    start = METRIC.recorded(run).start if LEARNED in scales else "standard"
    if {LEARNED, start} <= scales and not METRIC.recorded(run).kept:
        left_out.add(LEARNED)
    if {RANK, "standard"} <= scales:
        if start == RANK:
            left_out.add("standard")
        elif not RANKS.recorded(run).differ:
            left_out.add(RANK)
    if left_out:
        logger.info("search: left out: scale %s", ", ".join(sorted(left_out)))
    return [each for each in tried if each.scale not in left_out]


def usual_size(spec: Spec, n_rows: int) -> int:
    """Return the basis size that a plan expects a tuning of `n_rows` to choose."""
    most = _MOST_QUICK if spec.is_quick else 2 * _MOST_QUICK
    return max(1, min(most, n_rows // _ROWS_OF_USUAL))


def planned_rounds(s: FitSizes, n_rows: int, size: int) -> list[Round]:
    """Return the expected trials of a search of `n_rows` rows that ends at a basis size."""
    spec, (n_folds, n_judged) = s.spec, Folds.of(n_rows, s.spec)
    n_seen = min(n_rows - n_judged, _MOST_OF_CURVE)
    most = max(1, min(spec.search_basis, size, n_seen // _ROWS_OF_BASIS_ROW))
    n_components = max(1, len(spec.components))

    def step(n_tried: int, size: tuple[int, int, int], n_alphas: int) -> Round:
        n_basis = max(min(size[1], most), min(2 * s.n_components, most))
        own = n_seen if n_folds > 1 else min(size[0], n_seen)
        return Round(n_tried * n_folds, own, n_basis, n_alphas * n_components)

    few, near = (min(2 * n_next + 1, len(spec.alphas)) for n_next in (_NEXT, _NEAR))
    n_tried = len({replace(each, basis="", basis_rule="") for each in spec.combinations})
    n_alphas, rounds = -(-len(spec.alphas) // (_STEP_OF_FIRST if n_tried > _FEW else 1)), []
    if n_tried > _FEW:
        rounds.append(step(n_tried, _FIRST, n_alphas))
        n_tried, n_alphas = _KINDS_OF_ROUND * _WIDTHS_OF_ROUND, near
    rounds.append(step(n_tried, _SECOND, n_alphas))
    n_kinds = min(_N_KINDS[spec.effort], n_tried) + 2 * n_refinements(spec)
    rounds.append(step(n_kinds, _KINDS, few))
    if spec.chooses_size:
        larger = [2**power for power in range(11, 14) if 2**power <= size]
        sizes = [each for each in (*_FIRST_SIZES, *larger) if each <= size] or [size]
        rounds += [Round(n_folds, n_seen, each, few * n_components) for each in sizes]
    n_sources = len(spec.bases) + spec.chooses_size
    at = min(rounds[-1].n_basis, _MOST_OF_SOURCES[spec.effort])
    n_tried = n_sources * len(spec.penalties) * n_folds
    if spec.chooses_size and n_refinements(spec) and n_seen >= _MANY:
        n_tried += len(_WIDER)
    rounds.append(Round(n_tried, n_seen, at, few * n_components))
    return rounds


def _search_cost(s: FitSizes) -> StageCost:
    """Return the cost of the units of work, which run side by side."""
    spec = s.spec
    n_rows = search_rows(s.n, s.row_values, spec)
    least = min(spec.search_basis, _KINDS[1], max(1, n_rows // _ROWS_OF_BASIS_ROW))
    size = max(min(s.r, largest_size(spec, s.dataset, n_rows)), least)
    rounds = planned_rounds(s, n_rows, size)
    n_judged = Folds.of(n_rows, spec).n_judged
    passed = {each: each.n_tried * (each.n_rows + n_judged) for each in rounds}
    products = sum(
        rows * (each.n_basis**2 + s.product_flops(each.n_basis)) for each, rows in passed.items()
    )
    systems = Counter[int]()
    for each in rounds:
        systems[each.n_basis] += round(SINGLE * each.n_tried * each.n_ridges)
    spanning = 0.0
    if s.n_components:
        spanning = sum(each.n_tried * eigenfunctions_flops(each.n_basis) for each in rounds)
    # Sources by confidence compare all pairs of rows.
    confidences = min(n_rows, MOST_SCORED) ** 2 * s.pair_flops if spec.by_confidence else 0
    linear = linear_flops(s.dataset, n_rows)
    # Centres move until few rows change their cluster.
    clustering = _MOVES * n_rows * rounds[-1].n_basis if "kmeans" in spec.bases else 0
    # One sample of the labelled rows, and if other rows have no label, one of all rows.
    n_samples = 2 if s.dataset.n_unlabelled else 1
    sample_bytes = n_samples * n_rows * (s.block_row_bytes + 3 * 8)
    n_widths = max(Counter(kind_of(each) for each in spec.combinations).values())
    own = max(
        trial_bytes(
            each.n_basis,
            s.q,
            n_networks=n_widths if each.n_basis <= _SECOND[1] else 1,
            n_ridges=each.n_ridges,
        )
        for each in rounds
    )
    if s.n_components:
        own += eigenfunctions_bytes(size) + components_bytes(size, min(s.n_components, size))
    exponentials = SINGLE * sum(rows * each.n_basis for each, rows in passed.items())
    return StageCost(
        products=SINGLE * products + spanning + confidences + linear,
        systems=systems,
        exponentials=clustering + exponentials,
        read_bytes=s.rows_bytes + round(len(rounds) * sample_bytes),
        written_bytes=round(sample_bytes),
        held_bytes=s.held(
            3 * sample_bytes
            + 16 * n_rows * s.width
            + s.basis_bytes(size, copies=3)
            + own
            + concurrent_bytes(s.search.threads, own)
        ),
    )


SEARCH = Stage(
    name="search",
    compute=_run_search,
    record=SearchRecord,
    cost=_search_cost,
    wanted=lambda spec: spec.is_searched,
    grows_with_basis=True,
    scratch=(SCRATCH,),
    remedy=lambda params: "Lower `search_rows` or `search_basis`",
)
