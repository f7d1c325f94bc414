"""The figures of hu-nrbfn, Tables 1, 2, 4 and 5, from the command line and from the estimator.

Raw features; the first half of each class, in file order, trains; k = 20, t = 0.9. Every iris
setosa row has confidence 1, so the seed decides which one stands for the class: the figures of iris
belong to the row that seed 0 draws.
"""

import json

import pytest
from click.testing import CliRunner

from dask_nrbfn import NRBFNClassifier
from dask_nrbfn.cli import commands
from tests.tables import LOADERS, halves, write_table

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
cases = pytest.mark.parametrize(("name", "alpha", "error", "eps", "gamma"), FIGURES)


@pytest.fixture(scope="module", params=sorted(LOADERS))
def stored(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    X_train, y_train, X_test, y_test = halves(request.param)
    write_table(place / "train", X_train, y_train, chunk_rows=40)
    write_table(place / "test", X_test, y_test, chunk_rows=40)
    return request.param, place


def run_json(*arguments):
    result = CliRunner().invoke(commands, ["--quiet", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_paper__command_line(stored):
    name, place = stored
    for _, alpha, error, eps, gamma in (row for row in FIGURES if row[0] == name):
        run = place / f"run-{alpha}"
        fitted = run_json("fit", place / "train", run, "--alpha", alpha, "--workers", 0)
        tested = run_json("evaluate", run, place / "test", "--workers", 0)
        assert fitted["n_basis"] == N_BASIS[name]
        assert f"{100 * tested['error_rate']:.1f}" == error
        check_risk(fitted["fitting_error"], fitted["spectral_risk"], eps, gamma)


@cases
def test_paper__estimator(name, alpha, error, eps, gamma):
    X_train, y_train, X_test, y_test = halves(name)
    network = NRBFNClassifier(alpha=alpha).fit(X_train, y_train)
    assert len(network.basis_) == N_BASIS[name]
    assert f"{100 * (1 - network.score(X_test, y_test)):.1f}" == error
    check_risk(network.fitting_error_, network.spectral_risk_, eps, gamma)


def check_risk(fitting_error, spectral_risk, eps, gamma):
    if eps is not None:
        assert f"{fitting_error:.3f}" == eps
        assert f"{spectral_risk:.1e}" == gamma
