import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.numeric.ridge import solve_weights
from dask_nrbfn.numeric.risk import (
    RiskRange,
    error_and_risk,
    gram_eigenvalues,
    perturbation_bounds,
    spectral_bounds,
)
from tests.numeric.frozen import read_only


@read_only
def draw(n_rows=40, n_basis=6, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    Phi = rng.dirichlet(np.ones(n_basis), size=n_rows)
    return Phi, np.eye(n_classes)[rng.integers(0, n_classes, n_rows)]


def judge(weights, Phi, F, alpha=0.0):
    return error_and_risk(weights, Phi.T @ Phi, F.T @ Phi, target_norm=len(Phi), alpha=alpha)


def draw_penalties(n_basis=6, seed=0):
    """Draw the diagonal of a penalty, and a whole one."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n_basis, n_basis))
    return rng.uniform(0.1, 30, n_basis), root @ root.T


def ridge(Phi, F, alpha, penalty=None):
    return solve_weights(Phi.T @ Phi, F.T @ Phi, alpha=alpha, penalty=penalty).weights


@given(n_rows=st.integers(1, 50), n_basis=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=50)
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
@settings(max_examples=50)
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


def bounds(Phi, F, alpha=0.0, **options):
    gram, cross = Phi.T @ Phi, F.T @ Phi
    weights = solve_weights(gram, cross, alpha=alpha).weights
    given = {"eigenvalues": gram_eigenvalues(gram), "class_weights": F.sum(axis=0), **options}
    return spectral_bounds(weights, gram, cross, target_norm=F.sum(), alpha=alpha, **given)


@read_only
def apart(rows_of_class, basis_of_class, *, seed=0, stray=0.0):
    """Return activations within classes, mixed with a share of `stray` anywhere, and indicators."""
    rng = np.random.default_rng(seed)
    row_class = np.repeat(np.arange(len(rows_of_class)), rows_of_class)
    basis_class = np.repeat(np.arange(len(basis_of_class)), basis_of_class)
    Phi = rng.exponential(size=(len(row_class), len(basis_class))) ** 3
    Phi[row_class[:, None] != basis_class] = 0.0
    Phi /= Phi.sum(axis=1, keepdims=True)
    anywhere = rng.dirichlet(np.ones(len(basis_class)), size=len(Phi))
    return (1 - stray) * Phi + stray * anywhere, np.eye(len(rows_of_class))[row_class]


def naive_perturbation(Phi, F):
    """Return xi and the bounds of eqs. 27 and 28 from the ideal activations themselves."""
    owners = (F.T @ Phi).argmax(axis=0)
    ideal = np.where(F.argmax(axis=1)[:, None] == owners, Phi, 0.0)
    ideal /= ideal.sum(axis=1, keepdims=True)
    noise = Phi - ideal
    xi = np.linalg.norm(np.linalg.pinv(ideal), 2) * np.linalg.norm(noise, 2)
    delta = np.linalg.norm(noise) / np.linalg.norm(ideal)
    n_k, r_k = F.sum(axis=0), np.bincount(owners)
    a, b = np.sqrt(n_k.max() / n_k.min()) * xi, np.sqrt(r_k.max() / r_k.min()) * xi
    risk = len(owners) * np.linalg.norm(ideal) ** 2 / len(Phi)
    return (
        xi,
        1 + (a / (1 - a)) ** 2,
        risk * (1 + delta) ** 2 * ((1 + b) / (1 - a)) ** 2,
    )


@given(alpha=st.sampled_from([0.0, 1e-6, 0.1]), n_basis=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=50)
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


def test_bounds__objective_relative_to_the_fit():
    # hu-nrbfn, eq. 44.
    Phi, F = draw()
    found = bounds(Phi, F, 1e-3)
    fit = found.absolute_risk * np.sum(Phi**2) / found.relative.spectral_risk
    assert found.absolute_objective / fit == pytest.approx(found.relative.objective, rel=1e-12)


def test_bounds__same_with_eigenvalues_given():
    Phi, F = draw()
    values = gram_eigenvalues(Phi.T @ Phi)
    assert bounds(Phi, F, 1e-3, eigenvalues=values) == bounds(Phi, F, 1e-3)
    assert values.tolist() == sorted(values)


@given(
    rows=st.lists(st.integers(6, 20), min_size=2, max_size=4),
    sizes=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    alpha=st.sampled_from([0.0, 1e-4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=50)
def test_bounds__risk_of_classes_apart(rows, sizes, alpha, seed):
    Phi, F = apart(rows, sizes[: len(rows)], seed=seed)
    found = bounds(Phi, F, alpha)
    n_k, r_k = np.array(rows), np.array(sizes[: len(rows)])
    least = r_k.sum() / n_k.sum() * sum(n / r for n, r in zip(n_k, r_k, strict=True))
    assert found.ideal == RiskRange(pytest.approx(least), r_k.sum())
    assert found.relative.spectral_risk <= found.ideal.most + 1e-9
    if alpha == 0:
        assert found.relative.fitting_error == pytest.approx(1, abs=1e-9)
        assert found.relative.spectral_risk >= least - 1e-9
        # Of nothing between the classes the perturbation bound is the risk itself.
        assert found.perturbed.noise == 0
        assert found.perturbed.fitting_error == 1
        assert found.perturbed.spectral_risk == pytest.approx(found.relative.spectral_risk)


def test_bounds__ideal_range_is_reached():
    one_each = np.eye(6)[np.arange(60) % 6]
    F = np.eye(3)[np.arange(60) % 3]
    greatest = bounds(one_each, F)
    assert greatest.ideal == RiskRange(3.0, 6.0)
    assert greatest.relative.spectral_risk == pytest.approx(greatest.ideal.most)
    least = bounds(F, F)
    assert least.ideal == RiskRange(3.0, 3.0)
    assert least.relative.spectral_risk == pytest.approx(least.ideal.least)


def test_bounds__even_classes():
    # hu-nrbfn, eq. 25.
    Phi, F = apart([12, 12, 12], [4, 4, 4])
    assert bounds(Phi, F).ideal == RiskRange(pytest.approx(3), 12)


@pytest.mark.parametrize("stray", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("rows", [[30, 30], [40, 25, 10]])
def test_bounds__perturbed_classes(rows, stray):
    Phi, F = apart(rows, list(range(2, 2 + len(rows))), stray=stray)
    found = bounds(Phi, F)
    xi, error, risk = naive_perturbation(Phi, F)
    assert found.ideal is None
    assert found.perturbed.noise >= xi
    assert found.perturbed.fitting_error >= error
    assert error >= found.relative.fitting_error - 1e-13
    assert found.perturbed.spectral_risk >= found.relative.spectral_risk
    # Not so far above the theorem's own that nothing is said.
    assert found.perturbed.noise < 100 * xi
    if stray <= 1e-5:
        assert found.perturbed.spectral_risk == pytest.approx(risk, rel=0.05)
    penalized = bounds(Phi, F, 1e-4).relative.spectral_risk
    assert penalized <= found.perturbed.spectral_risk


def test_bounds__perturbation_too_large():
    Phi, F = apart([30, 30], [3, 3], stray=0.3)
    found = bounds(Phi, F)
    assert found.ideal is None
    assert found.perturbed is None


def test_bounds__rows_of_little_weight():
    # A row of weight w has w times its share of the sums, but is as far from its ideal.
    Phi, F = apart([30, 30], [3, 3], stray=1e-4)
    weight = 1e-3
    gram, cross = weight * Phi.T @ Phi, weight * F.T @ Phi
    moments = {"cross": cross, "eigenvalues": gram_eigenvalues(gram)}
    sums = weight * F.sum(axis=0)
    found = perturbation_bounds(**moments, class_weights=sums, least_weight=weight)
    assert found.noise >= naive_perturbation(Phi, F)[0]
    assert perturbation_bounds(**moments, class_weights=sums).noise < found.noise


def test_bounds__class_without_basis_rows():
    Phi, F = apart([20, 20], [3, 3])
    F = np.eye(3)[np.arange(40) // 20 * 2]
    F[::4] = [0, 1, 0]
    found = bounds(Phi, F)
    assert found.ideal is None
    assert found.perturbed is None


def test_bounds__class_without_rows():
    Phi, F = apart([20, 30], [2, 3])
    more = np.insert(F, 1, 0.0, axis=1)
    assert bounds(Phi, more).ideal == bounds(Phi, F).ideal
    assert bounds(Phi, more).perturbed == bounds(Phi, F).perturbed


def test_bounds__duplicate_basis_rows():
    Phi, F = apart([20, 20], [2, 2])
    doubled = np.column_stack([Phi[:, :1] / 2, Phi[:, :1] / 2, Phi[:, 1:]])
    found = bounds(doubled, F, 1e-9)
    assert found.rank == 4
    assert found.attainable.most is None
    assert found.ideal is None
    assert found.perturbed is None
    assert np.isfinite(found.relative.spectral_risk)


def test_bounds__one_row_and_one_class():
    found = bounds(np.array([[1.0]]), np.array([[1.0]]))
    assert found.relative.fitting_error == 1
    assert found.ideal == RiskRange(1.0, 1.0)
    assert found.perturbed.spectral_risk == 1


def test_bounds__features_that_are_not_activations():
    Phi, F = apart([20, 20], [2, 2])
    found = bounds(Phi, F, class_weights=None)
    assert found.ideal is None
    assert found.perturbed is None
    assert found.attainable == bounds(Phi, F).attainable


def test_spectral_bounds__without_eigenvalues():
    Phi, F = draw()
    whole, cheap = bounds(Phi, F, 1e-3), bounds(Phi, F, 1e-3, eigenvalues=None)
    assert (cheap.relative, cheap.absolute_objective) == (whole.relative, whole.absolute_objective)
    assert (cheap.rank, cheap.attainable, cheap.ideal, cheap.perturbed) == (None,) * 4


def objective(weights, Phi, T, alpha, penalty):
    moments = {"gram": Phi.T @ Phi, "cross": T.T @ Phi, "target_norm": float(np.sum(T**2))}
    return spectral_bounds(weights, **moments, alpha=alpha, penalty=penalty).absolute_objective


@pytest.mark.parametrize("alpha", [1e-14, 1e-9, 1e-2])
@pytest.mark.parametrize("kind", ["weights", "diagonal", "infinite", "matrix", "singular"])
def test_objective__is_what_the_weights_minimize(kind, alpha):
    (Phi, T), (diagonal, P) = draw(), draw_penalties()
    penalty = {
        "weights": None,
        "diagonal": diagonal,
        "infinite": np.where(np.arange(6) == 2, np.inf, diagonal),
        "matrix": P,
        "singular": P[:, :2] @ P[:2],
    }[kind]
    weights = ridge(Phi, T, alpha, penalty)
    # A parabola: its slope at the weights, from both sides, is 0 beside what it rises.
    rng = np.random.default_rng(1)
    for _ in range(20):
        step = 0.1 * rng.normal(size=weights.shape)
        if kind == "infinite":
            step[:, 2] = 0.0
        least, ahead, back = (
            objective(weights + sign * step, Phi, T, alpha, penalty) for sign in (0, 1, -1)
        )
        assert abs(ahead - back) < 1e-6 * (ahead + back - 2 * least)


@pytest.mark.parametrize("axes", [1, 2])
def test_objective__reference_penalized(axes):
    (Phi, T), (diagonal, P) = draw(), draw_penalties()
    penalty, matrix = (diagonal, np.diag(diagonal)) if axes == 1 else (P, P)
    weights, gram = np.random.default_rng(2).normal(size=(3, 6)), Phi.T @ Phi
    own = np.trace(weights @ matrix @ weights.T) * 6 / np.trace(matrix)
    f, fit = np.sum((T - Phi @ weights.T) ** 2), np.sum((Phi @ weights.T) ** 2)
    jitter = 1e-13 * np.sum(weights**2) * (axes == 2)
    expected = f + np.trace(gram) * (0.3 * own + jitter)
    assert objective(weights, Phi, T, 0.3, penalty) == pytest.approx(expected, rel=1e-12)
    judged = error_and_risk(weights, gram, T.T @ Phi, target_norm=40.0, alpha=0.3, penalty=penalty)
    assert judged.objective == pytest.approx(expected / fit, rel=1e-12)
    risk = np.sum(weights**2) * np.trace(gram) / fit
    assert judged.spectral_risk == pytest.approx(risk, rel=1e-12)


def test_bounds__of_any_weights_hold_and_those_of_the_ridge_alone_are_left_out():
    (Phi, T), (diagonal, P) = draw(), draw_penalties()
    gram, cross = Phi.T @ Phi, T.T @ Phi
    known = {"class_weights": T.sum(axis=0), "eigenvalues": gram_eigenvalues(gram)}
    for penalty in (diagonal, P):
        for alpha in (1e-9, 1e-2, 1.0):
            weights = ridge(Phi, T, alpha, penalty)
            found = spectral_bounds(
                weights, gram, cross, target_norm=40.0, alpha=alpha, penalty=penalty, **known
            )
            assert (found.ideal, found.perturbed) == (None, None)
            least, most = found.attainable.least, found.attainable.most
            assert least <= found.relative.spectral_risk <= most
