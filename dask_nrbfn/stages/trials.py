"""The combinations that a tuning tries, and their number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, log2
from typing import Any

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
    """Return a tuning with the values that its effort selects, for resolved parameters.

    Feature weights are not learned from `sparse` rows.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams
    numbers : bool
        Whether the targets are numbers.
    sparse : bool
        Whether the rows are sparse.
    mixed : bool
        Whether columns are of several kinds. The kernel of l1 distances is then tried first.

    Returns
    -------
    TuneParams

    Raises
    ------
    ParameterError
        If the tuning compares bases without a size, or besides given basis rows.
    """
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
    spectral = components_of(params, tuning) != [None]
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


def combinations(params: FitParams, tuning: TuneParams) -> list[Combination]:
    """Return all combinations to try, wide kernels first.

    Basis rules differ only for a basis of a given size by confidence. Features that no penalty
    supports are left out, and so are plain features if eigenfunctions are combined.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams

    Returns
    -------
    list of Combination
    """
    anywhere = components_of(params, tuning) == [None]
    chosen = [
        Combination(scale, basis, rule, features, kernel, factor)
        for scale in scales_of(params, tuning)
        for basis in bases_of(params, tuning)
        for rule in _rules_of(replace(params, basis=basis), tuning)
        for features in tuning.features
        for kernel in kernels_of(params, tuning)
        for factor in width_factors_of(kernel, tuning)
        if anywhere or features == "normalized"
    ]
    fit_some = {
        names: penalties_of(replace(params, basis=names[0], features=names[1]), tuning)
        for names in {(each.basis, each.features) for each in chosen}
    }
    return [each for each in chosen if fit_some[each.basis, each.features]]


def chooses_size(params: FitParams, tuning: TuneParams | None) -> bool:
    """Return whether a tuning chooses the number of basis rows.

    A given size, confidence threshold, basis or number of eigenfunctions decides the number.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    bool
    """
    return (
        tuning is not None
        and params.basis_size is None
        and params.confidence_threshold == FitParams.confidence_threshold
        and components_of(params, tuning) == [None]
    )


def tries_cells(params: FitParams, tuning: TuneParams | None) -> bool:
    """Return whether a tuning compares one network with networks of cells.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    bool
    """
    return tuning is not None and params.cells == "auto"


def is_of_cells(params: FitParams, tuning: TuneParams | None) -> bool:
    """Return whether the fit certainly has several cells, each with its own network.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    bool
    """
    return params.asks_for_cells and not tries_cells(params, tuning)


def basis_of_cell(params: FitParams) -> int:
    """Return the number of basis rows of every cell by the first parameters of a fit."""
    return params.basis_size or _BASIS_ROWS


def most_rows_of_cell(params: FitParams, n_rows: int, n_basis: int) -> float:
    """Return the maximum number of rows of a cell; larger cells are split.

    Parameters
    ----------
    params : FitParams
    n_rows : int
    n_basis : int
        Basis rows of a cell.

    Returns
    -------
    float
    """
    if isinstance(params.cells, int):
        return 1.0
    return max(_ROWS_OF_BASIS_ROW * n_basis, n_rows / MOST_CELLS)


def planned_cells(params: FitParams, n_rows: int) -> int:
    """Return the planned number of cells of a fit.

    Parameters
    ----------
    params : FitParams
    n_rows : int
        Rows of the table.

    Returns
    -------
    int
    """
    if isinstance(params.cells, int):
        return params.cells
    most = most_rows_of_cell(params, n_rows, basis_of_cell(params))
    # Cells are halved until none has more rows.
    return int(min(2 ** max(0, ceil(log2(n_rows / most))), MOST_CELLS))


def unfit_for_cells(
    params: FitParams, tuning: TuneParams | None, *, sparse: bool
) -> dict[str, bool]:
    """Return the options that several cells do not support, each with whether a fit has it.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None
        Losses that are tried by `effort` are tried with one network only.
    sparse : bool
        Whether the rows are sparse.

    Returns
    -------
    dict of str to bool
    """
    losses = refined_losses(params, tuning if isinstance(params.cells, int) else None)
    return {
        "sparse rows": sparse,
        "given basis rows": params.basis_is_given,
        "`prune`": params.prune is not None,
        "`components`": components_of(params, tuning) != [None],
        "`locality`": any(localities_of(params, tuning)),
        "a `loss` other than squared": bool(losses),
    }


def sized_bases(params: FitParams, tuning: TuneParams) -> list[str]:
    """Return the sources of the basis whose sizes are compared: the fit's source, and a draw.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams

    Returns
    -------
    list of str
    """
    return (
        [params.basis] if tuning.effort == "quick" else [*dict.fromkeys((params.basis, "random"))]
    )


def is_searched(params: FitParams, tuning: TuneParams | None) -> bool:
    """Return whether a tuning tries several combinations or sizes on a sample.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    bool
    """
    if tuning is None:
        return False
    return chooses_size(params, tuning) or len(combinations(params, tuning)) > 1


def width_factors_of(kernel: str, tuning: TuneParams) -> list[float]:
    """Return the width factors to try with a kernel, the widest first.

    Parameters
    ----------
    kernel : str
    tuning : TuneParams

    Returns
    -------
    list of float
    """
    factors = tuning.width_factors or kernel_named(kernel).width_factors
    return sorted(set(factors), reverse=True)


def n_refinements(tuning: TuneParams) -> int:
    """Return the number of times that the search refines widths; 0 if widths are given."""
    return 0 if tuning.width_factors else _REFINEMENTS[tuning.effort]


def scales_of(params: FitParams, tuning: TuneParams | None) -> Sequence[str]:
    """Return the scales of a fit, or of its tuning.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    sequence of str
    """
    return (tuning and tuning.scales) or (params.scale,)


def kernels_of(params: FitParams, tuning: TuneParams | None) -> Sequence[str]:
    """Return the kernels of a fit, or of its tuning.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    sequence of str
    """
    return (tuning and tuning.kernels) or (params.kernel,)


def bases_of(params: FitParams, tuning: TuneParams | None) -> Sequence[str]:
    """Return the sources of the basis of a fit, or of its tuning.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    sequence of str
    """
    return (tuning and tuning.bases) or (params.basis,)


def by_confidence(params: FitParams, tuning: TuneParams | None) -> bool:
    """Return whether a tried basis needs the confidence of rows.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    bool
    """
    return source_of(params_needing_confidence(params, tuning)).by_confidence


def params_needing_confidence(params: FitParams, tuning: TuneParams | None) -> FitParams:
    """Return the parameters with a tried basis, if possible one that needs confidences.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    FitParams
    """
    tried = [replace(params, basis=basis) for basis in bases_of(params, tuning)]
    return next((each for each in tried if source_of(each).by_confidence), tried[0])


def _rules_of(params: FitParams, tuning: TuneParams) -> Sequence[str]:
    if params.basis_size is None or not source_of(params).by_confidence:
        return (params.basis_rule,)
    return tuning.basis_rules or (params.basis_rule,)


def ridges_of(run: Run) -> list[Ridge]:
    """Return the ridges that a run tries with its whole basis."""
    assert run.remaining_tuning is not None
    return ridges(run.chosen_params, run.remaining_tuning)


def most_ridges(params: FitParams, tuning: TuneParams) -> int:
    """Return the largest number of ridges that are tried with the whole basis.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams

    Returns
    -------
    int
    """
    n_penalties, n_alphas = len(tuning.penalties or (params.penalty,)), len(tuning.alphas)
    if is_searched(params, tuning):
        n_penalties, n_alphas = 1, min(n_alphas, 2 * ALPHAS_BESIDE + 1)
    n_others = len(localities_of(params, tuning)) * len(components_of(params, tuning))
    return n_penalties * n_alphas * n_others


def ridges(params: FitParams, tuning: TuneParams) -> list[Ridge]:
    """Return the ridges to try with the features and basis of `params`, ordered by `shared`.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams

    Returns
    -------
    list of Ridge
    """
    tried = product(
        penalties_of(params, tuning),
        localities_of(params, tuning),
        tuning.alphas,
        components_of(params, tuning),
    )
    return [Ridge(penalty, alpha, locality, size) for penalty, locality, alpha, size in tried]


def localities_of(params: FitParams, tuning: TuneParams | None) -> Sequence[float]:
    """Return the localities of a fit, or of its tuning.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    sequence of float
    """
    return sorted(set((tuning and tuning.localities) or (params.locality,)))


def penalties_of(params: FitParams, tuning: TuneParams | None) -> list[str]:
    """Return the penalties of a fit, or of its tuning, that support the parameters.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    list of str
    """
    tried = (tuning and tuning.penalties) or (params.penalty,)
    return [name for name in tried if not penalty_named(name).unmet(params)]


def components_of(params: FitParams, tuning: TuneParams | None) -> list[int | None]:
    """Return the numbers of eigenfunctions of a fit, or of its tuning; [None] without any.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    list of int or None
    """
    return [*((tuning and tuning.components) or (params.components,))]


def losses_of(params: FitParams, tuning: TuneParams | None) -> list[str]:
    """Return the losses of a fit, or of its tuning, in the order in which they are tried.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    list of str
    """
    return list(dict.fromkeys((tuning and tuning.losses) or (params.loss,)))


def refined_losses(params: FitParams, tuning: TuneParams | None) -> list[str]:
    """Return the losses of a fit, or of its tuning, that need passes over the rows.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Returns
    -------
    list of str
    """
    return [name for name in losses_of(params, tuning) if not loss_named(name).solved_at_once]


def check_penalties(params: FitParams, tuning: TuneParams) -> None:
    """Raise ParameterError if a penalty does not support any tried features and basis.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams
    """
    bases = bases_of(params, tuning)
    for name in tuning.penalties or (params.penalty,):
        if not _is_for_some(name, params, features=tuning.features, bases=bases):
            asked = replace(params, penalty=name, features=tuning.features[-1], basis=bases[-1])
            check_penalty(asked, named="penalties" if tuning.penalties else "penalty")


def check_kernel_exponent(params: FitParams, tuning: TuneParams | None) -> None:
    """Check that a kernel of a fit has an exponent if `kernel_exponent` is set.

    Parameters
    ----------
    params : FitParams
    tuning : TuneParams or None

    Raises
    ------
    ParameterError
        If no kernel has an exponent.
    """
    asked, tried = params.kernel_exponent, kernels_of(params, tuning)
    if asked != 1 and all(kernel_named(name).exponent is None for name in tried):
        named = "`kernel` is" if tuning is None or tuning.kernels is None else "`kernels` are"
        raise ParameterError(
            f"`kernel_exponent` is {asked}, but {named} {', '.join(tried)}.",
            "Leave `kernel_exponent` out, or give the kernel laplace-l1.",
        )


def search_rows(n_rows: int, row_values: float, tuning: TuneParams) -> int:
    """Return the number of rows of the sample, at most all rows.

    Parameters
    ----------
    n_rows : int
    row_values : float
        Mean number of stored values of a row.
    tuning : TuneParams

    Returns
    -------
    int
    """
    rows = tuning.search_rows
    if rows is None:
        rows = max(
            _MIN_SAMPLE_ROWS, min(int(_SAMPLE_ELEMENTS / max(row_values, 1)), _MAX_SAMPLE_ROWS)
        )
    return min(rows, n_rows)


def search_basis_size(dataset: Dataset, params: FitParams, tuning: TuneParams) -> int:
    """Return the basis size of the search, at most the basis size of the fit.

    Parameters
    ----------
    dataset : Dataset
    params : FitParams
    tuning : TuneParams

    Returns
    -------
    int
    """
    asked = asked_size(params, dataset) or dataset.n_rows
    return max(min(tuning.search_basis, asked, dataset.n_rows), dataset.n_classes)
