import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.numeric.ridge import solve_weights
from dask_nrbfn.numeric.risk import error_and_risk


def draw(n_rows=40, n_basis=6, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    Phi = rng.dirichlet(np.ones(n_basis), size=n_rows)
    return Phi, np.eye(n_classes)[rng.integers(0, n_classes, n_rows)]


def judge(weights, Phi, F, alpha=0.0):
    return error_and_risk(weights, Phi.T @ Phi, F.T @ Phi, n_rows=len(Phi), alpha=alpha)


def ridge(Phi, F, alpha):
    return solve_weights(Phi.T @ Phi, F.T @ Phi, alpha=alpha)


@given(n_rows=st.integers(1, 50), n_basis=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_risk__naive_second_pass(n_rows, n_basis, seed):
    Phi, F = draw(n_rows, n_basis, seed=seed)
    weights = np.random.default_rng(seed + 100).normal(size=(3, n_basis))
    fit = Phi @ weights.T
    error = np.sum((F - fit) ** 2) / np.sum(fit**2) + 1
    risk = np.sum(weights**2) * sum(np.sum(row**2) for row in Phi) / np.sum(fit**2)
    judged = judge(weights, Phi, F, alpha=0.3)
    assert judged.fitting_error == pytest.approx(error, rel=1e-10)
    assert judged.spectral_risk == pytest.approx(risk, rel=1e-10)
    assert judged.objective == pytest.approx(error + 0.3 * risk - 1, rel=1e-10)


@given(alpha=st.sampled_from([1e-8, 1e-4, 1.0]), n_basis=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_risk__objective_of_the_ridge_solution(alpha, n_basis, seed):
    # From weights (gram + penalty) = cross: objective |fit|^2 = n - sum(weights * cross).
    Phi, F = draw(n_basis=n_basis, seed=seed)
    weights = ridge(Phi, F, alpha)
    expected = (len(Phi) - np.sum(weights * (F.T @ Phi))) / np.sum((Phi @ weights.T) ** 2)
    judged = judge(weights, Phi, F, alpha=alpha)
    assert judged.objective == pytest.approx(expected, rel=1e-8)
    assert judged.fitting_error >= 1
    assert judged.spectral_risk >= 1 - 1e-12


def test_risk__larger_penalty_more_error_less_risk():
    Phi, F = draw()
    judged = [judge(ridge(Phi, F, alpha), Phi, F) for alpha in (1e-8, 1e-4, 1e-2, 1.0)]
    errors, risks = [j.fitting_error for j in judged], [j.spectral_risk for j in judged]
    assert errors == sorted(errors)
    assert risks == sorted(risks, reverse=True)
    assert len(set(errors)) == len(set(risks)) == 4


def test_risk__same_for_weights_of_any_length():
    Phi, F = draw()
    weights = ridge(Phi, F, 1e-3)
    risk = judge(weights, Phi, F).spectral_risk
    assert judge(1e4 * weights, Phi, F).spectral_risk == pytest.approx(risk, rel=1e-12)


def test_risk__one_basis_row_has_the_least_risk():
    Phi, F = draw(n_basis=1)
    assert judge(ridge(Phi, F, 1e-3), Phi, F).spectral_risk == pytest.approx(1.0, rel=1e-14)


def test_risk__perfect_fit_of_one_row():
    judged = judge(np.array([[1.0], [0.0]]), np.array([[1.0]]), np.array([[1.0, 0.0]]))
    assert (judged.fitting_error, judged.spectral_risk, judged.objective) == (1.0, 1.0, 0.0)


def test_risk__class_without_rows_changes_nothing():
    Phi, F = draw()
    more = np.column_stack([F, np.zeros(len(F))])
    before, after = judge(ridge(Phi, F, 1e-3), Phi, F), judge(ridge(Phi, more, 1e-3), Phi, more)
    assert after.fitting_error == pytest.approx(before.fitting_error, rel=1e-12)
    assert after.spectral_risk == pytest.approx(before.spectral_risk, rel=1e-12)


def test_risk__repeated_rows_change_nothing():
    Phi, F = draw()
    weights = ridge(Phi, F, 1e-3)
    before, after = judge(weights, Phi, F), judge(weights, np.tile(Phi, (5, 1)), np.tile(F, (5, 1)))
    assert after.fitting_error == pytest.approx(before.fitting_error, rel=1e-12)
    assert after.spectral_risk == pytest.approx(before.spectral_risk, rel=1e-12)


def test_risk__figures_are_plain_floats():
    Phi, F = draw()
    judged = judge(ridge(Phi, F, 1e-3), Phi, F)
    assert {type(v) for v in vars(judged).values()} == {float}


def test_risk__inputs_stay_as_they_were():
    Phi, F = draw()
    arrays = ridge(Phi, F, 1e-3), Phi.T @ Phi, F.T @ Phi
    before = [array.copy() for array in arrays]
    error_and_risk(*arrays, n_rows=len(Phi), alpha=1e-3)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
