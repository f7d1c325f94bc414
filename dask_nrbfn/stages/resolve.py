"""Requests of a fit, resolved once: every "auto", and what a tuning tries by its effort."""

import logging
import math
from dataclasses import asdict, replace
from typing import Any

from dask_nrbfn.choices import KERNELS, LOSSES, PENALTIES
from dask_nrbfn.errors import Advice, ParameterError
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.scaling import LEARNED, RANK
from dask_nrbfn.params import N_NEIGHBORS, PAPER_ALPHA, FitParams, TuneParams
from dask_nrbfn.spec import TUNES, Spec, Targets, supports_any
from dask_nrbfn.storage.dataset import Dataset

logger = logging.getLogger(__name__)

# A tuning tries cells only on tables of at least this many rows. With fewer held-out rows the
# comparison depends on chance.
_LEAST_ROWS = 4000

# Basis rows of a cell without `basis_size`, and the maximum number of rows for each basis row.
_BASIS_ROWS, _ROWS_OF_BASIS_ROW = 1000, 3

# The alphas that a cell tries. With the alpha of the paper, rounding decides what an update and a
# forget leave.
CELL_ALPHAS = tuple(10.0**-power for power in range(3, 10))

# More cells would make more tasks and a larger, but hardly a better model. Larger tables have
# larger cells instead.
MOST_CELLS = 1024

# Held-out rows that are enough to compare networks. Fewer folds of a larger table are held out.
_JUDGED_ROWS = 10_000

# Folds of a fit that chooses alpha, if the table is small, and the alphas that it tries. Neighbours
# of the best power of ten do nearly as well, and each costs a factorization for every fold.
_FOLDS, _ALPHAS = 5, tuple(10.0**-power for power in range(1, 14, 2))

# Default number of coordinates of an embedding: enough for a picture.
_DEFAULT_COORDINATES = 2

# Values that are tried for a parameter that the fit leaves at its default.
_NORMAL: dict[str, tuple[str, ...]] = {
    "kernels": ("gaussian", "laplacian", "laplace-l1"),
    "penalties": ("weights", "kernel"),
    "bases": ("sknn", "random"),
    "basis_rules": ("least-confident", "uniform"),
}
_TRIED: dict[str, dict[str, tuple[str, ...]]] = {
    "quick": {"kernels": ("gaussian", "laplace-l1")},
    "normal": _NORMAL,
    "thorough": _NORMAL
    | {
        "kernels": tuple(KERNELS),
        "penalties": tuple(PENALTIES),
        "losses": tuple(LOSSES),
        "bases": ("sknn", "random", "kmeans"),
    },
}

# Scales that are tried in addition to the scale of the fit.
_SCALES = {
    "none": ("none", "standard", RANK, LEARNED),
    "standard": ("standard", RANK, LEARNED),
    RANK: (RANK, LEARNED),
}


def resolve(
    dataset: Dataset,
    params: FitParams,
    tuning: TuneParams | None = None,
    *,
    validation: Dataset | None = None,
    embeds: bool = False,
) -> Spec:
    """Return the fit of a dataset that is asked for; `validation` is encoded like the dataset."""
    n_labelled = dataset.of_labelled().n_rows
    rows: dict[str, Any] = {
        "mixed": bool(dataset.expanding),
        "n_rows": dataset.n_rows if dataset.y is None else n_labelled,
    }
    if embeds and tuning is not None:
        raise ParameterError("an embedding learns nothing to tune by.", "Leave `tuning` out.")
    if embeds:
        basis = "random" if params.basis == "auto" else params.basis
        size = params.components or _DEFAULT_COORDINATES
        params = params.with_checked(basis=basis, components=size, cells=1)
        resolved = params.resolve_auto(numbers=False, **rows)
        return Spec.of(_with_alpha(resolved), mode="embed", targets="none")
    if tuning is None and params.components is None and not dataset.is_sparse:
        rows["n_features"] = dataset.n_features
    targets: Targets = "numbers" if dataset.of_numbers else "classes"
    resolved = params.resolve_auto(numbers=dataset.of_numbers, **rows)
    if params.n_neighbors is None and resolved.k < N_NEIGHBORS and targets == "classes":
        few = "fit: so few rows that each row has all others as its %d neighbours"
        logger.info(few, resolved.n_neighbors)
    if tuning is None:
        return _resolve_fit(resolved, targets, n_labelled)
    fingerprint = None if validation is None else validation.fingerprint
    if tuning.validation not in (None, fingerprint):
        raise ParameterError(
            "tuning.validation is not the fingerprint of the validation dataset.",
            "Leave tuning.validation out: the fingerprint is read from the dataset.",
        )
    tuning, sparse = tuning.with_checked(validation=fingerprint), dataset.is_sparse
    spec = resolve_tuning(resolved, tuning, targets=targets, sparse=sparse, mixed=rows["mixed"])
    if spec.n_held_out:
        spec = replace(spec, n_held_out=n_judged_folds(n_labelled, spec.folds))
    if params.cells is None:
        spec = spec.choosing(cells=_default_cells(spec, n_labelled, sparse=sparse))
    return _first_tried(spec)


def _with_alpha(params: FitParams) -> FitParams:
    """Return the parameters with the alpha of the paper for "auto"."""
    is_auto = params.alpha == FitParams.alpha
    return params.with_checked(alpha=PAPER_ALPHA) if is_auto else params


