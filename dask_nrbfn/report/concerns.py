"""Warnings about a finished run, each with a remedy."""

from collections.abc import Iterator, Sequence
from itertools import chain

from dask.utils import format_bytes

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED
from dask_nrbfn.params import FitLimits
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import decimals, listed
from dask_nrbfn.report.results import Concern, Results

# With fewer rows, one error changes the error rate of a class by more than 5 points.
_FEW_ROWS = 20


def find_concerns(results: Results) -> list[Concern]:
    """Return the concerns about a run, the most serious first."""
    finished = results.finished
    found = (
        _versions(finished),
        results.concerns(),
        _recall(finished),
        _condition(finished),
        _capped_basis(finished),
        _grid_borders(finished),
        _singular_penalties(finished, results.criterion.name),
        _small_classes(finished),
        _memory(finished),
    )
    return list(chain.from_iterable(found))


def _versions(finished: FinishedRun) -> Iterator[Concern]:
    if not finished.versions:
        return
    remedy = "The figures of the run describe the fit; an evaluation uses the latest version."
    yield Concern(f"{plural(len(finished.versions), 'update')} came after the fit.", remedy)
    if finished.versions[-1]["refresh_due"]:
        reasons = {reason: None for each in finished.versions for reason in each["reasons"]}
        yield Concern(f"A refresh is due: {'; '.join(reasons)}.", "Run dask-nrbfn refresh.")


def _recall(finished: FinishedRun) -> Iterator[Concern]:
    audit = finished.stages.get("recall")
    if audit is None:
        return
    recall, error = audit["recall"], audit["recall_standard_error"]
    if recall - 2 * error < FitLimits.min_recall:
        yield Concern(
            f"The search found {decimals(recall)} +- {decimals(error)} of the true neighbours.",
            "Raise overlap, lower n_partitions, or give neighbors=exact.",
        )


def _condition(finished: FinishedRun) -> Iterator[Concern]:
    latest = finished.versions[-1] if finished.versions else finished.stages.get("weights", {})
    condition = latest.get("reciprocal_condition")
    if condition is not None and condition < ILL_CONDITIONED:
        yield Concern(
            f"The ridge system at alpha={latest['alpha']:g} has a reciprocal condition of "
            f"{condition:.1e}: rounding decides much of the weights.",
            "Give a larger alpha; 1e-13 is enough.",
        )


def _capped_basis(finished: FinishedRun) -> Iterator[Concern]:
    record = finished.stages.get("basis", {})
    if record.get("cap") is not None:
        yield Concern(
            f"{plural(record['n_below_threshold'], finished.searched)} are below the threshold "
            f"{finished.params.confidence_threshold:g}, but the basis has at most "
            f"{record['cap']:,} rows.",
            "Give basis_size to choose another number. A larger basis may need more memory.",
        )


def _grid_borders(finished: FinishedRun) -> Iterator[Concern]:
    tuning, params = finished.run.tuning, finished.params
    if tuning is None:
        return
    # After a search only some of the alphas are tried with the whole basis, and of cells none.
    alphas = [entry["alpha"] for entry in describe_tuning(finished.run)["path"]]
    for name, grid, tried in (
        ("alpha", "alphas", alphas),
        ("locality", "localities", tuning.localities or ()),
        ("components", "components", tuning.components or ()),
    ):
        chosen = getattr(params, name)
        if side := _border(chosen, tried, limits=(0.0, 1.0)):
            yield Concern(
                f"{name}={chosen:g} is the {side} that was tried.",
                f"Try {'smaller' if side == 'smallest' else 'larger'} {grid}.",
            )
    if "search" not in finished.stages:
        return
    search = finished.stages["search"]
    sizes = [record["n_basis"] for record in search["curve"]]
    if len(sizes) > 1 and params.basis_size == max(sizes):
        yield Concern(
            f"basis_size={params.basis_size} is the largest that was tried, and errors still fell.",
            "Give a larger basis_size in a new run. Twice as many basis rows take four times as "
            "long.",
        )
    tried = [
        record["width_factor"]
        for record in [*search["tried"], *search["finals"]]
        if record["kernel"] == params.kernel
    ]
    if side := _border(params.width_factor, tried):
        # A factor that was tried comes first, so that the chosen one is not at the other end.
        step = 0.5 if side == "smallest" else 2.0
        beyond = ",".join(f"{params.width_factor * step**power:.3g}" for power in range(-1, 3))
        yield Concern(
            f"width_factor={params.width_factor:g} is the {side} that was tried.",
            f"Tune a new run with --width-factors {beyond} (`width_factors` in Python).",
        )


def _border(
    chosen: float, grid: Sequence[float], limits: tuple[float, float] = (0.0, float("inf"))
) -> str | None:
    """Return the end of the grid that a value equals; None if it is inside or at a limit."""
    if len(set(grid)) < 2 or chosen in limits:
        return None
    if chosen == min(grid):
        return "smallest"
    return "largest" if chosen == max(grid) else None


def _singular_penalties(finished: FinishedRun, criterion: str) -> Iterator[Concern]:
    if finished.run.tuning is None:
        return
    singular = [
        f"{entry['alpha']:g}"
        for entry in describe_tuning(finished.run)["path"]
        if entry[criterion] is None or entry["fitting_error"] is None
    ]
    if singular:
        yield Concern(
            f"The ridge system is singular at alpha={listed(list(dict.fromkeys(singular)))}.",
            "Leave these alphas out; the other alphas were compared.",
        )


def _small_classes(finished: FinishedRun) -> Iterator[Concern]:
    dataset = finished.dataset()
    if dataset is None or not finished.labels:
        return
    sizes = zip(finished.labels, dataset.class_counts.tolist(), strict=True)
    small = [f"{label} ({size})" for label, size in sizes if size < _FEW_ROWS]
    if small:
        yield Concern(
            f"Classes with fewer than {_FEW_ROWS} rows: {listed(small)}.",
            "The error rates of these classes are uncertain. Add rows of these classes.",
        )


def _memory(finished: FinishedRun) -> Iterator[Concern]:
    over, expected_bytes = [], 0
    for name, record in finished.stages.items():
        # A process keeps much of the memory of earlier stages.
        expected_bytes = max(expected_bytes, record["predicted_bytes"])
        if record["peak_bytes"] > expected_bytes:
            held = format_bytes(record["peak_bytes"])
            over.append(f"{name} {held} of {format_bytes(expected_bytes)}")
    if over:
        yield Concern(
            f"Stages held more memory than predicted: {listed(over)}.",
            "Leave spare memory for the workers. Memory held before the fit is counted too.",
        )
