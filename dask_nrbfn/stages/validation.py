"""Stages "path" and "validation": weights of each ridge, and their held-out errors."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError, IllConditionedError, ParameterError
from dask_nrbfn.numeric.calibration import (
    FIT_BYTES,
    MOST_SCORES,
    DrawnRows,
    ScoreDraw,
    fit_calibration,
)
from dask_nrbfn.numeric.device import beside, to_host
from dask_nrbfn.numeric.eigenfunctions import eigenfunctions_bytes, eigenfunctions_flops
from dask_nrbfn.numeric.folds import FoldedBlock, folds_of_numbers
from dask_nrbfn.numeric.held_out import (
    INVERSE_TEMPERATURES,
    FoldSums,
    FoldWeights,
    HeldOutSums,
    JudgedSums,
    LabelSums,
    ResidualSums,
    held_out_scores,
    sums_of,
)
from dask_nrbfn.numeric.intervals import MOST_OF_SCALE, MOST_RESIDUALS, RowScale
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.radial import Near
from dask_nrbfn.numeric.reliability import expected_calibration_error, reliability_of_rows
from dask_nrbfn.numeric.ridge import Each, RidgeSystem, solve_bytes
from dask_nrbfn.numeric.ridge_path import solve_all
from dask_nrbfn.numeric.risk import gram_eigenvalues, spectral_bounds
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.threads import concurrent_bytes, concurrent_map
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import (
    PartResult,
    Reduction,
    Sums,
    map_parts,
    read_total,
    reduce_parts,
    run_task,
)
from dask_nrbfn.stages.basis import BASIS_LABELLED, BASIS_ROWS
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.linear import (
    compare_with_fit,
    is_compared,
    linear_bytes,
    linear_flops,
    n_compared_rows,
)
from dask_nrbfn.stages.moments import (
    STORED_MOMENTS,
    folded_reading,
    read_features,
    read_moments,
    read_system,
    read_targets,
    ridge_terms,
    rows_of_block,
)
from dask_nrbfn.stages.stage import HeldOutRecord, Stage, StageJob, StageRecord, in_words
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.run import Run, RunArray, RunArrays

logger = logging.getLogger(__name__)

# Eigenvalues are computed up to this many basis rows. With 4,096 they take as long as ten
# factorizations, and the ratio grows with the basis.
LARGEST_SPECTRUM = 4096

# Up to this many basis rows the systems of a path are solved side by side, each with one thread,
# because threads that share a small factorization mostly wait for each other.
_LARGEST_SMALL = 2048

# The fields of `FoldWeights` that are stored for each fold.
_STORED = ("weights", "intercepts", "ones")


@dataclass(frozen=True, kw_only=True)
class PathRecord(StageRecord):
    """Error, risk, bounds and condition of each tried ridge on all rows."""

    path: list[dict[str, Any]]


def _solve_path(job: StageJob) -> PathRecord:
    """Store the weights of all ridges; each part leaves out one fold, the last part none.

    A fit that chooses alpha has no last part, because the stage "weights" solves one system. Error,
    risk and bounds are of the last part.
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    folds: list[int | None] = [*range(run.spec.n_held_out)]
    if not run.spec.chooses_alpha:
        folds.append(None)
    units = [(fold,) for fold in folds]
    records = map_parts(run, dataset, engine, stage="path", task=_path_part, units=units)
    return PathRecord(path=records[-1]["path"])


def kept_basis(run: Run, fold: int) -> NDArray[np.bool_]:
    """Return a mask (r,) of the basis rows outside a fold.

    Those of a fold are left out, because without their own row nothing fits their weights.
    """
    rows = (BASIS_LABELLED if BASIS_LABELLED.is_in(run) else BASIS_ROWS).read(run)
    folds = folds_of_numbers(rows, n_folds=run.spec.n_folds, seed=run.spec.params.random_state)
    return np.not_equal(folds, fold)


