"""The inputs of a fit, with every "auto" resolved once, its trials, and the cost of stages."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Self

from numpy.typing import ArrayLike

from dask_nrbfn.choices import KERNELS, LOSSES, PENALTIES
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import Advice, ParameterError
from dask_nrbfn.neighbors.plan import NeighborSearch
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.penalties import check_penalty, penalty_named
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.params import PAPER_ALPHA, FitLimits, FitParams, TuneParams
from dask_nrbfn.stages.bases import requested_size, source_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Elements of the sample if the number of rows is not given, and the limits of that number. On
# 40,000 rows an error of 1 % is known to within 0.05 %.
_SAMPLE_ELEMENTS = 2**25
_MIN_SAMPLE_ROWS, _MAX_SAMPLE_ROWS = 20_000, 100_000

# Number of alphas on either side of the best alpha of a search that are tried with the whole basis.
# The best alpha falls as a basis grows.
ALPHAS_NEXT = 3

# A tuning tries cells only on tables of at least this many rows. With fewer held-out rows the
# comparison depends on chance.
_LEAST_ROWS = 4000

# Basis rows of a cell without `basis_size`, and the maximum number of rows for each basis row.
_BASIS_ROWS, _ROWS_OF_BASIS_ROW = 1000, 3

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
    if tuning.bases is not None and (params.basis_is_given or not sized):
        reason, remedy = "the basis rows are given", "or give no basis rows"
        if not params.basis_is_given:
            reason, remedy = "the default sizes of these bases differ", "or give `basis_size`"
        raise ParameterError(
            f"`bases` are {', '.join(tuning.bases)}, but {reason}.",
            f"Leave `bases` out, {remedy}.",
        )
    tried = {name: each for name, each in _TRIED[tuning.effort].items() if _is_open(name, params)}
    quick = tuning.effort == "quick"
    if params.scale in _SCALES:
        tried["scales"] = tuple(
            each for each in _SCALES[params.scale] if each != LEARNED or not sparse
        )
    if quick and tuning.width_factors is not None:
        # The factors that suit a kernel or scale do not suit another.
        tried = {}
    if mixed and "kernels" in tried:
        tried["kernels"] = tuple(sorted(tried["kernels"], key=lambda name: name != "laplace-l1"))
    spectral = Trials.of(params, tuning).components != [None]
    unsupported = {
        "bases": not sized,
        "basis_rules": not sized,
        "losses": numbers or spectral,
        "penalties": spectral,
    }
    changes: dict[str, Any] = {
        name: each
        for name, each in tried.items()
        if getattr(tuning, name) is None and not unsupported.get(name)
    }
    if "penalties" in changes:
        bases = tuning.bases or changes.get("bases", (params.basis,))
        changes["penalties"] = tuple(
            name for name in changes["penalties"] if _supports_any(name, tuning.features, bases)
        )
    return replace(tuning, **changes)


def _is_open(name: str, params: FitParams) -> bool:
    """Return whether the parameter of the fit that a tuning tries has its default."""
    tuned = str(TuneParams.options()[name].tunes)
    default = "sknn" if tuned == "basis" else FitParams.options()[tuned].default
    return bool(getattr(params, tuned) == default)


def _supports_any(penalty: str, features: Sequence[str], bases: Sequence[str]) -> bool:
    """Return whether a penalty supports one of these features with one of these bases."""
    values = {"features": features, "basis": bases}
    return all(need in values[name] for name, need in penalty_named(penalty).needs.items())


@dataclass(frozen=True)
class Combination:
    """A combination of parameters that is tried."""

    scale: str
    basis: str
    basis_rule: str
    features: str
    kernel: str
    width_factor: float


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What a fit tries: the values of its parameters, or those of its tuning."""

    params: FitParams
    tuning: TuneParams | None
    scales: Sequence[str]
    kernels: Sequence[str]
    bases: Sequence[str]
    # Also those that do not support the other parameters of the fit.
    all_penalties: Sequence[str]
    # Ascending.
    localities: list[float]
    # [None] without eigenfunctions.
    components: list[int | None]
    losses: list[str]

    @classmethod
    def of(cls, params: FitParams, tuning: TuneParams | None) -> Self:
        """Return what a fit with resolved parameters tries."""
        localities = (tuning and tuning.localities) or (params.locality,)
        return cls(
            params=params,
            tuning=tuning,
            scales=(tuning and tuning.scales) or (params.scale,),
            kernels=(tuning and tuning.kernels) or (params.kernel,),
            bases=(tuning and tuning.bases) or (params.basis,),
            all_penalties=(tuning and tuning.penalties) or (params.penalty,),
            localities=sorted(set(localities)),
            components=[*((tuning and tuning.components) or (params.components,))],
            losses=[*dict.fromkeys((tuning and tuning.losses) or (params.loss,))],
        )

    @property
    def penalties(self) -> list[str]:
        """The penalties that support the other parameters of the fit."""
        return [name for name in self.all_penalties if not penalty_named(name).unmet(self.params)]

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
        tuning, params = self.given_tuning, self.params
        sized, plain = params.basis_size is not None, self.components == [None]
        return [
            Combination(scale, basis, rule, features, kernel, factor)
            for scale in self.scales
            for basis in self.bases
            for rule in (
                (sized and source_of(basis).by_confidence and tuning.basis_rules)
                or (params.basis_rule,)
            )
            for features in tuning.features
            if (plain or features == "normalized")
            and any(_supports_any(name, [features], [basis]) for name in self.all_penalties)
            for kernel in self.kernels
            for factor in sorted(
                set(tuning.width_factors or kernel_named(kernel).width_factors), reverse=True
            )
        ]

    @property
    def ridges(self) -> list[Ridge]:
        """The ridges to try with the features and basis of the fit, ordered by `shared`."""
        tried = product(self.penalties, self.localities, self.given_tuning.alphas, self.components)
        return [Ridge(penalty, alpha, locality, size) for penalty, locality, alpha, size in tried]

    @property
    def n_ridges(self) -> int:
        """Largest number of ridges that are tried with the whole basis."""
        n_penalties, n_alphas = len(self.all_penalties), len(self.given_tuning.alphas)
        if self.is_searched:
            n_penalties, n_alphas = 1, min(n_alphas, 2 * ALPHAS_NEXT + 1)
        return n_penalties * n_alphas * len(self.localities) * len(self.components)

    @property
    def chooses_size(self) -> bool:
        """Whether a tuning chooses the number of basis rows."""
        return (
            self.tuning is not None
            and self.params.basis_size is None
            and self.tuning.n_held_out is None
            and self.params.confidence_threshold is None
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
    def confident_basis(self) -> str | None:
        """The first tried basis that needs the confidence of rows; None if no basis does."""
        return next((name for name in self.bases if source_of(name).by_confidence), None)

    @property
    def by_confidence(self) -> bool:
        """Whether a tried basis needs the confidence of rows."""
        return self.confident_basis is not None

    def unsupported_by_cells(self, *, sparse: bool) -> dict[str, bool]:
        """Return the options that cells do not support, each with whether the fit has it."""
        fit = self if isinstance(self.params.cells, int) else Trials.of(self.params, None)
        return {
            "sparse rows": sparse,
            "given basis rows": self.params.basis_is_given,
            "`prune`": self.params.prune is not None,
            "`components`": self.components != [None],
            "`locality`": any(self.localities),
            "a `loss` other than squared": bool(fit.refined_losses),
        }

    def check_penalties(self) -> None:
        """Raise ParameterError if a penalty does not support any tried features and basis."""
        features, bases = self.given_tuning.features, self.bases
        for name in self.all_penalties:
            if not _supports_any(name, features, bases):
                last = replace(self.params, penalty=name, features=features[-1], basis=bases[-1])
                check_penalty(last, named="penalties" if self.given_tuning.penalties else "penalty")

    @property
    def given_tuning(self) -> TuneParams:
        """The tuning of a fit that tunes."""
        assert self.tuning is not None
        return self.tuning


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


def tuning_of(run: Run) -> TuneParams:
    """Return the tuning of a run that tunes."""
    assert run.tuning is not None
    return run.tuning


def n_refinements(tuning: TuneParams) -> int:
    """Return the number of times that the search refines widths; 0 if widths are given."""
    return 0 if tuning.width_factors else _REFINEMENTS[tuning.effort]


def trials_of(run: Run) -> Trials:
    """Return what a run tries, without the values that finished stages have chosen."""
    return Trials.of(run.chosen_params, run.remaining_tuning)


def search_rows(n_rows: int, row_values: float, tuning: TuneParams) -> int:
    """Return the number of rows of the sample, at most all rows."""
    affordable = int(_SAMPLE_ELEMENTS / max(row_values, 1))
    default = max(_MIN_SAMPLE_ROWS, min(affordable, _MAX_SAMPLE_ROWS))
    return min(tuning.search_rows or default, n_rows)


def search_basis_size(dataset: Dataset, params: FitParams, tuning: TuneParams) -> int:
    """Return the basis size of the search, at most the basis size of the fit."""
    size = requested_size(params, dataset) or dataset.n_rows
    return max(min(tuning.search_basis, size, dataset.n_rows), dataset.n_classes)


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """The largest terms of the expected cost of one stage.

    Products, systems, exponentials and pairs are the work of all tasks, see `Rates`, and so are the
    bytes read and written; `held_bytes` is the peak memory of one worker, including its process.
    """

    products: float = 0.0
    # Number of factored systems by their size; each takes ``r^3 / 3`` products.
    systems: Mapping[int, float] = field(default_factory=dict)
    exponentials: float = 0.0
    pairs: float = 0.0
    pair_flops: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    held_bytes: int
    n_tasks: int = 1
    # Seconds of all tasks that do not depend on the rates.
    other_s: float = 0.0

    @property
    def all_products(self) -> float:
        """Products of sums and of systems."""
        return self.products + sum(n * size**3 / 3 for size, n in self.systems.items())

    @property
    def flops(self) -> float:
        """Floating-point operations of all tasks."""
        return self.all_products + self.pairs * self.pair_flops


# Seconds of overhead of a part, from its submission to its record: the scheduler, opening the run
# and the dataset, writing the part.
_PART_S = 0.06

# A system of r basis rows is copied, factored in blocks and its condition estimated, which takes as
# long as so many r^2 products, and at least so many seconds.
_COPIES, _SYSTEM_S = 200, 1e-4


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The amounts of work that one worker does in a second.

    Floating-point operations of products and factorizations, activations without their products,
    pairs of rows in an exact search, with the columns of the dataset, and bytes.
    """

    products: float
    exponentials: float
    pairs: float
    bytes: float


def expected_s(cost: StageCost, rates: Rates, n_workers: int) -> float:
    """Return the expected seconds of a stage."""
    copies = sum(n * _COPIES * size**2 for size, n in cost.systems.items())
    shared = (
        (cost.all_products + copies) / rates.products
        + cost.exponentials / rates.exponentials
        + cost.pairs / rates.pairs
        + (cost.read_bytes + cost.written_bytes) / rates.bytes
        + sum(cost.systems.values()) * _SYSTEM_S
        + cost.other_s
    )
    # The last round of tasks may leave workers idle.
    rounds = math.ceil(cost.n_tasks / n_workers)
    return shared * rounds / cost.n_tasks + rounds * _PART_S


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The time at which a tuning should end, by `time.monotonic`, and the rates of a worker."""

    ends: float = math.inf
    rates: Rates | None = None
    n_workers: int = 1

    def needed_s(self, costs: Iterable[StageCost]) -> float:
        """Return the expected seconds of stages; 0 without rates."""
        rates = self.rates
        return sum(expected_s(cost, rates, self.n_workers) for cost in costs) if rates else 0.0

    def left_s(self, costs: Iterable[StageCost]) -> float:
        """Return the seconds that are left before stages with these costs must begin."""
        return self.ends - time.monotonic() - self.needed_s(costs)


@dataclass(frozen=True, eq=False, kw_only=True)
class FitContext:
    """A fit, a tuning or an embedding, as every stage sees it."""

    dataset: Dataset
    # Resolved. In a run, with the values that its finished stages have chosen.
    params: FitParams
    engine: Engine
    # Resolved. In a run, without the values that finished stages have chosen.
    tuning: TuneParams | None = None
    # Labelled rows on which networks are compared, instead of folds.
    validation: Dataset | None = None
    # The basis rows (r, p) that `params` name.
    basis: ArrayLike | None = None
    min_recall: float = FitLimits.min_recall
    embeds: bool = False
    layout: PartLayout
    labelled_layout: PartLayout
    # None until it is planned.
    search: NeighborSearch | None = None
    # Number of basis rows that were chosen, or for which costs are computed.
    found_basis: int | None = None
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def resolve(
        cls,
        dataset: Dataset,
        params: FitParams,
        engine: Engine,
        tuning: TuneParams | None = None,
        *,
        validation: Dataset | None = None,
        embeds: bool = False,
        basis: ArrayLike | None = None,
        min_recall: float = FitLimits.min_recall,
    ) -> Self:
        """Return the context of a fit that begins now, with every "auto" resolved."""
        quick = tuning is not None and tuning.effort == "quick"
        if quick and params.metric_rounds is None and params.scale != LEARNED:
            # The first round gains most.
            params = replace(params, metric_rounds=1)
        cells = 1 if embeds else params.cells
        params = _resolve_params(dataset, params, embeds=embeds)
        if cells is None:
            cells = _default_cells(dataset, params, tuning, validation)
        params = replace(params, cells=cells)
        if tuning is not None:
            if validation is not None:
                validation = validation.encoded_like(dataset).of_labelled()
            fingerprint = None if validation is None else validation.fingerprint
            if tuning.validation not in (None, fingerprint):
                raise ParameterError(
                    "tuning.validation is not the fingerprint of the validation dataset.",
                    "Leave tuning.validation out: the fingerprint is read from the dataset.",
                )
            tuning = resolve_tuning(
                params,
                replace(tuning, validation=fingerprint),
                numbers=dataset.of_numbers,
                sparse=dataset.is_sparse,
                mixed=bool(dataset.expanding),
            )
            params = _first_tried(params, tuning)
        elif params.alpha == FitParams.alpha and not embeds:
            tuning = _of_alpha(params, dataset.of_labelled().n_rows)
        if params.alpha == FitParams.alpha and not _chooses_alpha(params, tuning):
            params = replace(params, alpha=PAPER_ALPHA)
        layout, labelled_layout = (
            PartLayout.of(
                n_rows, params.n_parts, n_workers=engine.n_workers, gpu=engine.device == "gpu"
            )
            for n_rows in (dataset.n_rows, dataset.of_labelled().n_rows)
        )
        return cls(
            dataset=dataset,
            params=params,
            engine=engine,
            tuning=tuning,
            validation=validation,
            embeds=embeds,
            layout=layout,
            labelled_layout=labelled_layout,
            basis=basis,
            min_recall=min_recall,
        )

    def in_run(self, run: Run) -> Self:
        """Return the context with the decisions of a run and of its finished stages."""
        return replace(
            self,
            params=run.chosen_params,
            tuning=run.remaining_tuning,
            layout=run.layout,
            labelled_layout=run.of_labelled().layout,
            search=NeighborSearch(**run.decisions["neighbors"]),
            found_basis=run.stages["basis"]["n_basis"] if "basis" in run.stages else None,
        )

    @cached_property
    def tried(self) -> Trials:
        """What the fit tries."""
        return Trials.of(self.params, self.tuning)

    @property
    def basis_option(self) -> str:
        """The option that selects a tried basis, by confidence if possible, as ``name=value``."""
        basis = self.tried.confident_basis or self.tried.bases[0]
        return f"`{'basis' if basis == self.params.basis else 'bases'}`={basis}"

    @property
    def requested_size(self) -> int | None:
        """Requested number of basis rows; None: all that the source finds."""
        return requested_size(self.params, self.dataset)

    @property
    def n_basis(self) -> int:
        """Number of basis rows, chosen or requested; if both are unknown, the smallest possible."""
        return self.found_basis or self.requested_size or self.dataset.n_classes


def _resolve_params(dataset: Dataset, params: FitParams, *, embeds: bool) -> FitParams:
    """Return the parameters with every "auto" resolved; log if rows are too few for neighbours."""
    if embeds:
        basis = "random" if params.basis == "auto" else params.basis
        components = params.components or _DEFAULT_COORDINATES
        params = replace(params, basis=basis, components=components)
    numbers = dataset.of_numbers and not embeds
    n_rows = dataset.of_labelled().n_rows if dataset.y is not None else dataset.n_rows
    resolved = params.resolve_auto(numbers=numbers, mixed=bool(dataset.expanding), n_rows=n_rows)
    fewer = resolved.n_neighbors != params.resolve_auto(numbers=numbers).n_neighbors
    if fewer and not dataset.of_numbers and not embeds:
        logger.info(
            "fit: so few rows that each row has all others as its %d neighbours",
            resolved.n_neighbors,
        )
    return resolved


def _default_cells(
    dataset: Dataset, params: FitParams, tuning: TuneParams | None, validation: Dataset | None
) -> int | str:
    """Return the default number of cells: "auto" for a tuning that may use several cells."""
    if tuning is None or tuning.effort == "quick" or (validation or tuning.validation):
        return 1
    auto = replace(params, cells="auto")
    n_rows = dataset.of_labelled().n_rows
    unsupported = Trials.of(auto, tuning).unsupported_by_cells(sparse=dataset.is_sparse)
    few = n_rows < _LEAST_ROWS or planned_cells(auto, n_rows) == 1
    return 1 if few or any(unsupported.values()) else "auto"


def _of_alpha(params: FitParams, n_rows: int) -> TuneParams | None:
    """Return the tuning that chooses only alpha; None if the fit cannot choose an alpha."""
    refined = Trials.of(params, None).refined_losses
    if refined:
        uncalibrated = "fit: alpha is 1e-13 and probabilities are not calibrated. "
        tuned = f"With `losses`={params.loss}, a tuning chooses alpha and calibrates them."
        logger.warning("%s", Advice(uncalibrated + tuned))
    if refined or params.asks_for_cells or params.prune is not None or n_rows < 2 * _FOLDS:
        return None
    folds = max(_FOLDS, n_rows // _JUDGED_ROWS)
    own: dict[str, Any] = {"features": params.features, "width_factors": params.width_factor}
    return TuneParams(alphas=_ALPHAS, folds=folds, n_held_out=n_judged_folds(n_rows, folds), **own)


def _chooses_alpha(params: FitParams, tuning: TuneParams | None) -> bool:
    """Return whether a fit, or each of its cells, chooses alpha."""
    return params.asks_for_cells if tuning is None else tuning.n_held_out is not None


def n_judged_folds(n_rows: int, n_folds: int) -> int:
    """Return the number of folds that are held out."""
    return min(n_folds, -(-n_folds * _JUDGED_ROWS // n_rows))


def _first_tried(params: FitParams, tuning: TuneParams) -> FitParams:
    """Return parameters with the values of a tuning that tries a single combination."""
    if tuning.losses and params.loss not in tuning.losses:
        params = replace(params, loss=tuning.losses[0])
    tried = Trials.of(params, tuning).combinations
    return replace(params, **asdict(tried[0])) if len(tried) == 1 else params
