"""Warnings about a finished run, each with a remedy, the most serious first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.commands.evaluate import Evaluation
from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED
from dask_nrbfn.params import FitLimits
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import Concern, listed, shown
from dask_nrbfn.stages.refine import guess_as_good

# With fewer rows, one error changes the error rate of a class by more than 5 points.
_FEW_ROWS = 20

# Above this fitting error, the squared residuals are larger than the squared scores.
_LARGE_FITTING_ERROR = 2.0

# Below this recall, most rows of a class get the label of another class.
_LOW_RECALL = 0.5

# Below this R2, less than half of the variance of a target is fitted.
_SMALL_R2 = 0.5


def find_concerns(finished: FinishedRun) -> list[Concern]:
    """Return the concerns about a run."""
    judged: Iterator[Concern] = iter(())
    if not finished.run.embeds:
        judged = _of_numbers(finished) if finished.of_numbers else _of_classes(finished)
    tuned = _of_tuning(finished) if finished.run.tuning is not None else ()
    return [*_of_versions(finished), *judged, *_of_stages(finished), *tuned]


def _of_versions(finished: FinishedRun) -> Iterator[Concern]:
    if not finished.versions:
        return
    remedy = "The figures of the run describe the fit; an evaluation uses the latest version."
    yield Concern(f"{plural(len(finished.versions), 'update')} came after the fit.", remedy)
    if finished.versions[-1]["refresh_due"]:
        reasons = {reason: None for each in finished.versions for reason in each["reasons"]}
        yield Concern(f"A refresh is due: {'; '.join(reasons)}.", "Run dask-nrbfn refresh.")


def _of_classes(finished: FinishedRun) -> Iterator[Concern]:
    balanced = finished.params.class_weight is not None
    if (guess := guess_as_good(finished.run)) is not None:
        error, guessing = (shown("error_rate", each) for each in guess)
        small = ' For small classes, pass --class-weight balanced (class_weight="balanced").'
        yield Concern(
            f"The held-out error is {error}; always predicting the largest class has an error of "
            f"{guessing}.",
            'Check scale first: columns in different units need "standard".'
            f"{'' if balanced else small}",
        )
    for rows, confusion in finished.confusions.items():
        figures = class_figures(finished.labels, confusion)
        if missed := _below(figures, "recall", _LOW_RECALL):
            yield Concern(
                f"Less than half of the {rows.lower()} of these classes get the right label: "
                f"{missed}.",
                'Try class_weight="balanced" for classes with few rows, and scale="standard" '
                "for columns in different units.",
            )
        if small := _below(figures, "support", _FEW_ROWS):
            yield Concern(
                f"Classes with fewer than {_FEW_ROWS} {rows.lower()}: {small}.",
                "The error rates of these classes are uncertain. Add rows of these classes.",
            )
    if (error := finished.fitted["fitting_error"]) > _LARGE_FITTING_ERROR:
        yield Concern(
            f"The fitting error eps is {error:.4g}: the residuals exceed the scores.",
            "Try a smaller alpha, a larger basis, or another width_factor.",
        )
    evaluation = finished.evaluation
    if isinstance(evaluation, Evaluation) and (unknown := evaluation.n_unknown_labels):
        yield Concern(
            f"{unknown:,} of {plural(evaluation.n_rows, 'evaluated row')} have labels "
            "that the model does not know.",
            "Rows with unknown labels count as errors. Train on rows of these classes too.",
        )


def _below(figures: Sequence[Mapping[str, Any]], name: str, limit: float) -> str:
    """Return the classes with a figure below a limit."""
    return listed(
        [
            f"{each['class']} ({shown(name, each[name])})"
            for each in figures
            if each[name] is not None and each[name] < limit
        ]
    )


def _of_numbers(finished: FinishedRun) -> Iterator[Concern]:
    def below(r2: Sequence[float], limit: float) -> str:
        pairs = zip(finished.names or (), r2, strict=False)
        return listed([f"{name} (R2 {value:.4f})" for name, value in pairs if value <= limit])

    if missed := below(finished.judged.get("r2", ()), 0.0):
        yield Concern(
            f"Always predicting the mean is as good on held-out rows: {missed}.",
            'Check scale first: columns in different units need "standard".',
        )
    if missed := below(finished.fitted["training_r2"], _SMALL_R2):
        yield Concern(
            f"Less than half of the variance of the training rows is fitted: {missed}.",
            "Unless the rest is noise, try a smaller alpha, a larger basis, or another "
            "width_factor.",
        )


def _of_stages(finished: FinishedRun) -> Iterator[Concern]:
    """Yield concerns about the neighbours, the ridge system and the basis."""
    if (audit := finished.stages.get("recall")) is not None:
        recall, error = audit["recall"], audit["recall_standard_error"]
        if recall - 2 * error < FitLimits.min_recall:
            yield Concern(
                f"The search found {recall:.4f} +- {error:.4f} of the true neighbours.",
                "Raise overlap, lower n_partitions, or give neighbors=exact.",
            )
    latest = finished.versions[-1] if finished.versions else finished.stages.get("weights", {})
    condition = latest.get("reciprocal_condition")
    if condition is not None and condition < ILL_CONDITIONED:
        yield Concern(
            f"The ridge system at alpha={latest['alpha']:g} has a reciprocal condition of "
            f"{condition:.1e}: rounding decides much of the weights.",
            "Give a larger alpha; 1e-13 is enough.",
        )
    record = finished.stages.get("basis", {})
    if record.get("cap") is not None:
        yield Concern(
            f"{plural(record['n_below_threshold'], 'row')} are below the threshold "
            f"{finished.params.confidence_threshold:g}, but the basis has at most "
            f"{record['cap']:,} rows.",
            "Give basis_size to choose another number. A larger basis may need more memory.",
        )


def _of_tuning(finished: FinishedRun) -> Iterator[Concern]:
    """Yield chosen values at the border of those that were tried."""
    tuning, params = finished.run.tuning, finished.params
    assert tuning is not None
    alphas = [entry["alpha"] for entry in describe_tuning(finished.run)["path"]]
    search = finished.stages.get("search", {"curve": (), "tried": (), "finals": ()})
    widths = [
        record["width_factor"]
        for record in [*search["tried"], *search["finals"]]
        if record["kernel"] == params.kernel
    ]
    for name, grid, tried in (
        # After a search only some of the alphas are tried with the whole basis, and of cells none.
        ("alpha", "alphas", alphas),
        ("locality", "localities", tuning.localities or ()),
        ("components", "components", tuning.components or ()),
        ("width_factor", "width_factors", widths),
    ):
        chosen, known = getattr(params, name), set(tried)
        # No alpha or locality is below 0 or above 1.
        limited = name != "width_factor" and chosen in (0.0, 1.0)
        if len(known) < 2 or limited or chosen not in (min(known), max(known)):
            continue
        side, step = ("smallest", 0.5) if chosen == min(known) else ("largest", 2.0)
        remedy = f"Try {'smaller' if side == 'smallest' else 'larger'} {grid}."
        if name == "width_factor":
            # A factor that was tried comes first, so that the chosen one is not at the other end.
            beyond = ",".join(f"{chosen * step**power:.3g}" for power in range(-1, 3))
            remedy = f"Tune a new run with --width-factors {beyond} (`width_factors` in Python)."
        yield Concern(f"{name}={chosen:g} is the {side} that was tried.", remedy)
    sizes = [record["n_basis"] for record in search["curve"]]
    if len(sizes) > 1 and params.basis_size == max(sizes):
        yield Concern(
            f"basis_size={params.basis_size} is the largest that was tried, and errors still fell.",
            "Give a larger basis_size in a new run. Twice as many basis rows take four times as "
            "long.",
        )
