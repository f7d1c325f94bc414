"""What a fit is, in one value: what is asked for, its parameters, and what is left to try.

Requests, `FitParams` and `TuneParams`, are resolved into a `Spec` once, before the first stage. The
run stores this value and never changes it: the records of finished stages narrow it when it is
read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, Literal, Self

from dask_nrbfn.choices import BASES
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.penalties import Ridge, penalty_named
from dask_nrbfn.params import GIVEN_PREFIX, FitParams, TuneParams, plain

# Most alphas next to the best of a search that are tried with the whole basis, see
# `stages.search.left_next_to`.
MOST_LEFT = 6

# The parameter of a fit whose values each name of a tuning tries.
TUNES: dict[str, str] = {
    name: option.tunes for name, option in TuneParams.options().items() if option.tunes
}
_TRIED_AS = {parameter: name for name, parameter in TUNES.items()}

Mode = Literal["fit", "tune", "embed"]
Targets = Literal["classes", "numbers", "none"]


@dataclass(frozen=True)
class Combination:
    """A combination of parameters that is tried."""

    scale: str
    basis: str
    basis_rule: str
    features: str
    kernel: str
    width_factor: float


# The names under which the parameters of a combination are tried.
_COMBINED = {each.name: _TRIED_AS[each.name] for each in fields(Combination)}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A fit, a tuning or an embedding; values that nothing chooses are tuples of one.

    The alphas, penalties and localities stay after a ridge of the whole basis is chosen, because
    later stages find its results by its place among `ridges`.
    """

    mode: Mode
    targets: Targets
    # Resolved; "auto" and None only where a stage chooses the value.
    params: FitParams
    scales: tuple[str, ...]
    bases: tuple[str, ...]
    basis_rules: tuple[str, ...]
    features: tuple[str, ...]
    kernels: tuple[str, ...]
    # Empty: those of each kernel, then others between and beyond them.
    width_factors: tuple[float, ...]
    # Also those that do not support the other parameters.
    penalties: tuple[str, ...]
    alphas: tuple[float, ...]
    localities: tuple[float, ...]
    # (None,) without eigenfunctions.
    components: tuple[int | None, ...]
    losses: tuple[str, ...]
    # Folds into which rows are drawn, and how many of them, the first ones, are held out.
    folds: int = TuneParams.folds
    n_held_out: int = 0
    # Fingerprint of the rows on which a tuning compares networks instead of folds.
    validation: str | None = None
    effort: str = TuneParams.effort
    search_basis: int = TuneParams.search_basis
    search_rows: int | None = None

    @classmethod
    def of(
        cls, params: FitParams, *, mode: Mode = "fit", targets: Targets = "classes", **others: Any
    ) -> Self:
        """Return a fit that tries the values of `params`, except for `others`."""
        own = {name: (getattr(params, parameter),) for name, parameter in TUNES.items()}
        return cls(mode=mode, targets=targets, params=params, **own | others)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Return the value that `to_dict` has returned."""
        tried = {name: tuple(stored[name]) for name in TUNES}
        return cls(**{**stored, **tried, "params": FitParams.of_checked(stored["params"])})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values for JSON."""
        own = {each.name: plain(getattr(self, each.name)) for each in fields(self)}
        return own | {"params": self.params.to_dict()}

    def changes(self, other: Self) -> list[str]:
        """Return the values that requests gave, or left to their defaults, and `other` changes."""
        old, new = self._asked(), other._asked()
        # A run that has begun keeps its number of parts.
        new["n_parts"] = new["n_parts"] or old["n_parts"]
        changed = [name for name in old if old[name] != new[name]]
        # What is tried without being given follows from the parameter.
        follow = [name for name in TUNES if TUNES[name] != name and TUNES[name] in changed]
        return [f"`{name}`={old[name]} (now {new[name]})" for name in changed if name not in follow]

    def _asked(self) -> dict[str, Any]:
        own = self.to_dict()
        tried = {name: own[name] for name in TuneParams.options() if self.tunes}
        return dict(own["params"]) | tried

    def choosing(self, **chosen: Any) -> Self:
        """Return the fit with chosen parameters; no other scale, basis, kernel or so is left."""
        params = self.params.with_checked(**chosen)
        settled = {name: (chosen[each],) for each, name in _COMBINED.items() if each in chosen}
        return replace(self.trying(**settled), params=params)

    def narrowed(self, record: Mapping[str, Any]) -> Self:
        """Return the fit after a stage with this record: what it chose, and what it left to try."""
        chosen, left = record.get("chosen"), record.get("narrowed")
        spec = self.choosing(**chosen) if chosen else self
        return spec.trying(**left) if left else spec

    def trying(self, **values: Iterable[Any]) -> Self:
        """Return the fit that tries other values, by the names of `TUNES`."""
        changes: dict[str, Any] = {name: tuple(each) for name, each in values.items()}
        return replace(self, **changes)

    @property
    def tunes(self) -> bool:
        """Whether a tuning was asked for."""
        return self.mode == "tune"

    @property
    def is_quick(self) -> bool:
        """Whether a tuning of the least effort was asked for."""
        return self.tunes and self.effort == "quick"

    @property
    def chooses_alpha(self) -> bool:
        """Whether a fit chooses only alpha on held-out rows."""
        return self.mode == "fit" and self.n_held_out > 0

    @property
    def is_judged(self) -> bool:
        """Whether ridges of the whole basis are compared on rows that they were not fitted to."""
        return self.tunes or self.chooses_alpha

    @property
    def n_folds(self) -> int:
        """Number of folds of the moments; 1 if none is held out."""
        return self.folds if self.n_held_out else 1

    @property
    def n_sums(self) -> int:
        """Number of sums of moments: one of each held-out fold, one of all other folds."""
        return min(self.n_folds, self.n_held_out + 1)

    @property
    def supported_penalties(self) -> list[str]:
        """The penalties that support the other parameters."""
        return [name for name in self.penalties if not penalty_named(name).unmet(self.params)]

    @property
    def n_penalty_axes(self) -> int:
        """Most axes of the matrix of a penalty, see `Penalty.n_axes`."""
        return max(penalty_named(name).n_axes for name in self.penalties)

    @property
    def refined_losses(self) -> list[str]:
        """The losses that need passes over the rows."""
        return [name for name in self.losses if not loss_named(name).solved_at_once]

    @cached_property
    def combinations(self) -> list[Combination]:
        """All combinations to try, wide kernels first.

        Basis rules differ only for a basis of a given size by confidence. Features that no penalty
        supports are left out, and so are plain features if eigenfunctions are combined.
        """
        return [
            Combination(scale, basis, rule, features, kernel, factor)
            for scale in self.scales
            for basis in self.bases
            for rule in self._rules(basis)
            for features in self.features
            if self._supports(features, basis)
            for kernel in self.kernels
            for factor in sorted(
                set(self.width_factors or kernel_named(kernel).width_factors), reverse=True
            )
        ]

    def _rules(self, basis: str) -> tuple[str, ...]:
        if self.params.basis_size is None or not _is_by_confidence(basis):
            return (self.params.basis_rule,)
        return self.basis_rules

    def _supports(self, features: str, basis: str) -> bool:
        if self.components != (None,) and features != "normalized":
            return False
        return any(supports_any(name, (features,), (basis,)) for name in self.penalties)

    @property
    def ridges(self) -> list[Ridge]:
        """The ridges to try with the features and basis of the fit, ordered by `shared`."""
        own = Ridge.in_params(self.params)
        return [
            own._replace(penalty=penalty, locality=locality, alpha=alpha, components=size)
            for penalty in self.supported_penalties
            for locality in self.localities
            for alpha in self.alphas
            for size in self.components
        ]

    @property
    def n_ridges(self) -> int:
        """Largest number of ridges that are tried with the whole basis."""
        n_penalties, n_alphas = len(self.penalties), len(self.alphas)
        if self.is_searched:
            n_penalties, n_alphas = 1, min(n_alphas, MOST_LEFT)
        return n_penalties * n_alphas * len(self.localities) * len(self.components)

    @property
    def chooses_size(self) -> bool:
        """Whether a tuning chooses the number of basis rows."""
        said = self.params.basis_size, self.params.confidence_threshold
        return self.tunes and said == (None, None) and self.components == (None,)

    @property
    def is_searched(self) -> bool:
        """Whether a tuning tries several combinations or sizes on a sample."""
        return self.tunes and (self.chooses_size or len(self.combinations) > 1)

    @property
    def tries_cells(self) -> bool:
        """Whether a tuning compares one network with networks of cells."""
        return self.tunes and self.params.cells == "auto"

    @property
    def is_of_cells(self) -> bool:
        """Whether the fit certainly has several cells, each with its own network."""
        return self.params.asks_for_cells and not self.tries_cells

    @cached_property
    def confident_basis(self) -> str | None:
        """The first tried basis that needs the confidence of rows; None if no basis does."""
        return next(filter(_is_by_confidence, self.bases), None)

    @property
    def by_confidence(self) -> bool:
        """Whether a tried basis needs the confidence of rows."""
        return self.confident_basis is not None


def supports_any(penalty: str, features: tuple[str, ...], bases: tuple[str, ...]) -> bool:
    """Return whether a penalty supports one of these features with one of these bases."""
    values = {"features": features, "basis": bases}
    return all(need in values[name] for name, need in penalty_named(penalty).needs.items())


@cache
def _is_by_confidence(basis: str) -> bool:
    return not basis.startswith(GIVEN_PREFIX) and bool(BASES[basis].by_confidence)
