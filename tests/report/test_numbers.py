"""Reports of runs whose targets are numbers."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from zarr.storage import MemoryStore

from dask_nrbfn.commands.evaluate import Evaluation
from dask_nrbfn.commands.fit import tune_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.report import run_table, tuning_table, write_report
from dask_nrbfn.report.charts import prediction_charts
from dask_nrbfn.report.concerns import find_concerns
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.results import NumberResults, results_of
from dask_nrbfn.storage.model import Model
from tests.report.conftest import TARGETS
from tests.report.test_console import figures
from tests.report.test_page import Page
from tests.tables import surfaces, write_table

FIRST, SECOND = TARGETS
PARAMS = FitParams(basis="kmeans", basis_size=20, features="plain", alpha=1e-6)


def each(show, values):
    return ", ".join(f"{name} {show(value)}" for name, value in zip(TARGETS, values, strict=True))


def decimals(value):
    return f"{value:.4f}"


def significant(value):
    return f"{value:.4g}"


def metrics(true, predicted):
    """Return R2, RMSE and MAE of every target."""
    kinds = (r2_score, root_mean_squared_error, mean_absolute_error)
    return [kind(true, predicted, multioutput="raw_values") for kind in kinds]


@pytest.fixture(scope="module")
def model(regression):
    return Model.load(regression.location)


@pytest.fixture(scope="module")
def one_target():
    """Give a run of one number, tuned with folds."""
    X, Y = surfaces(200)
    tuning = TuneParams(
        effort="quick", folds=2, alphas=(1e-2, 1e-4), width_factors=(1.0,), features=("plain",)
    )
    dataset = write_table(MemoryStore(), X, target=Y[:, 1])
    return tune_dataset(dataset, MemoryStore(), PARAMS, tuning, InlineEngine())


def page_of(tmp_path, run, **options):
    write_report(run, tmp_path / "page.html", **options)
    return Page((tmp_path / "page.html").read_text(encoding="utf-8"))


def problems(run):
    return [concern.problem for concern in find_concerns(results_of(FinishedRun.of(run)))]


def test_run_table__of_numbers(regression, model):
    found = figures(run_table(regression))
    assert found["rows"] == f"300 x 3 features, targets {FIRST}, {SECOND}"
    X, Y = surfaces(300)
    r2 = r2_score(Y, model.scores(X), multioutput="raw_values")
    assert found["training R2"] == f"{r2.mean():.4f} on average, {each(decimals, r2)}"
    X, Y = surfaces(250, seed=1)
    r2, rmse, mae = metrics(Y, model.scores(X))
    assert found["held-out R2"].startswith(
        f"{r2.mean():.4f} on average of 250 rows, a validation dataset, {FIRST} {r2[0]:.4f},"
    )
    assert found["held-out RMSE"] == each(significant, rmse)
    assert found["held-out MAE"] == each(significant, mae)
    assert not {"held-out error", "log loss", "neighbours"} & found.keys()


def test_run_table__of_one_number(one_target):
    found, record = figures(run_table(one_target)), one_target.stages["validation"]
    assert found["rows"] == "200 x 3 features, target target"
    of_folds = f"2 folds, standard deviation {record['fold_deviation']:.4f}"
    assert found["held-out R2"] == f"{record['r2'][0]:.4f} of 200 rows, {of_folds}"
    assert found["held-out RMSE"] == f"{record['rmse'][0]:.4g}"
    X, Y = surfaces(200)
    predicted = Model.load(one_target.location).scores(X)[:, 0]
    assert found["training R2"] == f"{r2_score(Y[:, 1], predicted):.4f}"


def test_tuning_table__of_numbers(regression, model):
    combinations, finals, penalties = tuning_table(regression).split("\n\n")
    assert finals.startswith("2 combinations compared on 300 rows with a basis of 30\n")
    assert re.split("  +", combinations.splitlines()[1])[-2:] == ["relative error", "mean R2"]
    errors = [float(line.split()[-2]) for line in combinations.splitlines()[2:]]
    assert errors == sorted(errors)
    (marked,) = [line for line in penalties.splitlines() if line.startswith("*")]
    X, Y = surfaces(250, seed=1)
    r2 = r2_score(Y, model.scores(X))
    weights = regression.stages["weights"]
    assert marked.split()[1:] == [
        f"{regression.chosen_params.alpha:g}",
        f"{1 - r2:.4g}",
        f"{r2:.4f}",
        f"{weights['fitting_error']:.4g}",
        f"{weights['spectral_risk']:.4g}",
    ]


def test_concerns__the_mean_is_as_good(regression, altered):
    run = altered(regression, validation={"r2": [0.3, -0.0125], "relative_error": 0.85})
    assert problems(run)[0] == (
        "Always predicting the mean is as good on held-out rows: size (R2 -0.0125)."
    )
    assert not any("mean always" in problem for problem in problems(regression))


def test_concerns__numbers_that_are_not_fitted(regression, altered):
    run = altered(regression, weights={"training_r2": [0.25, 0.9], "fitting_error": 3.0})
    found = [problem for problem in problems(run) if "training rows" in problem]
    assert found == [
        f"Less than half of the variance of the training rows is fitted: {FIRST} (R2 0.2500)."
    ]
    assert not any("training rows" in problem for problem in problems(regression))


def test_page__of_numbers(tmp_path, regression, evaluation, model):
    page = page_of(tmp_path, regression, evaluation=evaluation)
    assert page.tags["svg"] == page.tags["figure"] == 2
    assert "Predicted and true numbers" in page.text
    assert "Which classes" not in page.text
    assert "Confidence of the rows" not in page.text
    X, Y = surfaces(250, seed=1)
    r2, rmse, mae = metrics(Y, model.scores(X))
    assert f"R2 {r2.mean():.4f} on average of 250 rows" in page.text
    X, Y = surfaces(300)
    training = r2_score(Y, model.scores(X), multioutput="raw_values")
    cells = "|".join(word.strip() for word in page.words if word.strip())
    for place, name in enumerate(TARGETS):
        # Validation and evaluation are on the same rows.
        judged = [f"{r2[place]:.4f}", f"{rmse[place]:.4g}", f"{mae[place]:.4g}"]
        assert "|".join([name, f"{training[place]:.4f}", *judged, *judged]) in cells
        assert f"Predicted against true numbers of {name}" in page.words
        assert f"R2 of all rows is {r2[place]:.4f}." in page.words
    assert len(set(page.ids)) == len(page.ids)


def test_page__draws_the_targets_that_are_met_worst(regression, evaluation):
    sample = evaluation.sample._replace(
        true=np.arange(6.0) + np.zeros((9, 1)), predicted=np.zeros((9, 6))
    )
    many = replace(evaluation, r2=[0.9, 0.1, 0.95, 0.2, 0.99, 0.3], rmse=[1.0] * 6, sample=sample)
    finished = FinishedRun.of(regression)
    named = replace(finished, attributes=finished.attributes | {"target_names": [*"abcdef"]})
    results = NumberResults(named, many)
    captions = [chart.caption for chart in prediction_charts(results)]
    assert [caption.partition(":")[0] for caption in captions] == ["a", "b", "d", "f"]
    assert captions[0].startswith("a: predicted against true, 9 evaluated rows")


def test_page__evaluations_of_other_targets(tmp_path, regression, fitted, evaluation):
    of_classes = Evaluation(
        n_rows=2, n_errors=0, classes=("a", "b"), confusion=((1, 0), (0, 1)), log_loss=0.1,
        expected_calibration_error=0.0, reliability=[],
    )  # fmt: skip
    other = replace(evaluation, target_names=("a", "b"))
    for run, wrong, message in (
        (regression, of_classes, "the evaluation has 2 classes, but the run has the targets <b>"),
        (regression, other, "the evaluation has the targets a, b, but the run has the targets <b>"),
        (fitted, evaluation, "the evaluation has the targets <b>.*, but the run has 3 classes"),
    ):
        with pytest.raises(ParameterError, match=message):
            write_report(run, tmp_path / "page.html", evaluation=wrong)
    assert list(tmp_path.iterdir()) == []
