"""The combinations that a tuning tries, and their number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, log2
from typing import Any, NamedTuple

from dask_nrbfn.choices import KERNELS, LOSSES, PENALTIES
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.penalties import check_penalty, penalty_named
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.bases import asked_size, source_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

# Elements of the sample if the number of rows is not given, and the limits of that number. On
# 40,000 rows an error of 1 % is known to within 0.05 %.
_SAMPLE_ELEMENTS = 2**25
_MIN_SAMPLE_ROWS, _MAX_SAMPLE_ROWS = 20_000, 100_000


# Number of alphas on either side of the best alpha of a search that are tried with the whole basis.
# The best alpha falls as a basis grows.
ALPHAS_BESIDE = 3

# Basis rows of a cell without `basis_size`, and the maximum number of rows for each basis row.
_BASIS_ROWS, _ROWS_OF_BASIS_ROW = 1000, 3

# More cells would make more tasks and a larger, but hardly a better model. Larger tables have
# larger cells instead.
MOST_CELLS = 1024

# Values that are tried for a parameter that the fit leaves at its default.
_NORMAL: dict[str, tuple[str, ...]] = {
    "kernels": ("gaussian", "laplacian", "laplace-l1"),
    "penalties": ("weights", "kernel"),
    "bases": ("sknn", "random"),
    "basis_rules": ("least-confident", "uniform"),
}
_THOROUGH = _NORMAL | {
    "kernels": tuple(KERNELS),
    "penalties": tuple(PENALTIES),
    "losses": tuple(LOSSES),
    "bases": ("sknn", "random", "kmeans"),
}
_TRIED: dict[str, dict[str, tuple[str, ...]]] = {
    "quick": {},
    "normal": _NORMAL,
    "thorough": _THOROUGH,
}
_REFINEMENTS = {"quick": 1, "normal": 2, "thorough": 4}

# Scales that are tried in addition to the scale of the fit.
_SCALES = {"none": ("none", "standard", LEARNED), "standard": ("standard", LEARNED)}


def resolve_tuning(
    params: FitParams,
    tuning: TuneParams,
    *,
    numbers: bool,
    sparse: bool = False,
    mixed: bool = False,
) -> TuneParams:
    """Return a tuning with the values that its effort selects, for resolved parameters."""
    sized = params.basis_size is not None
    if tuning.bases is not None and params.basis_is_given:
        raise ParameterError(
            f"`bases` are {', '.join(tuning.bases)}, but the basis rows are given.",
            "Leave `bases` out, or give no basis rows.",
        )
    if tuning.bases is not None and not sized:
        raise ParameterError(
            f"`bases` are {', '.join(tuning.bases)}, but the default sizes of these bases differ.",
            "Give `basis_size`, or give `basis` instead of `bases`.",
        )
    meant = {name: each for name, each in _TRIED[tuning.effort].items() if _is_open(name, params)}
    if tuning.effort != "quick" and params.scale in _SCALES:
        meant["scales"] = tuple(
            each for each in _SCALES[params.scale] if not (sparse and each == LEARNED)
        )
    if mixed and "kernels" in meant:
        meant["kernels"] = tuple(sorted(meant["kernels"], key=lambda name: name != "laplace-l1"))
    spectral = Trials(params, tuning).components != [None]
    unfit = {
        "bases": not sized,
        "basis_rules": not sized,
        "losses": numbers or spectral,
        "penalties": spectral,
    }
    left = {name: each for name, each in meant.items() if not unfit.get(name)}
    if "penalties" in left:
        bases = tuning.bases or left.get("bases", (params.basis,))
        left["penalties"] = tuple(
            each
            for each in left["penalties"]
            if _is_for_some(each, params, features=tuning.features, bases=bases)
        )
    changes: dict[str, Any] = {
        name: each for name, each in left.items() if getattr(tuning, name) is None
    }
    return replace(tuning, **changes)


def _is_open(name: str, params: FitParams) -> bool:
    """Return whether the parameter of the fit that a tuning tries has its default."""
    tuned = str(TuneParams.options()[name].tunes)
    default = "sknn" if tuned == "basis" else FitParams.options()[tuned].default
    return bool(getattr(params, tuned) == default)


def _is_for_some(
    penalty: str, params: FitParams, *, features: Sequence[str], bases: Sequence[str]
) -> bool:
    """Return whether a penalty supports one of the combinations."""
    tried = (replace(params, features=each, basis=base) for each in features for base in bases)
    return any(not penalty_named(penalty).unmet(each) for each in tried)


@dataclass(frozen=True)
class Combination:
    """A combination of parameters that is tried."""

    scale: str
    basis: str
    basis_rule: str
    features: str
    kernel: str
    width_factor: float


class Trials(NamedTuple):
    """What a fit tries: the values of its parameters, or those of its tuning."""

    params: FitParams
    tuning: TuneParams | None

    @property
    def scales(self) -> Sequence[str]:
        """The scales."""
        return (self.tuning and self.tuning.scales) or (self.params.scale,)

    @property
    def kernels(self) -> Sequence[str]:
        """The kernels."""
        return (self.tuning and self.tuning.kernels) or (self.params.kernel,)

    @property
    def bases(self) -> Sequence[str]:
        """The sources of the basis."""
        return (self.tuning and self.tuning.bases) or (self.params.basis,)

    @property
    def sized_bases(self) -> list[str]:
        """The sources of the basis whose sizes are compared: the fit's source, and a draw."""
        if self._given.effort == "quick":
            return [self.params.basis]
        return [*dict.fromkeys((self.params.basis, "random"))]

    @property
    def localities(self) -> list[float]:
        """The localities, ascending."""
        return sorted(set((self.tuning and self.tuning.localities) or (self.params.locality,)))

    @property
    def asked_penalties(self) -> Sequence[str]:
        """The penalties, also those that do not support the other parameters of the fit."""
        return (self.tuning and self.tuning.penalties) or (self.params.penalty,)

    @property
    def penalties(self) -> list[str]:
        """The penalties that support the other parameters of the fit."""
        return [name for name in self.asked_penalties if not penalty_named(name).unmet(self.params)]

    @property
    def components(self) -> list[int | None]:
        """The numbers of eigenfunctions; [None] without any."""
        return [*((self.tuning and self.tuning.components) or (self.params.components,))]

    @property
    def losses(self) -> list[str]:
        """The losses, in the order in which they are tried."""
        return [*dict.fromkeys((self.tuning and self.tuning.losses) or (self.params.loss,))]

    @property
    def refined_losses(self) -> list[str]:
        """The losses that need passes over the rows."""
        return [name for name in self.losses if not loss_named(name).solved_at_once]

    @property
    def combinations(self) -> list[Combination]:
        """All combinations to try, wide kernels first.

        Basis rules differ only for a basis of a given size by confidence. Features that no penalty
        supports are left out, and so are plain features if eigenfunctions are combined.
        """
        tuning = self._given
        anywhere = self.components == [None]
        chosen = [
            Combination(scale, basis, rule, features, kernel, factor)
            for scale in self.scales
            for basis in self.bases
            for rule in self._rules_of(basis)
            for features in tuning.features
            for kernel in self.kernels
            for factor in width_factors_of(kernel, tuning)
            if anywhere or features == "normalized"
        ]
        fit_some = {
            (basis, features): self._with(basis=basis, features=features).penalties
            for basis, features in {(each.basis, each.features) for each in chosen}
        }
        return [each for each in chosen if fit_some[each.basis, each.features]]

    @property
    def ridges(self) -> list[Ridge]:
        """The ridges to try with the features and basis of the fit, ordered by `shared`."""
        tried = product(self.penalties, self.localities, self._given.alphas, self.components)
        return [Ridge(penalty, alpha, locality, size) for penalty, locality, alpha, size in tried]

    @property
    def n_ridges(self) -> int:
        """Largest number of ridges that are tried with the whole basis."""
        n_penalties, n_alphas = len(self.asked_penalties), len(self._given.alphas)
        if self.is_searched:
            n_penalties, n_alphas = 1, min(n_alphas, 2 * ALPHAS_BESIDE + 1)
        return n_penalties * n_alphas * len(self.localities) * len(self.components)

    @property
    def chooses_size(self) -> bool:
        """Whether a tuning chooses the number of basis rows.

        A given size, confidence threshold, basis or number of eigenfunctions decides the number.
        """
        return (
            self.tuning is not None
            and self.params.basis_size is None
            and self.params.confidence_threshold == FitParams.confidence_threshold
            and self.components == [None]
        )

    @property
    def is_searched(self) -> bool:
        """Whether a tuning tries several combinations or sizes on a sample."""
        return self.tuning is not None and (self.chooses_size or len(self.combinations) > 1)

    @property
    def tries_cells(self) -> bool:
        """Whether a tuning compares one network with networks of cells."""
        return self.tuning is not None and self.params.cells == "auto"

    @property
    def is_of_cells(self) -> bool:
        """Whether the fit certainly has several cells, each with its own network."""
        return self.params.asks_for_cells and not self.tries_cells

    @property
    def by_confidence(self) -> bool:
        """Whether a tried basis needs the confidence of rows."""
        return source_of(self.params_needing_confidence).by_confidence

    @property
    def params_needing_confidence(self) -> FitParams:
        """The parameters with a tried basis, if possible one that needs confidences."""
        tried = [replace(self.params, basis=basis) for basis in self.bases]
        return next((each for each in tried if source_of(each).by_confidence), tried[0])

    def unfit_for_cells(self, *, sparse: bool) -> dict[str, bool]:
        """Return the options that cells do not support, each with whether a fit gives it."""
        asked = self if isinstance(self.params.cells, int) else self._replace(tuning=None)
        return {
            "sparse rows": sparse,
            "given basis rows": self.params.basis_is_given,
            "`prune`": self.params.prune is not None,
            "`components`": self.components != [None],
            "`locality`": any(self.localities),
            "a `loss` other than squared": bool(asked.refined_losses),
        }

    def check_penalties(self) -> None:
        """Raise ParameterError if a penalty does not support any tried features and basis."""
        features, bases = self._given.features, self.bases
        for name in self.asked_penalties:
            if not _is_for_some(name, self.params, features=features, bases=bases):
                asked = replace(self.params, penalty=name, features=features[-1], basis=bases[-1])
                check_penalty(asked, named="penalties" if self._given.penalties else "penalty")

    @property
    def _given(self) -> TuneParams:
        assert self.tuning is not None
        return self.tuning

    def _with(self, **changes: Any) -> "Trials":
        return self._replace(params=replace(self.params, **changes))

    def _rules_of(self, basis: str) -> Sequence[str]:
        params = replace(self.params, basis=basis)
        if params.basis_size is None or not source_of(params).by_confidence:
            return (params.basis_rule,)
        return self._given.basis_rules or (params.basis_rule,)


