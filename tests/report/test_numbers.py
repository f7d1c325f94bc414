"""Reports of runs whose targets are numbers."""

from dataclasses import replace

import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from dask_nrbfn.report.console import evaluation_tables, run_table, tuning_table
from dask_nrbfn.report.facts import find_concerns
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.storage.model import Model
from tests.report.conftest import TARGETS
from tests.report.test_console import figures
from tests.report.test_page import page_of
from tests.tables import surfaces


def listed(values):
    return ", ".join(f"{value:.6g}" for value in values)


def metrics(true, predicted):
    kinds = (r2_score, root_mean_squared_error, mean_absolute_error)
    return [kind(true, predicted, multioutput="raw_values") for kind in kinds]


@pytest.fixture(scope="module")
def model(regression):
    return Model.load(regression.location)


def problems(run):
    return [concern.problem for concern in find_concerns(FinishedRun.of(run))]


def test_run_table__of_numbers(regression, model):
    found = figures(run_table(regression))
    assert found["n_rows"] == "300"
    X, Y = surfaces(300)
    assert found["training_r2"] == listed(r2_score(Y, model.scores(X), multioutput="raw_values"))
    X, Y = surfaces(250, seed=1)
    r2, rmse, mae = metrics(Y, model.scores(X))
    assert [found[name] for name in ("r2", "rmse", "mae")] == [*map(listed, (r2, rmse, mae))]
    assert not {"error_rate", "log_loss", "recall"} & found.keys()


def test_tuning_table__of_numbers(regression, model):
    combinations, _, penalties = tuning_table(regression).split("\n\n")
    errors = [float(line.split(" %")[0].split()[-1]) for line in combinations.splitlines()[2:]]
    assert errors == sorted(errors)
    (marked,) = [line.split() for line in penalties.splitlines() if line.startswith("*")]
    X, Y = surfaces(250, seed=1)
    r2 = r2_score(Y, model.scores(X), multioutput="raw_values")
    assert marked[1:3] == [f"{regression.chosen_params.alpha:g}", f"{100 * (1 - r2.mean()):.2f}"]
    assert marked[4:] == [f"{r2[0]:.4g},", f"{r2[1]:.4g}"]


def test_concerns__numbers_that_are_not_fitted(regression, altered):
    run = altered(
        regression,
        validation={"r2": [0.3, -0.0125], "relative_error": 0.85},
        weights={"training_r2": [0.25, 0.9], "fitting_error": 3.0},
    )
    no_better, unfitted = problems(run)[:2]
    assert "size (-0.0125)" in no_better
    assert f"{TARGETS[0]} (0.25)" in unfitted
    assert not any(word in each for word in ("mean", "half") for each in problems(regression))


def test_page__of_numbers(tmp_path, regression, evaluation, model):
    page = page_of(regression, tmp_path, evaluation=evaluation)
    assert page.tags["img"] == page.tags["figure"] == 3
    assert "Confused classes" not in page.text
    X, Y = surfaces(250, seed=1)
    r2, rmse, mae = metrics(Y, model.scores(X))
    assert listed(r2) in page.words
    X, Y = surfaces(300)
    training = r2_score(Y, model.scores(X), multioutput="raw_values")
    cells = "|".join(word.strip() for word in page.words if word.strip())
    for place, name in enumerate(TARGETS):
        # Validation and evaluation are on the same rows.
        judged = [f"{each[place]:.4g}" for each in (r2, rmse, mae)]
        assert "|".join([name, f"{training[place]:.4g}", *judged, *judged]) in cells
    for record in evaluation.intervals:
        for place, name in enumerate(TARGETS):
            figures = [record["coverage"], record["covered"][place], record["mean_width"][place]]
            assert "|".join([name, *(f"{figure:.4g}" for figure in figures)]) in cells


def test_evaluation_tables__of_numbers(evaluation):
    lines = evaluation_tables(evaluation).splitlines()
    assert lines[0] == "Evaluated rows: intervals"
    assert lines[1].split() == ["target", "coverage", "covered", "mean", "width"]
    assert len(lines) == 2 + 4 * len(TARGETS)
    without = replace(evaluation, intervals=[])
    assert evaluation_tables(without) == ""