def _resolve_fit(params: FitParams, targets: Targets, n_rows: int) -> Spec:
    """Return the fit of resolved parameters; the fit or its cells choose alpha if they can."""
    if params.alpha != FitParams.alpha:
        return Spec.of(params, targets=targets)
    if params.asks_for_cells:
        return Spec.of(params, targets=targets, alphas=CELL_ALPHAS)
    refined = not loss_named(params.loss).solved_at_once
    # Other losses do not support numbers, which the checks of the fit say.
    if refined and targets == "classes":
        uncalibrated = "fit: alpha is 1e-13 and probabilities are not calibrated. "
        tuned = f"With `losses`={params.loss}, a tuning chooses alpha and calibrates them."
        logger.warning("%s", Advice(uncalibrated + tuned))
    if refined or params.prune is not None or n_rows < 2 * _FOLDS:
        return Spec.of(_with_alpha(params), targets=targets)
    folds = max(_FOLDS, n_rows // _JUDGED_ROWS)
    held_out = n_judged_folds(n_rows, folds)
    return Spec.of(params, targets=targets, alphas=_ALPHAS, folds=folds, n_held_out=held_out)


def n_judged_folds(n_rows: int, n_folds: int) -> int:
    """Return the number of folds that are held out."""
    return min(n_folds, -(-n_folds * _JUDGED_ROWS // n_rows))


def resolve_tuning(
    params: FitParams,
    tuning: TuneParams,
    *,
    targets: Targets = "classes",
    sparse: bool = False,
    mixed: bool = False,
) -> Spec:
    """Return the tuning of resolved parameters, which tries what is given or its effort selects."""
    _check_bases(params, tuning)
    given = {name: tuple(values) for name in TUNES if (values := getattr(tuning, name)) is not None}
    spec = Spec.of(
        _with_alpha(params),
        mode="tune",
        targets=targets,
        **{"width_factors": (), **given},
        folds=tuning.folds,
        n_held_out=tuning.folds if tuning.validation is None else 0,
        validation=tuning.validation,
        effort=tuning.effort,
        search_basis=tuning.search_basis,
        search_rows=tuning.search_rows,
    )
    by_effort = _by_effort(spec, sparse=sparse, mixed=mixed)
    spec = spec.trying(**{name: each for name, each in by_effort.items() if name not in given})
    if "penalties" in by_effort and "penalties" not in given:
        penalties = (n for n in spec.penalties if supports_any(n, spec.features, spec.bases))
        spec = spec.trying(penalties=penalties)
    distinct = dict.fromkeys(spec.losses)
    return spec.trying(localities=sorted(set(spec.localities)), losses=distinct)


def _check_bases(params: FitParams, tuning: TuneParams) -> None:
    """Raise ParameterError if a tuning names bases, but they are given or have no common size."""
    if tuning.bases is None or (params.basis_size is not None and not params.basis_is_given):
        return
    reason, remedy = "the basis rows are given", "or give no basis rows"
    if not params.basis_is_given:
        reason, remedy = "the default sizes of these bases differ", "or give `basis_size`"
    raise ParameterError(
        f"`bases` are {', '.join(tuning.bases)}, but {reason}.",
        f"Leave `bases` out, {remedy}.",
    )


def _by_effort(spec: Spec, *, sparse: bool, mixed: bool) -> dict[str, tuple[str, ...]]:
    """Return the values that the effort of a tuning selects, besides those that are given."""
    params, sized = spec.params, spec.params.basis_size is not None
    if spec.effort == "quick" and spec.width_factors:
        # The factors that suit a kernel or scale do not suit another.
        return {}
    # A parameter that the fit names is not tried; "auto" is resolved.
    usual = vars(FitParams()) | {"basis": "sknn", "kernel": "gaussian"}
    given = {name for name, one in TUNES.items() if getattr(params, one) != usual[one]}
    tried = {name: each for name, each in _TRIED[spec.effort].items() if name not in given}
    if params.scale in _SCALES:
        tried["scales"] = tuple(
            each for each in _SCALES[params.scale] if each not in (RANK, LEARNED) or not sparse
        )
    if mixed and "kernels" in tried:
        tried["kernels"] = tuple(sorted(tried["kernels"], key=lambda name: name != "laplace-l1"))
    spectral = spec.components != (None,)
    unsupported = {
        "bases": not sized,
        "basis_rules": not sized,
        "losses": spec.targets == "numbers" or spectral,
        "penalties": spectral,
    }
    return {name: each for name, each in tried.items() if not unsupported.get(name)}


def _first_tried(spec: Spec) -> Spec:
    """Return a tuning with the loss that it tries first, and with its only combination, if any."""
    params = spec.params
    if params.loss not in spec.losses:
        params = params.with_checked(loss=spec.losses[0])
    if len(spec.combinations) == 1:
        params = params.with_checked(**asdict(spec.combinations[0]))
    return replace(spec, params=params)


def _default_cells(spec: Spec, n_rows: int, *, sparse: bool) -> int | str:
    """Return the default number of cells: "auto" for a tuning that may use several cells."""
    auto = spec.choosing(cells="auto")
    few = n_rows < _LEAST_ROWS or planned_cells(auto.params, n_rows) == 1
    if few or spec.effort == "quick" or spec.validation is not None:
        return 1
    return 1 if any(unsupported_by_cells(auto, sparse=sparse).values()) else "auto"


def unsupported_by_cells(spec: Spec, *, sparse: bool) -> dict[str, bool]:
    """Return the options that cells do not support, each with whether the fit has it."""
    # Cells that are compared with one network have the loss of the fit.
    losses = spec.losses if isinstance(spec.params.cells, int) else (spec.params.loss,)
    return {
        "sparse rows": sparse,
        "given basis rows": spec.params.basis_is_given,
        "`prune`": spec.params.prune is not None,
        "`components`": spec.components != (None,),
        "`locality`": any(spec.localities),
        "a `loss` other than squared": bool(spec.trying(losses=losses).refined_losses),
    }


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
    return int(min(2 ** max(0, math.ceil(math.log2(n_rows / most))), MOST_CELLS))