def basis_of_cell(params: FitParams) -> int:
    """Return the number of basis rows of every cell by the first parameters of a fit."""
    return params.basis_size or _BASIS_ROWS


def most_rows_of_cell(params: FitParams, n_rows: int, n_basis: int) -> float:
    """Return the maximum number of rows of a cell; larger cells are split."""
    if isinstance(params.cells, int):
        return 1.0
    return max(_ROWS_OF_BASIS_ROW * n_basis, n_rows / MOST_CELLS)


def planned_cells(params: FitParams, n_rows: int) -> int:
    """Return the planned number of cells of a fit."""
    if isinstance(params.cells, int):
        return params.cells
    most = most_rows_of_cell(params, n_rows, basis_of_cell(params))
    # Cells are halved until none has more rows.
    return int(min(2 ** max(0, ceil(log2(n_rows / most))), MOST_CELLS))


def width_factors_of(kernel: str, tuning: TuneParams) -> list[float]:
    """Return the width factors to try with a kernel, the widest first."""
    factors = tuning.width_factors or kernel_named(kernel).width_factors
    return sorted(set(factors), reverse=True)


def n_refinements(tuning: TuneParams) -> int:
    """Return the number of times that the search refines widths; 0 if widths are given."""
    return 0 if tuning.width_factors else _REFINEMENTS[tuning.effort]


def trials_of(run: Run) -> Trials:
    """Return what a run tries, without the values that finished stages have chosen."""
    return Trials(run.chosen_params, run.remaining_tuning)


def ridges_of(run: Run) -> list[Ridge]:
    """Return the ridges that a run tries with its whole basis."""
    return trials_of(run).ridges


def search_rows(n_rows: int, row_values: float, tuning: TuneParams) -> int:
    """Return the number of rows of the sample, at most all rows."""
    rows = tuning.search_rows
    if rows is None:
        rows = max(
            _MIN_SAMPLE_ROWS, min(int(_SAMPLE_ELEMENTS / max(row_values, 1)), _MAX_SAMPLE_ROWS)
        )
    return min(rows, n_rows)


def search_basis_size(dataset: Dataset, params: FitParams, tuning: TuneParams) -> int:
    """Return the basis size of the search, at most the basis size of the fit."""
    asked = asked_size(params, dataset) or dataset.n_rows
    return max(min(tuning.search_basis, asked, dataset.n_rows), dataset.n_classes)
