from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, fit_dataset
from dask_nrbfn.commands.evaluate import Evaluation
from dask_nrbfn.report.facts import find_concerns
from dask_nrbfn.report.finished import FinishedRun
from tests.tables import spirals, write_table


def problems(run, evaluation=None):
    return [concern.problem for concern in find_concerns(FinishedRun.of(run, evaluation))]


def test_concerns__none(fitted):
    assert problems(fitted) == []


def test_concerns__large_fitting_error(fitted, altered):
    (problem,) = problems(altered(fitted, weights={"fitting_error": 3.25}))
    assert "3.25" in problem


@pytest.mark.parametrize(
    ("alpha", "factor", "expected"),
    [
        (1e-4, 0.5, []),
        (1e-6, 0.5, ["alpha=1e-06"]),
        (1e-4, 1.0, ["width_factor=1"]),
    ],
)
def test_concerns__borders_of_the_grids(tuned, altered, alpha, factor, expected):
    chosen = tuned.stages["search"]["chosen"] | {"width_factor": factor}
    run = altered(
        tuned,
        search={"chosen": chosen},
        validation={"chosen": {"alpha": alpha}, "error_rate": 0.05},
    )
    assert [each.split()[0] for each in problems(run) if "was tried" in each] == expected


def test_concerns__no_better_than_guessing(tuned, altered):
    run = altered(tuned, validation={"error_rate": 0.7})
    concern, *_ = find_concerns(FinishedRun.of(run))
    assert "70.00 %" in concern.problem
    assert 'class_weight="balanced"' in concern.remedy
    spelled, *_ = find_concerns(FinishedRun.of(run), lambda name: f"--{name.replace('_', '-')}")
    assert "--scale standard" in spelled.remedy
    assert "--class-weight balanced" in spelled.remedy


def test_concerns__small_classes_of_weighted_rows_are_counted_in_rows():
    X, y = spirals(120)
    y[:7] = 9
    dataset = write_table(MemoryStore(), X, y, weights=np.full(120, 3.5))
    run = fit_dataset(dataset, MemoryStore(), FitParams(basis_size=40), InlineEngine())
    (few,) = [each for each in problems(run) if "fewer than" in each]
    assert few.endswith(": 9 (7).")


def test_concerns__of_an_evaluation(fitted):
    labels = FinishedRun.of(fitted).labels
    judged = Evaluation(
        n_rows=60, n_errors=22, classes=tuple(labels), log_loss=1.0, reliability=[],
        confusion=((20, 0, 0), (0, 10, 10), (8, 4, 8)), expected_calibration_error=0.0,
    )  # fmt: skip
    (problem,) = problems(fitted, judged)
    assert problem.endswith(f": {labels[2]} (40.00 %).")
    right = replace(judged, n_errors=0, confusion=((20, 0, 0), (0, 20, 0), (0, 0, 20)))
    assert problems(fitted, right) == []
    few = replace(right, confusion=((20, 0, 0), (0, 20, 0), (0, 0, 7)))
    (problem,) = problems(fitted, few)
    assert problem.endswith(f": {labels[2]} (7).")
    confusion = (*right.confusion, (1, 0, 3))
    unknown = replace(right, n_rows=64, n_errors=4, confusion=confusion, n_unknown_labels=4)
    (problem,) = problems(fitted, unknown)
    assert problem.startswith("4 of 64 evaluated rows")
