from dataclasses import replace

import pytest

from dask_nrbfn.commands.evaluate import Evaluation
from dask_nrbfn.report.facts import find_concerns
from dask_nrbfn.report.finished import FinishedRun


def problems(run, evaluation=None):
    return [concern.problem for concern in find_concerns(FinishedRun.of(run, evaluation))]


def test_concerns__none(fitted):
    assert problems(fitted) == []


def test_concerns__large_fitting_error(fitted, altered):
    (problem,) = problems(altered(fitted, weights={"fitting_error": 3.25}))
    assert problem == "The fitting error eps is 3.25: the residuals exceed the scores."


@pytest.mark.parametrize(
    ("alpha", "factor", "expected"),
    [
        (1e-4, 0.5, []),
        (1e-6, 0.5, ["alpha=1e-06 is the smallest that was tried."]),
        (1e-4, 1.0, ["width_factor=1 is the largest that was tried."]),
    ],
)
def test_concerns__borders_of_the_grids(tuned, altered, alpha, factor, expected):
    chosen = tuned.stages["search"]["chosen"] | {"width_factor": factor}
    run = altered(
        tuned,
        search={"chosen": chosen},
        validation={"chosen": {"alpha": alpha}, "error_rate": 0.05},
    )
    assert [each for each in problems(run) if "was tried" in each] == expected


def test_concerns__no_better_than_guessing(tuned, altered):
    run = altered(tuned, validation={"error_rate": 0.7})
    found = problems(run)
    assert found[0].startswith("The held-out error is 70.00 %; always predicting the largest")
    (concern, *_) = find_concerns(FinishedRun.of(run))
    assert 'class_weight="balanced"' in concern.remedy
    spelled, *_ = find_concerns(FinishedRun.of(run), lambda name: f"--{name.replace('_', '-')}")
    assert "--scale standard" in spelled.remedy
    assert "--class-weight balanced" in spelled.remedy


def test_concerns__of_an_evaluation(fitted):
    labels = FinishedRun.of(fitted).labels
    judged = Evaluation(
        n_rows=60, n_errors=22, classes=tuple(labels), log_loss=1.0, reliability=[],
        confusion=((20, 0, 0), (0, 10, 10), (8, 4, 8)), expected_calibration_error=0.0,
    )  # fmt: skip
    (problem,) = problems(fitted, judged)
    assert problem.startswith("Less than half of the evaluated rows of these classes are right")
    assert problem.endswith(f": {labels[2]} (40.00 %).")
    right = replace(judged, n_errors=0, confusion=((20, 0, 0), (0, 20, 0), (0, 0, 20)))
    assert problems(fitted, right) == []
    few = replace(right, confusion=((20, 0, 0), (0, 20, 0), (0, 0, 7)))
    assert problems(fitted, few) == [f"Classes with fewer than 20 evaluated rows: {labels[2]} (7)."]
    confusion = (*right.confusion, (1, 0, 3))
    unknown = replace(right, n_rows=64, n_errors=4, confusion=confusion, n_unknown_labels=4)
    (problem,) = problems(fitted, unknown)
    assert problem == "4 of 64 evaluated rows have labels that the model does not know."
