from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn.commands.evaluate import Evaluation
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.params import FitParams
from dask_nrbfn.report.concerns import find_concerns
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.results import results_of
from tests.tables import spirals, write_table

# So much memory is never measured in a test: what the process holds depends on the other tests.
ROOM = {"predicted_bytes": 2**50}


def problems(run, evaluation=None):
    return [
        concern.problem for concern in find_concerns(results_of(FinishedRun.of(run), evaluation))
    ]


@pytest.fixture
def quiet(altered):
    """Copy a run with predictions that nothing exceeds and changed records."""

    def alter(run, **records):
        stages = dict.fromkeys(run.stages, ROOM)
        return altered(run, **{name: stages[name] | records.get(name, {}) for name in stages})

    return alter


def test_concerns__none(fitted, quiet):
    assert problems(quiet(fitted)) == []


@pytest.mark.parametrize(
    ("stage", "changes", "expected"),
    [
        ("weights", {"fitting_error": 3.25}, "The fitting error eps is 3.25: the residuals"),
        (
            "basis",
            {"cap": 1000},
            "are below the threshold 0.95, but the basis has at most 1,000 rows.",
        ),
        (
            "recall",
            {"recall": 0.951, "recall_standard_error": 0.003},
            "The search found 0.9510 +- 0.0030 of the true neighbours.",
        ),
        (
            "columns",
            {"peak_bytes": 2**31, "predicted_bytes": 2**30},
            "Stages held more memory than predicted: columns 2.00 GiB of 1.00 GiB.",
        ),
    ],
)
def test_concerns__of_one_stage(fitted, quiet, stage, changes, expected):
    (problem,) = problems(quiet(fitted, **{stage: changes}))
    assert expected in problem


@pytest.mark.parametrize(
    ("alpha", "factor", "expected"),
    [
        (1e-4, 0.5, []),
        (1e-6, 0.5, ["alpha=1e-06 is the smallest that was tried."]),
        (1e-4, 1.0, ["width_factor=1 is the largest that was tried."]),
    ],
)
def test_concerns__borders_of_the_grids(tuned, quiet, alpha, factor, expected):
    chosen = tuned.stages["search"]["chosen"] | {"width_factor": factor}
    run = quiet(
        tuned,
        search={"chosen": chosen},
        validation={"chosen": {"alpha": alpha}, "error_rate": 0.05},
    )
    assert [each for each in problems(run) if "was tried" in each] == expected


@pytest.mark.parametrize(("factor", "beyond"), [(0.3, "0.6,0.3,0.15,0.075 "), (1.0, "0.5,1,2,4 ")])
def test_concerns__widths_beyond_those_that_were_searched(tuned, altered, factor, beyond):
    chosen = tuned.stages["search"]["chosen"] | {"width_factor": factor}
    results = results_of(FinishedRun.of(altered(tuned, search={"chosen": chosen})))
    concerns = find_concerns(results)
    remedy = next(each.remedy for each in concerns if "width_factor=" in each.problem)
    assert f"--width-factors {beyond}" in remedy


def test_concerns__no_better_than_guessing(tuned, quiet):
    run = quiet(tuned, validation={"error_rate": 0.7})
    found = problems(run)
    assert found[0].startswith("The held-out error is 70.00 %; always predicting the largest")
    (concern, *_) = find_concerns(results_of(FinishedRun.of(run), None))
    assert "--class-weight balanced" in concern.remedy


def test_concerns__small_classes(tmp_path):
    X, y = spirals(200, n_classes=2)
    y = np.where(np.arange(200) < 7, 2, y)
    dataset = write_table(tmp_path / "data.zarr", X, y)
    params = FitParams(basis="random", basis_size=20, alpha=1e-6)
    run = fit_dataset(dataset, tmp_path / "run.zarr", params, InlineEngine())
    assert "Classes with fewer than 20 rows: 2 (7)." in problems(run)
    # Another dataset has taken the place of the one that was fitted.
    write_table(tmp_path / "data.zarr", X, y % 2, overwrite=True)
    assert not any("fewer than" in problem for problem in problems(run))


def test_concerns__of_an_evaluation(fitted, quiet):
    run, labels = quiet(fitted), FinishedRun.of(fitted).labels
    judged = Evaluation(
        n_rows=30, n_errors=11, classes=tuple(labels), confusion=((10, 0, 0), (0, 5, 5), (4, 2, 4)),
        log_loss=1.0, expected_calibration_error=0.0, reliability=[],
    )  # fmt: skip
    (problem,) = problems(run, judged)
    assert problem.startswith("Less than half of the evaluated rows of these classes get the right")
    assert problem.endswith(f": {labels[2]} (40.00 %).")
    right = replace(judged, n_errors=0, confusion=((10, 0, 0), (0, 10, 0), (0, 0, 10)))
    assert problems(run, right) == []
    confusion = (*right.confusion, (1, 0, 3))
    unknown = replace(right, n_rows=34, n_errors=4, confusion=confusion, n_unknown_labels=4)
    (problem,) = problems(run, unknown)
    assert problem == "4 of 34 evaluated rows have labels that the model does not know."
