"""The results of trials that the steps of a search compare."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.numeric.trials import Entry
from dask_nrbfn.spec import Combination
from dask_nrbfn.stages.trials import JudgedRows

# A combination is left out once it is worse by this many standard errors.
CLEARLY = 2.0


@dataclass(frozen=True, eq=False)
class Final(JudgedRows):
    """A combination that was tried with a basis of some size, and the entry of its `Trial`."""

    combination: Combination
    entry: Entry

    @property
    def n_basis(self) -> int:
        """Number of basis rows."""
        return int(self.entry["n_basis"])


def best_of(finals: Sequence[Final]) -> Final:
    """Return the final with the least mean loss; of equal ones the first."""
    return min(finals, key=lambda each: each.loss)


def close_to_best(finals: Sequence[Final], n_errors: float = 1.0) -> list[Final]:
    """Return the finals within a standard error of the best (Breiman et al. 1984, section 3.4)."""
    best = best_of(finals)
    return [each for each in finals if each.is_close_to(best, n_errors)]


def smallest_of(curve: Sequence[Final], n_cheap: int) -> Final:
    """Return the final with the smallest basis among those close to the best.

    Of bases of up to `n_cheap` rows it is the largest: they cost little, and the results of the
    smallest depend on which rows are drawn.
    """
    close = sorted(close_to_best(curve), key=lambda each: each.n_basis)
    cheap = [each for each in close if each.n_basis <= n_cheap]
    return cheap[-1] if cheap else close[0]


def winner_of(finals: Sequence[Final]) -> Final:
    """Return the best final; equal column weights win unless learned ones gain more than chance."""
    equal = [each for each in close_to_best(finals) if each.combination.scale != LEARNED]
    return best_of(equal or finals)


def kind_of(combination: Combination) -> tuple[str, str, str]:
    """Return what else than width and basis a combination has."""
    return combination.scale, combination.features, combination.kernel


def of_each_kind(finals: Iterable[Final], n_widths: int) -> list[list[Final]]:
    """Return the best widths of each kind, the best kind first."""
    kinds: dict[tuple[str, str, str], list[Final]] = {}
    for each in sorted(finals, key=lambda each: each.loss):
        kinds.setdefault(kind_of(each.combination), []).append(each)
    return [widths[:n_widths] for widths in kinds.values()]


def finalists(judged: Sequence[Final], most: int) -> list[Final]:
    """Return the best of kinds that are not clearly worse, and one with equal column weights."""
    kinds = [widths[0] for widths in of_each_kind(judged, 1)]
    chosen = close_to_best(kinds, CLEARLY)[:most]
    equal = [each for each in kinds if each.combination.scale != LEARNED]
    return chosen if not equal or equal[0] in chosen else [*chosen, equal[0]]


def gains_by_doubling(curve: Sequence[Final], n_errors: float = 1.0) -> bool:
    """Return whether the largest basis gains more than standard errors over all smaller ones."""
    if not curve:
        return False
    *smaller, largest = sorted(curve, key=lambda each: each.n_basis)
    return not smaller or not best_of(smaller).is_close_to(largest, n_errors)