def read_path_weights(run: Run, fold: int | None, place: int | None = None) -> FoldWeights:
    """Return the weights of all ridges, or of one place, without one fold; None: of all rows."""
    index = run.spec.n_held_out if fold is None else fold
    rows = (0, None) if place is None else (place, place + 1)
    places = run.part_arrays("path", index, _STORED)
    weights, intercepts, ones = (run.read(place, *rows) for place in places)
    kept = np.ones(ones.shape[1], dtype=np.bool_) if fold is None else kept_basis(run, fold)
    return FoldWeights(weights, intercepts, ones, kept)


def each_system(n_basis: int, *, spans: bool = False) -> Each:
    """Return the map that solves the systems of a path; results depend on `n_basis` only."""
    return map if n_basis > _LARGEST_SMALL else concurrent_map(_system_bytes(n_basis, spans=spans))


def _system_bytes(n_basis: int, *, spans: bool) -> int:
    return 8 * n_basis**2 * (3 if spans else 1)


def _path_part(run: Run, dataset: Dataset, fold: int | None) -> PartResult:
    tried, terms = run.spec.ridges, ridge_terms(run)
    system = read_system(run, read_moments(run, without=fold).on_device())
    every = np.ones(len(system.gram), dtype=np.bool_)
    solved, conditions = solve_all(
        system,
        every if fold is None else kept_basis(run, fold),
        tried=tried,
        terms=terms,
        each=each_system(len(every), spans=any(each.components for each in tried)),
        estimated=fold is None,
    )
    path = []
    if fold is None:
        if not any(conditions):
            alphas = [ridge.alpha for ridge in tried if ridge.shared == tried[0].shared]
            raise system.with_ridge(tried[0], terms).singular(alphas, option="alphas")
        path = _path_of_risks(system, zip(tried, solved.weights, conditions, strict=True), terms)
    return PartResult({"path": path}, {name: getattr(solved, name) for name in _STORED})


def _path_of_risks(
    system: RidgeSystem, solutions: Iterable[tuple[Ridge, Floats, float | None]], terms: RidgeTerms
) -> list[dict[str, Any]]:
    """Return error, risk and bounds of the weights of every ridge; None where it is singular."""
    path, gram = [], system.gram
    eigenvalues = gram_eigenvalues(gram) if len(gram) <= LARGEST_SPECTRUM else None
    for shared, own in groupby(solutions, key=lambda solution: solution[0].shared):
        penalized = system.with_ridge(shared, terms)
        for ridge, weights, condition in own:
            entry: dict[str, Any] = dict.fromkeys(("fitting_error", "spectral_risk"))
            entry |= {**ridge._asdict(), "reciprocal_condition": condition}
            if np.isfinite(weights).all():
                found = spectral_bounds(weights, penalized, ridge.alpha, eigenvalues=eigenvalues)
                bounds = asdict(found)
                entry |= {**bounds.pop("relative"), **bounds}
            path.append(entry)
    return path


def _path_cost(s: FitSizes) -> StageCost:
    of_all_rows, spans = not s.spec.chooses_alpha, bool(s.n_components)
    n_tasks = s.spec.n_held_out + (1 if of_all_rows else 0)
    products, spanning_bytes = 0.0, 0
    if of_all_rows and s.r <= LARGEST_SPECTRUM:
        products += 4 * s.r**3 / 3
    if spans:
        products += n_tasks * eigenfunctions_flops(s.r)
        spanning_bytes = eigenfunctions_bytes(s.r) + s.basis_bytes(s.r, copies=4)
    solving_bytes = s.solve_bytes
    if not (of_all_rows or spans or s.spec.n_penalty_axes or any(s.spec.localities)):
        # Besides the gram matrix, that of the kept basis rows.
        solving_bytes = 4 * s.r**2 + solve_bytes(s.r, s.q, in_place=True)
    # A large basis has no such systems, but a plan must not shrink as the basis grows.
    beside = concurrent_bytes(s.spec.n_ridges, _system_bytes(s.r, spans=spans))
    weights_bytes = 8 * s.spec.n_ridges * s.q * s.r
    held = solving_bytes + 4 * s.r**2 + 2 * weights_bytes + spanning_bytes + beside
    return StageCost(
        products=products,
        systems={s.r: n_tasks * s.spec.n_ridges},
        held_bytes=s.held(held, reads=False),
        n_tasks=n_tasks,
    )


