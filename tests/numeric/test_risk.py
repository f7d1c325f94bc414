import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.numeric.risk import gram_eigenvalues
from tests.numeric.systems import error_and_risk, solve_weights, spectral_bounds
from tests.numeric.test_ridge import draw


def judge(weights, Phi, F, alpha=0.0):
    return error_and_risk(weights, Phi.T @ Phi, F.T @ Phi, target_norm=len(Phi), alpha=alpha)


@given(n_rows=st.integers(1, 50), n_basis=st.integers(1, 8), seed=st.integers(0, 99))
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


def test_risk__of_a_penalty_matrix_counts_what_is_added_to_the_diagonal():
    # The weights are large where the rows are not.
    gram, weights, cross = np.diag([1.0, 0.0]), np.array([[1.0, 3e6]]), np.array([[0.5, 0.0]])
    for penalty, added in ((np.array([[1.0, 0.5], [0.5, 1.0]]), 1e-13 * 9e12), (np.ones(2), 0.0)):
        judged = error_and_risk(weights, gram, cross, target_norm=2.0, alpha=0.0, penalty=penalty)
        assert judged.fitting_error == pytest.approx(2.0 - 1.0 + 1.0 + 1.0)
        assert judged.objective == pytest.approx(judged.fitting_error - 1 + added)


def test_risk__of_a_fit_that_is_0_everywhere():
    judged = judge(np.zeros((3, 2)), *draw(9, 2), alpha=0.3)
    assert (judged.fitting_error, judged.spectral_risk, judged.objective) == (1.0, 1.0, 0.3)


def bounds(Phi, F, alpha=0.0, **options):
    gram, cross = Phi.T @ Phi, F.T @ Phi
    weights = solve_weights(gram, cross, alpha=alpha).weights
    given = {"eigenvalues": gram_eigenvalues(gram), **options}
    return spectral_bounds(weights, gram, cross, target_norm=F.sum(), alpha=alpha, **given)


@given(alpha=st.sampled_from([0.0, 1e-6, 0.1]), n_basis=st.integers(1, 8), seed=st.integers(0, 99))
def test_bounds__naive_from_the_full_features(alpha, n_basis, seed):
    Phi, F = draw(n_basis=n_basis, seed=seed)
    found = bounds(Phi, F, alpha)
    sizes = np.linalg.svd(Phi, compute_uv=False) ** 2
    penalty = alpha * sizes.sum()
    extra = np.sqrt(penalty) * np.eye(n_basis)
    weights = np.linalg.lstsq(
        np.vstack([Phi, extra]), np.vstack([F, np.zeros((n_basis, 3))]), rcond=None
    )[0].T
    f, risk = np.sum((F - Phi @ weights.T) ** 2), np.sum(weights**2)
    assert found.absolute_error == pytest.approx(f, rel=1e-8)
    assert found.absolute_risk == pytest.approx(risk, rel=1e-6)
    assert found.absolute_objective == pytest.approx(f + penalty * risk, rel=1e-8)
    assert found.rank == np.linalg.matrix_rank(Phi) == n_basis
    assert found.attainable.least == pytest.approx(sizes.sum() / sizes[0], rel=1e-10)
    assert found.attainable.most == pytest.approx(sizes.sum() / sizes[-1], rel=1e-8)
    assert found.attainable.least - 1e-9 <= found.relative.spectral_risk
    assert found.relative.spectral_risk <= found.attainable.most * (1 + 1e-9)


@pytest.mark.parametrize("alpha", [0.0, 1e-5, 0.1])
def test_bounds__spectral_expressions(alpha):
    # hu-nrbfn, Proposition 16: every figure from the projections on the singular vectors.
    Phi, F = draw()
    left, sizes, _ = np.linalg.svd(Phi, full_matrices=False)
    projections = np.sum((F.T @ left) ** 2, axis=0)
    penalty = alpha * np.sum(sizes**2)
    kept = projections * sizes**4 / (sizes**2 + penalty) ** 2
    f = len(Phi) - np.sum(projections * (1 - penalty**2 / (sizes**2 + penalty) ** 2))
    found = bounds(Phi, F, alpha)
    assert found.absolute_error == pytest.approx(f, rel=1e-10)
    assert found.absolute_risk == pytest.approx(np.sum(kept / sizes**2), rel=1e-9)
    assert found.relative.fitting_error == pytest.approx(f / kept.sum() + 1, rel=1e-10)
    risk = np.sum(kept / sizes**2) * np.sum(sizes**2) / kept.sum()
    assert found.relative.spectral_risk == pytest.approx(risk, rel=1e-9)


def test_bounds__duplicate_basis_rows():
    Phi, F = draw()
    doubled = np.column_stack([Phi[:, :1] / 2, Phi[:, :1] / 2, Phi[:, 1:]])
    found = bounds(doubled, F, 1e-9)
    assert found.rank == Phi.shape[1]
    assert found.attainable.most is None
    assert np.isfinite(found.relative.spectral_risk)


def test_spectral_bounds__without_eigenvalues():
    Phi, F = draw()
    whole, cheap = bounds(Phi, F, 1e-3), bounds(Phi, F, 1e-3, eigenvalues=None)
    assert (cheap.relative, cheap.absolute_objective) == (whole.relative, whole.absolute_objective)
    assert (cheap.rank, cheap.attainable) == (None, None)
