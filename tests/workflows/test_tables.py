import re
import sys

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.mixture import GaussianMixture

from dask_nrbfn import NRBFNClassifier
from tests.tables import spirals
from tests.workflows.script import ROOT, run_here
from workflows.paper.comparators.netlab import Mixture, mixture_step
from workflows.paper.comparators.sensitivity import distance_moments, widest_union

PAPER = ROOT / "workflows/paper"


def run_tables(*arguments, cwd):
    """Return the cells of the printed lines by table, data and what."""
    process = run_here("workflows/paper/tables.py", *arguments, cwd=cwd)
    assert process.returncode == 0, process.stderr
    found = {}
    for section in process.stdout.split("\n## ")[1:]:
        title, *rows = section.splitlines()
        for row in rows[3:]:
            data, what, *cells = (cell.strip() for cell in row.strip("| \n").split("|"))
            found[title.partition(":")[0], data, what] = cells
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tiny files of sets that do not come with scikit-learn."""
    place = tmp_path_factory.mktemp("data")
    X, y = spirals(90, n_features=2, n_classes=2)
    rows = np.arange(90)
    splits = {"train_splits": rows[None, :60], "test_splits": rows[None, 60:]}
    np.savez(place / "raetsch_banana.npz", X=X, y=2 * y - 1, **splits)
    X, y = spirals(140, n_features=9, n_classes=2)
    parts = {"X_train": X[:110], "y_train": y[:110], "X_test": X[110:], "y_test": y[110:]}
    np.savez(place / "adult.npz", **parts)
    X, y = spirals(260)
    np.savez(place / "digits.npz", X=X, y=y)
    return place


def test_tables__a_set_that_is_not_there(tmp_path):
    found = run_tables("hu", "--sets", "colon", "--only", "table-2", cwd=tmp_path)
    assert found == {("table-2", "colon", ""): ["", "", "not here"]}


@pytest.mark.parametrize(
    ("paper", "table", "data", "methods"),
    [
        pytest.param("que", "table-1", "adult", ["K-RLSC", "RBFN-hinge"], marks=pytest.mark.slow),
        ("que", "table-3", "adult", ["RBF-rand", "k-means(w)"]),
        ("xue", "table-10", "raetsch_banana", ["LR", "R_SM", "RN"]),
        pytest.param(
            "lee", "few-labels", "digits", ["30 labels, series, basis all"], marks=pytest.mark.slow
        ),
    ],
)
def test_tables__of_other_papers(tmp_path, folder, paper, table, data, methods):
    arguments = ("--data", folder, "--sets", data, "--only", table, "--splits", 1)
    found = run_tables(paper, *arguments, cwd=tmp_path)
    for method in methods:
        # Errors, or accuracies of xue.
        measured = float(found[table, data, method][1])
        assert 40 < (measured if paper == "xue" else 100 - measured) <= 100


@pytest.mark.slow
def test_tables__all_of_hu(tmp_path):
    figures = run_tables("hu", "--sets", "iris", "wdbc", "wine", cwd=tmp_path)
    other = {key for key, cells in figures.items() if cells[-1].partition(":")[0] != "reproduced"}
    # Of Table 1 what draws nothing: neither seeds nor folds.
    for name in ("iris", "wdbc", "wine"):
        assert other.isdisjoint({("table-1", name, what) for what in ("KNN", "LRC", "nRBFN")})
    assert ("table-1", "wine", "ROLS") not in other
    assert {key for key in other if key[0] != "table-1"} == {
        ("table-3", "wdbc", "nRBFN"),
        ("table-5", "wdbc", "nRNwr eps"),
        ("table-5", "wdbc", "nRNwr gamma"),
        ("table-6", "wine", "LRC rank"),
    }
    assert re.match("not: a misprint", figures["table-6", "wine", "LRC rank"][-1])


def test_networks__as_the_estimator(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(PAPER)
    import networks

    X, y = spirals(200)
    recipe = networks.Recipe(basis=lambda rows: X[:30], penalty="kernel")
    width = networks.mean_distance(X[:30], X)
    network = recipe.fit(X, y, networks.Setting(width, 1e-6, 0.0))
    estimator = NRBFNClassifier(
        basis=X[:30],
        features="plain",
        kernel="gaussian",
        scale="none",
        penalty="kernel",
        alpha=1e-6,
    )
    estimator.fit(X, y)
    np.testing.assert_allclose(estimator.width_, width, rtol=1e-12)
    np.testing.assert_allclose(network.scores(X), estimator.decision_function(X), atol=1e-7)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(PAPER)):
            del sys.modules[name]


def test_netlab__mixture_as_scikit_learn():
    X, _ = spirals(120, n_features=3)
    start = Mixture(np.array([0.2, 0.3, 0.5]), X[[3, 50, 90]], np.array([0.5, 1.0, 2.0]))
    ours = start
    for _ in range(7):
        ours = mixture_step(X, ours, least_variance=0.0)
    theirs = GaussianMixture(
        3,
        covariance_type="spherical",
        max_iter=7,
        tol=0.0,
        reg_covar=0.0,
        weights_init=start.shares,
        means_init=start.centres,
        precisions_init=1.0 / start.variances,
    )
    with pytest.warns(match="did not converge"):
        theirs.fit(X)
    expected = (theirs.weights_, theirs.means_, theirs.covariances_)
    for own, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9)


def test_sensitivity__moments_of_independent_columns():
    rng = np.random.default_rng(0)
    first, second = rng.exponential(size=7), rng.normal(3.0, size=11)
    X = np.array([[a, b] for a in first for b in second])
    centres = rng.normal(size=(4, 2))
    squared = cdist(X, centres, "sqeuclidean")
    mean, variance = distance_moments(X, centres)
    np.testing.assert_allclose(mean, squared.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, squared.var(axis=0), rtol=1e-12)


def test_sensitivity__widest_union_solves_the_equation():
    rng = np.random.default_rng(1)
    X, centres, weights = rng.normal(size=(50, 3)), rng.normal(size=(4, 3)), rng.normal(size=4)
    Q = widest_union(X, centres, weights, width=2.0, empirical=0.04, rho=0.25)
    mean, variance = distance_moments(X, centres)
    terms = weights**2 * np.exp(variance / (2 * 2.0**4) - mean / 2.0**2) / 2.0**4
    left = 0.2 / 3 * 3 * terms.sum() * Q**4 + terms @ mean * Q**2
    np.testing.assert_allclose(left, 3 * (0.5 - 0.2) ** 2, rtol=1e-12)