def _check_path(context: FitContext) -> None:
    """Raise ParameterError if the folds need more rows."""
    folds, n_rows = context.spec.n_folds, context.dataset.of_labelled().n_rows
    most_folds = max(2, n_rows // 2)
    if folds > most_folds:
        raise ParameterError(
            f"`folds` is {folds}, but there are {n_rows} rows.",
            f"Set `folds` to at most {most_folds}.",
        )


PATH = Stage(
    name="path",
    compute=_solve_path,
    record=PathRecord,
    cost=_path_cost,
    check=_check_path,
    wanted=lambda spec: spec.is_judged,
    grows_with_basis=True,
    keeps_parts=True,
)

# The keys of the sums over the rows of each fold, and of their labels.
FOLDS, _LABELS = "_folds", "_labels"

DRAW = RunArrays(
    {
        "scores": (("drawn", "class"), "scores, or scaled residuals, of drawn held-out rows"),
        "codes": (("drawn",), "their class codes"),
        "own": (("drawn",), "their weights"),
        "shares": (("drawn",), "the probabilities with which they were drawn"),
        "order": (("drawn",), "the hashes of row numbers that drew them"),
        "versions": (("drawn",), "the versions that added them; 0 is the fit"),
        "distances": (("drawn",), "their distances from the nearest basis row, in widths"),
        "totals": (("version", "sum", "class"), "number and weight of all held-out rows"),
    },
    prefix="drawn_",
)
"""The arrays of a `ScoreDraw`, to which updates add those of their rows."""

SCALE = RunArrays(
    {
        "offsets": (("cell", "target"), "offsets of the scale of residuals"),
        "least": (("target",), "least scale of residuals"),
        "weights": (("target", "basis"), "weights of the scale of residuals"),
    },
    prefix="scale_",
)
"""The arrays of a `RowScale`; an equal scale has no weights."""


def confusion_in(group: str) -> RunArray:
    """Return the array of the confusion of held-out rows in a group of a run."""
    return RunArray(f"{group}/confusion", ("class", "label"), "weights of the held-out rows")


# The ends of the names of the passes that fit the calibration, and the scale of residuals.
_CALIBRATION, _RESIDUALS = "-calibration", "-residuals"

Places = slice | NDArray[np.int64]

WeightsOf = Callable[[Run, int | None], FoldWeights]
"""Returns the weights of the models that were fitted without a fold; None: to all rows."""


class HeldOutPass:
    """Errors on the rows of a part, by the weights without the fold of each row."""

    def __init__(
        self,
        run: Run,
        judged: Dataset,
        start: int,
        stop: int,
        codes_in_model: list[int] | None,
        n_targets: int,
        weights_of: WeightsOf,
        target_range: Floats | None,
    ) -> None:
        self._features = read_features(run).on_device()
        held_out: list[int | None] = [*range(run.spec.n_held_out)] or [None]
        basis = self._features.basis
        self.reading = folded_reading(run, judged, rows_of_block(basis), codes_in_model)
        self._targets = read_targets(run, n_targets)
        of_folds = list(map(partial(weights_of, run), held_out))
        self._of_folds = [(beside(each.rows, basis), each.intercepts) for each in of_folds]
        self._run, self._kept = run, [each.kept for each in of_folds]
        shape = min(self.reading.block_rows, stop - start), basis.shape[0]
        self._buffer = self._features.xp.empty(shape)
        self._sums: JudgedSums = sums_of(self._targets).zeros(len(of_folds[0].ones), n_targets)
        shapes = [(len(of_folds), *each.shape) for each in self._sums.fold_sums]
        self._errors, self._totals = map(np.zeros, shapes)
        self._n_rows = 0
        self._range = None
        if target_range is not None:
            self._range = beside(self._targets.shifted(target_range), basis)

    def add(self, block: FoldedBlock) -> None:
        """Add the errors of a block."""
        for fold, (rows, scores) in enumerate(self.scored(block)):
            sums = self._sums.from_block(
                scores,
                self._targets.shifted(block.targets[rows]),
                None if block.weights is None else block.weights[rows],
            )
            self._sums += sums
            self._n_rows += len(scores)
            errors, totals = sums.fold_sums
            self._errors[fold] += errors
            self._totals[fold] += totals

    def scored(self, block: FoldedBlock) -> Iterator[tuple[Places, Floats]]:
        """Yield the places in a block of the rows of each fold, and their scores (b, A, q)."""
        for (weights, intercepts), of_fold in zip(self._of_folds, block.slices, strict=False):
            rows = self.seen(block, of_fold)
            X = block.X[rows]
            scores = held_out_scores(
                self._features,
                X,
                weights,
                intercepts,
                buffer=self._buffer[: X.shape[0]],
            )
            # Predictions are clipped too.
            if self._range is not None:
                scores = np.clip(scores, *self._range)
            yield rows, scores

    def distances(self, X: Rows, fold: int) -> Floats:
        """Return the distances of rows of a held-out fold to the nearest basis row, in widths."""
        kept, basis = self._kept[fold], self._features.basis
        masked = None if kept.all() or not kept.any() else beside(kept, basis)
        return self._features.nearest(X, Near(masked, second=self._are_in_clusters))

    @cached_property
    def _are_in_clusters(self) -> bool:
        """Whether the basis rows are the centres of clusters to which the held-out rows belong."""
        return self._run.spec.n_held_out > 0 and bool((BASIS_ROWS.read(self._run) < 0).all())

    def seen(self, block: FoldedBlock, of_fold: slice) -> Places:
        """Return the places of the rows of a fold that the pass scores: all."""
        return of_fold

    def sums(self) -> Sums:
        """Return the sums of the errors over all rows, and over the rows of each fold."""
        return {"": self._sums, FOLDS: FoldSums(self._errors, self._totals, self._n_rows)}


class _DrawPass(HeldOutPass):
    """Labels of one model on a part, and a draw of its scores, see `HeldOutPass`."""

    def __init__(self, run: Run, judged: Dataset, *others: Any) -> None:
        super().__init__(run, judged, *others)
        n_classes = self._targets.n_targets
        counts = np.zeros(n_classes)
        counts[self.reading.codes_in_model] = judged.class_counts
        # Folds are equally large up to chance; a validation dataset has none.
        counts *= run.spec.n_held_out / run.spec.folds if run.spec.n_held_out else 1.0
        self._drawn = DrawnRows.of_counts(counts, seed=run.spec.params.random_state)
        self._draws = self._drawn.none(n_classes)
        self._labels = LabelSums.zeros(1, n_classes)

    def add(self, block: FoldedBlock) -> None:
        """Draw from the rows of a block."""
        for fold, (rows, scores) in enumerate(self.scored(block)):
            own = None if block.weights is None else block.weights[rows]
            codes, numbers = block.targets[rows], block.numbers[rows]
            self._labels += LabelSums.from_block(scores, codes, own)
            places = self._drawn.places(numbers, codes)
            distances = self.distances(block.X[rows][places], fold)
            taken = to_host(scores[:, 0])[places], distances
            self._draws += self._drawn.take(numbers, codes, own, *taken, places)

    def sums(self) -> Sums:
        """Return the drawn rows, and the sums of the labels."""
        return {"": self._draws, _LABELS: self._labels}


class _ResidualPass(HeldOutPass):
    """Residuals of drawn rows of a part, next to some of their activations; see `HeldOutPass`."""

    def __init__(self, run: Run, judged: Dataset, *others: Any) -> None:
        super().__init__(run, judged, *others)
        n_rows = judged.n_rows
        if run.spec.n_held_out:
            n_rows = n_rows * run.spec.n_held_out // run.spec.folds
        # Numbers are drawn like rows of one class.
        self._drawn = DrawnRows.of_counts(
            np.full(1, n_rows), seed=run.spec.params.random_state, most_scores=MOST_RESIDUALS
        )
        self._columns = _columns_of_scale(self._features.n_basis)
        self._draws = self._drawn.none(self._targets.n_targets + len(self._columns))

    def seen(self, block: FoldedBlock, of_fold: slice) -> Places:
        """Return the places of the drawn rows."""
        numbers = block.numbers[of_fold]
        return of_fold.start + self._drawn.places(numbers, np.zeros(len(numbers), dtype=np.int64))

    def add(self, block: FoldedBlock) -> None:
        """Add the drawn rows of a block."""
        for fold, (rows, scores) in enumerate(self.scored(block)):
            own = None if block.weights is None else block.weights[rows]
            residuals = self._targets.shifted(block.targets[rows]) - to_host(scores[:, 0])
            distances = self.distances(block.X[rows], fold)
            Phi = self._features.activations(block.X[rows], out=self._buffer[: len(residuals)])
            values = np.column_stack([residuals, to_host(Phi)[:, self._columns]])
            codes, numbers = np.zeros(len(residuals), dtype=np.int64), block.numbers[rows]
            self._draws += self._drawn.take(numbers, codes, own, values, distances)

    def sums(self) -> Sums:
        """Return the drawn rows."""
        return {"": self._draws}


def _columns_of_scale(n_basis: int) -> NDArray[np.int64]:
    """Return the basis functions from which the scale of residuals is learned."""
    return np.unique(np.linspace(0, n_basis - 1, min(n_basis, MOST_OF_SCALE)).astype(np.int64))


def best_place(entries: Sequence[Mapping[str, Any]], criterion: str) -> int | None:
    """Return the place of the smallest value of a figure, of equal ones the largest alpha."""
    solved = [place for place, own in enumerate(entries) if own[criterion] is not None]
    return min(
        solved,
        key=lambda place: (entries[place][criterion], -entries[place]["alpha"]),
        default=None,
    )


def judge_held_out(
    job: StageJob,
    name: str,
    work: type[HeldOutPass],
    kinds: dict[str, type[Any]],
    weights_of: WeightsOf,
) -> Reduction:
    """Return a finished pass of models over their held-out rows, or over a validation dataset."""
    run, judged = job.run, job.validation or job.dataset
    codes, n_targets = codes_in_training(job.dataset, judged), job.dataset.n_targets
    layout = PartLayout.of(judged.n_rows, run.spec.params.n_parts)
    target_range = None
    if run.of_numbers:
        target_range = run_task(job.engine, Dataset.target_range, job.dataset, label=name)
    others = (codes, n_targets, weights_of, target_range)
    reduction = Reduction(name, work, kinds, layout, others)
    reduce_parts(run, judged, job.engine, reduction)
    return reduction


def calibrate(
    job: StageJob, group: str, weights_of: WeightsOf, *, loss: str, temperature: float
) -> dict[str, Any]:
    """Fit the calibration of a model to its scores of held-out rows; store their confusion."""
    kinds: dict[str, type[Any]] = {"": ScoreDraw, _LABELS: LabelSums}
    reduction = judge_held_out(job, f"{group}{_CALIBRATION}", _DrawPass, kinds, weights_of)
    return run_task(
        job.engine, _fit_calibration, job.run, reduction, group, loss, temperature, label=group
    )


def keep_residuals(job: StageJob, group: str, weights_of: WeightsOf) -> None:
    """Store the scale of rows, and residuals of drawn held-out rows over their scale."""
    name, kinds = f"{group}{_RESIDUALS}", {"": ScoreDraw}
    reduction = judge_held_out(job, name, _ResidualPass, kinds, weights_of)
    run_task(job.engine, _fit_scale, job.run, reduction, group, label=group)


def _fit_scale(run: Run, reduction: Reduction, group: str) -> None:
    draw: ScoreDraw = read_total(run, reduction)
    features = read_features(run)
    columns = _columns_of_scale(features.n_basis)
    residuals, Phi = np.split(draw.scores, [draw.scores.shape[1] - len(columns)], axis=1)
    scale, scales = RowScale.learned(residuals, Phi, draw.weights, draw.order)
    if scale.weights is not None:
        weights = np.zeros((len(scale.weights), features.n_basis))
        weights[:, columns] = scale.weights
        scale = scale._replace(weights=weights)
    SCALE.write(run, group, scale._asdict())
    DRAW.write(run, group, replace(draw, scores=np.abs(residuals) / scales).arrays())


def read_scale(run: Run) -> RowScale | None:
    """Return the scale of residuals; None without any."""
    for group in ("cells", "validation"):
        arrays = SCALE.in_group(group)
        if arrays["offsets"].is_in(run):
            stored = {name: each.read(run) for name, each in arrays.items() if each.is_in(run)}
            return RowScale(**stored)
    return None


def calibration_bytes(s: FitSizes) -> int:
    """Return the peak memory of the fit of a calibration in bytes."""
    return FIT_BYTES * min(s.n_judged * s.q, MOST_SCORES)


def _fit_calibration(
    run: Run, reduction: Reduction, group: str, loss: str, temperature: float
) -> dict[str, Any]:
    labels: LabelSums = read_total(run, reduction, _LABELS)
    confusion_in(group).write(run, labels.confusion[0])
    draw: ScoreDraw = read_total(run, reduction)
    if 0 < run.spec.n_held_out < run.spec.folds:
        # The weights of the classes among all rows are known; those of few folds vary by chance.
        target_products = STORED_MOMENTS.in_group("moments")["target_products"]
        weight, *of_classes = target_products.read(run)[0]
        shares = np.array(of_classes) / weight
        ((numbers, weights),) = draw.totals
        draw = replace(draw, totals=np.stack([[numbers, shares * weights.sum()]]))
    DRAW.write(run, group, draw.arrays())
    return calibration_figures(draw, loss, temperature=temperature)


def read_draw(run: Run, place: str) -> ScoreDraw | None:
    """Return the drawn scores of the version at a place; "" is the fit. None without any."""
    for group in [place] if place else ["cells", "refine", "validation"]:
        if DRAW.in_group(group)["scores"].is_in(run):
            return ScoreDraw(**DRAW.read(run, group))
    return None


def calibration_figures(draw: ScoreDraw, loss: str, *, temperature: float) -> dict[str, Any]:
    """Return the calibration that fits drawn rows, and its figures on them; see `calibrate`."""
    of_loss = loss_named(loss)
    calibration = fit_calibration(draw, of_loss, temperature=temperature)
    probabilities = calibration.probabilities(draw.scores, of_loss)
    bins = reliability_of_rows(probabilities, draw.codes, draw.weights)
    return {
        "log_loss": draw.log_loss(probabilities),
        **calibration.to_dict(),
        "expected_calibration_error": expected_calibration_error(bins),
        "reliability": bins,
    }


@dataclass(frozen=True, kw_only=True)
class ValidationRecord(HeldOutRecord):
    """The figures of every tried ridge on held-out rows, and those of the best one.

    linear: the figure of linear functions of the columns, of a fit that only chooses alpha.
    """

    path: list[dict[str, Any]]
    n_rows: int
    linear: float | None = None
    fold_deviation: float | list[float] | None = None


def _validate(job: StageJob) -> ValidationRecord:
    """Return the errors of every ridge on rows that it was not fitted to, and the best one.

    Log losses of the path are at the best temperature; those of the best ridge have biases too.
    """
    run = job.run
    kinds = {"": sums_of(read_targets(run, job.dataset.n_targets)), FOLDS: FoldSums}
    reduction = judge_held_out(job, "validation", HeldOutPass, kinds, read_path_weights)
    sums: JudgedSums = read_total(run, reduction)
    tried, criterion = run.spec.ridges, sums.compared[0]
    path = [{**ridge._asdict(), **sums.figures(place)} for place, ridge in enumerate(tried)]
    place = best_place(path, criterion)
    if place is None:
        raise IllConditionedError(
            "the ridge system is singular at every alpha: "
            f"{sorted({ridge.alpha for ridge in tried})}.",
            "Give larger `alphas`.",
        )
    folds: FoldSums = read_total(run, reduction, FOLDS)
    spread = {"fold_deviation": folds.deviation(place)}
    figures = path[place] | spread
    chosen = {name: figures.pop(name) for name in Ridge._fields}
    logger.info("validation: %s", in_words({criterion: figures[criterion]} | spread | chosen))
    weights_of = partial(read_path_weights, place=place)
    if isinstance(sums, ResidualSums):
        figures["residual_sums"] = sums.to_record(place)
        keep_residuals(job, "validation", weights_of)
    if isinstance(sums, HeldOutSums):
        temperature = figures["temperature"]
        figures |= calibrate(job, "validation", weights_of, loss="squared", temperature=temperature)
    if is_compared(run.spec, job.dataset):
        figures["linear"] = compare_with_fit(job, criterion, figures[criterion])
    return ValidationRecord(path=path, chosen=chosen, n_rows=folds.n_rows, **figures)


def codes_in_training(dataset: Dataset, judged: Dataset) -> list[int] | None:
    """Return the code in the training dataset of each class of a judged dataset."""
    judged.encoded_like(dataset)
    remedy = "Give rows with labels of the training rows only."
    return codes_among(dataset.classes, dataset.target_names, judged, remedy)


def codes_among(
    classes: NDArray[Any], target_names: tuple[str, ...] | None, dataset: Dataset, remedy: str
) -> list[int] | None:
    """Return the place among `classes` of each class of a dataset."""
    check_targets(dataset, target_names)
    if target_names is not None:
        return None
    code_of = {label: code for code, label in enumerate(classes.tolist())}
    labels = dataset.classes.tolist()
    unknown = [label for label in labels if label not in code_of]
    if unknown:
        if isinstance(unknown[0], str) != isinstance(classes.tolist()[0], str):
            remedy = (
                "Ingest the labels with the type of the training labels: all integers, or all text."
            )
        raise DataError(
            f"label {unknown[0]!r} of {dataset.location} is not a training label.", remedy
        )
    return [code_of[label] for label in labels]


def _validation_cost(s: FitSizes) -> StageCost:
    n_scores = s.spec.n_ridges * s.q
    # A second pass calibrates the probabilities of classes, or draws residuals of numbers.
    n_passes, drawn_bytes = 2, 0
    n_scored, drawn = 2 * s.n_judged, min(s.n_judged, MOST_RESIDUALS)
    if s.dataset.of_numbers:
        n_scored = s.n_judged + drawn
        # The draws of a part and of all parts, and the regressions of the scale.
        drawn_bytes = 4 * 8 * drawn * (s.q + MOST_OF_SCALE + 5)
    n_read = n_passes * (s.n if s.spec.chooses_alpha else s.n_judged)
    rows = block_rows(s.r)
    block_bytes = 8 * (rows * s.r + 5 * rows * (s.width + n_scores))
    weights_bytes = 2 * 8 * s.spec.n_sums * n_scores * s.r
    parts = PartLayout.of(n_read // n_passes, s.spec.params.n_parts)
    linear, held_by_linear = 0.0, 0
    if is_compared(s.spec, s.dataset):
        n_drawn = n_compared_rows(s.dataset)
        linear, held_by_linear = linear_flops(s.dataset, n_drawn), linear_bytes(n_drawn, s.p, s.q)
        # Most chunks have drawn rows.
        n_read += s.n
    return StageCost(
        products=n_scored * s.product_flops(s.r) + 2 * s.n_judged * s.r * n_scores + linear,
        exponentials=n_scored * s.r + s.n_judged * len(INVERSE_TEMPERATURES) * n_scores,
        read_bytes=round(n_read * s.dataset.row_bytes),
        held_bytes=s.held(
            s.basis_bytes(s.r, copies=4)
            + block_bytes
            + weights_bytes
            + max(drawn_bytes + calibration_bytes(s), held_by_linear)
        ),
        n_tasks=n_passes * parts.n_parts,
    )


def _check_validation(context: FitContext) -> None:
    """Raise DataError if the validation rows have labels that the training rows lack."""
    if context.validation is not None:
        codes_in_training(context.dataset, context.validation)


VALIDATION = Stage(
    name="validation",
    compute=_validate,
    record=ValidationRecord,
    arrays=(
        confusion_in("validation"),
        *DRAW.in_group("validation").values(),
        *SCALE.in_group("validation").values(),
    ),
    cost=_validation_cost,
    check=_check_validation,
    labelled_only=True,
    wanted=lambda spec: spec.is_judged,
    grows_with_basis=True,
    read_by_updates=True,
    scratch=(f"validation{_CALIBRATION}", f"validation{_RESIDUALS}"),
)
