"""The figures of hu-nrbfn, Tables 1 to 6, from the command line and from the estimators.

Raw features; the first half of each class, in file order, trains; k = 20, t = 0.9. Every iris
setosa row has confidence 1, so the seed decides which one stands for the class. FIGURES belong to
the row that seed 0 draws, the paper's to row 6, which PAPER_SEED draws.
"""

import json
from functools import cache

import pytest
from click.testing import CliRunner

from dask_nrbfn import NRBFNClassifier
from dask_nrbfn.cli import commands
from dask_nrbfn.errors import IllConditionedError
from tests.tables import halves, write_table

N_BASIS = {"iris": 32, "wdbc": 73, "wine": 74}
# Test error in percent, eps and gamma as printed; None where only the error is known.
FIGURES = [
    ("iris", 1e-5, "2.7", None, None),
    ("iris", 1e-9, "5.3", "1.046", "2.3e+06"),
    ("iris", 1e-13, "8.0", "1.023", "7.0e+09"),
    ("wdbc", 1e-5, "8.1", None, None),
    ("wdbc", 1e-9, "4.9", "1.106", "2.4e+06"),
    ("wdbc", 1e-13, "5.3", "1.073", "2.4e+10"),
    ("wine", 1e-5, "22.7", None, None),
    ("wine", 1e-9, "5.7", "1.283", "5.3e+07"),
    ("wine", 1e-13, "1.1", "1.074", "9.6e+10"),
]
PAPER_SEED = 4
PAPER = {"kernel": "gaussian", "scale": "none", "confidence_threshold": 0.9}


def run_json(*arguments):
    result = CliRunner().invoke(commands, ["--quiet", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("name", "alpha", "error", "eps", "gamma"), FIGURES[1::3])
def test_paper__command_line(tmp_path, name, alpha, error, eps, gamma):
    X_train, y_train, X_test, y_test = halves(name)
    write_table(tmp_path / "train", X_train, y_train, chunk_rows=40)
    write_table(tmp_path / "test", X_test, y_test, chunk_rows=40)
    run = tmp_path / "run"
    paper = ("--kernel", "gaussian", "--scale", "none", "--confidence-threshold", 0.9)
    options = (*paper, "--alpha", alpha, "--workers", 0)
    fitted = run_json("fit", tmp_path / "train", run, *options)
    tested = run_json("evaluate", run, tmp_path / "test", "--workers", 0)
    assert fitted["n_basis"] == N_BASIS[name]
    assert f"{100 * tested['error_rate']:.1f}" == error
    check_risk(fitted["fitting_error"], fitted["spectral_risk"], eps, gamma)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(("name", "alpha", "error", "eps", "gamma"), FIGURES)
def test_paper__estimator(name, alpha, error, eps, gamma):
    network, found = fit_paper(name, alpha, random_state=0)
    assert len(network.basis_) == N_BASIS[name]
    assert found == error
    check_risk(network.fitting_error_, network.spectral_risk_, eps, gamma)


def check_risk(fitting_error, spectral_risk, eps, gamma):
    if eps is not None:
        assert f"{fitting_error:.3f}" == eps
        assert f"{spectral_risk:.1e}" == gamma


def in_percent(network, X, y):
    return f"{100 * (1 - network.score(X, y)):.1f}"


@cache
def fit_paper(name, alpha, random_state=PAPER_SEED, **parameters):
    """Return a network of the rows that train, and its error of the others in percent."""
    X_train, y_train, X_test, y_test = halves(name)
    network = NRBFNClassifier(alpha=alpha, random_state=random_state, **PAPER, **parameters)
    return network, in_percent(network.fit(X_train, y_train), X_test, y_test)


def test_paper__iris_row_that_stands_for_setosa():
    network, _ = fit_paper("iris", 1e-9)
    assert network.basis_indices_[0] == 6
    assert network.basis_indices_[1] >= 25


# wdbc: 14 of the 284 test rows are wrong, printed are 13, 4.6 %.
@pytest.mark.parametrize(
    ("name", "alpha", "size", "percent", "error"),
    [
        ("iris", 1e-9, 27, "36.0", "5.3"),
        ("wdbc", 1e-9, 66, "23.2", "4.9"),
        ("wine", 1e-13, 50, "55.6", "1.1"),
    ],
)
def test_paper__table_3_basis_size_of_svm(name, alpha, size, percent, error):
    network, found = fit_paper(name, alpha, basis_size=size)
    assert f"{100 * len(network.basis_) / len(network.confidence_):.1f}" == percent
    assert found == error


# Printed is an error of 6.7 for alpha 0: one test row fewer. Table 6 has the row of 1e-9 again.
@pytest.mark.parametrize(
    ("alpha", "eps", "gamma", "error"),
    [(0.0, "1.022", "9.7e+09", "8.0"), (1e-9, "1.044", "2.5e+06", "5.3")],
)
def test_paper__table_5_of_iris(alpha, eps, gamma, error):
    network, found = fit_paper("iris", alpha)
    assert found == error
    check_risk(network.fitting_error_, network.spectral_risk_, eps, gamma)


@pytest.mark.parametrize("name", ["wdbc", "wine"])
def test_paper__table_5_singular_without_the_penalty(name):
    # wine is missing from the table for this reason; the paper's gamma of wdbc is 2.6e15.
    with pytest.raises(IllConditionedError):
        fit_paper(name, 0.0)
