from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.errors import IllConditionedError
from dask_nrbfn.numeric.held_out import scores_left_out
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED, SINGULAR, Locality, RidgeSystem, solve_bytes
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets
from tests.numeric.frozen import read_only
from tests.numeric.systems import solve_path, solve_weights
from tests.reference import reference_penalized
from tests.tables import spirals


@read_only
def draw(n_rows=40, n_basis=6, n_classes=3, seed=0):
    """Draw Phi and F, whose products are gram and cross."""
    rng = np.random.default_rng(seed)
    Phi = rng.dirichlet(np.ones(n_basis), size=n_rows)
    return Phi, np.eye(n_classes)[rng.integers(0, n_classes, n_rows)]


@read_only
def draw_penalties(n_basis=6, seed=0):
    """Draw the diagonal of a penalty, and a whole one."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n_basis, n_basis))
    return rng.uniform(0.1, 30, n_basis), root @ root.T


def solve(Phi, F, alpha, penalty=None):
    return solve_weights(Phi.T @ Phi, F.T @ Phi, alpha=alpha, penalty=penalty).weights


def naive(Phi, F, alpha):
    gram = Phi.T @ Phi
    return np.linalg.solve(gram + alpha * np.trace(gram) * np.eye(len(gram)), Phi.T @ F).T


def test_squared_residuals__are_those_of_the_rows():
    Phi, F = draw()
    system = RidgeSystem.of(
        Moments.from_block(Phi, np.hstack([np.ones((40, 1)), F])), ClassTargets(3), normalized=True
    )
    W = naive(Phi, F, 1e-2)
    expected = ((F - Phi @ W.T) ** 2).sum(axis=0)
    np.testing.assert_allclose(system.squared_residuals(W), expected, rtol=1e-12)


# 256 rows are put back at a time.
@pytest.mark.parametrize(
    ("n_basis", "penalty"), [(1, "none"), (600, "none"), (600, "left out"), (300, "full")]
)
def test_weights__solved_in_place_have_the_same_bits(n_basis, penalty):
    Phi, F = draw(n_rows=2 * n_basis, n_basis=n_basis)
    diagonal, full = draw_penalties(n_basis)
    left_out = np.where(np.arange(n_basis) % 2, np.inf, diagonal)
    P = {"none": None, "left out": left_out, "full": full}[penalty]
    gram, cross = Phi.T @ Phi, F.T @ Phi
    before = gram.copy()
    (expected,) = solve_path(gram, cross, alphas=[1e-3], penalty=P)
    found = solve_weights(gram, cross, alpha=1e-3, penalty=P)
    np.testing.assert_array_equal(gram, before)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert found.reciprocal_condition == expected.reciprocal_condition


@given(
    n_basis=st.integers(1, 12),
    alpha=st.sampled_from([1e-6, 1e-3, 1.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_weights__naive(n_basis, alpha, seed):
    Phi, F = draw(n_basis=n_basis, seed=seed)
    weights = solve(Phi, F, alpha)
    expected = naive(Phi, F, alpha)
    assert weights.shape == (3, n_basis)
    assert weights.flags.c_contiguous
    np.testing.assert_allclose(weights, expected, rtol=1e-8, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("gram", "why"),
    [
        (np.ones((2, 2)), r"alpha=0 is too small: the 2 x 2 ridge .* float64\."),
        (np.zeros((2, 2)), r"the 2 x 2 ridge .* float64 at every penalty\. Check the features"),
        (-np.eye(2), r"the 2 x 2 ridge .* float64 at every penalty\. Check the features"),
    ],
    ids=["rank 1", "zero", "negative"],
)
def test_weights__singular_system_is_refused(gram, why):
    with pytest.raises(IllConditionedError, match=why):
        solve_weights(gram, np.ones((1, 2)), alpha=0.0)


def test_weights__message_names_the_penalty_and_the_next_that_works():
    gram, cross = np.ones((3, 3)), np.ones((1, 3))
    message = r"alpha=1e-20 is too small: .*\. Use alpha=1e-15 or more\."
    with pytest.raises(IllConditionedError, match=message):
        solve_weights(gram, cross, alpha=1e-20)
    assert solve_weights(gram, cross, alpha=1e-15).reciprocal_condition > SINGULAR


@pytest.mark.parametrize(("n_rows", "n_columns"), [(30, 2), (3000, 60)])
def test_weights__repeated_column_is_singular_whatever_the_rounding(n_columns, n_rows):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        Phi = rng.normal(size=(n_rows, n_columns)) * 10 ** rng.uniform(-3, 3, n_columns)
        Phi = np.column_stack([Phi, Phi[:, rng.integers(n_columns)]])
        with pytest.raises(IllConditionedError, match=r"Use alpha=.* or more\."):
            solve(Phi, np.ones((n_rows, 1)), 0.0)


@pytest.mark.parametrize(
    ("scale", "condition"), [(1.0, 1.0), (1e-150, 1e-9), (1e150, 1e-13), (1.0, 5e-15)]
)
def test_condition__of_known_eigenvalues(condition, scale):
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(50, 50)))[0]
    eigenvalues = np.geomspace(condition, 1.0, 50)
    gram = (axes * (scale * eigenvalues)) @ axes.T
    expected = condition / np.sqrt(np.sum(eigenvalues**2))
    found = solve_weights((gram + gram.T) / 2, np.ones((1, 50)), alpha=0.0).reciprocal_condition
    assert 0.8 * expected < found < 2 * expected


def test_condition__says_how_far_rounding_moves_the_weights():
    X, _ = spirals(400, n_features=2)
    rows, F = RadialFeatures.from_basis(X[:60], 2.0), np.eye(3)[np.arange(400) % 3]
    Phi = rows.activations(X)
    gram, noise = Phi.T @ Phi, np.random.default_rng(0).normal(size=(60, 60))
    rounded = gram * (1 + np.finfo(float).eps * (np.triu(noise) + np.triu(noise, 1).T))
    for alpha, moved in ((1e-15, 0.1), (1e-14, 0.01), (1e-13, 0.001)):
        one, other = (solve_weights(each, F.T @ Phi, alpha=alpha) for each in (gram, rounded))
        change = np.linalg.norm(one.weights - other.weights) / np.linalg.norm(one.weights)
        assert moved / 100 < change < moved
        assert (one.reciprocal_condition < ILL_CONDITIONED) == (alpha == 1e-15)


@given(
    n_basis=st.integers(1, 12),
    alphas=st.lists(st.sampled_from([1e-9, 1e-6, 1e-3, 0.5, 1.0]), max_size=6),
    seed=st.integers(0, 99),
)
def test_path__equals_the_weights_of_each_penalty(n_basis, alphas, seed):
    Phi, F = draw(n_basis=n_basis, seed=seed)
    path = list(solve_path(Phi.T @ Phi, F.T @ Phi, alphas=alphas))
    assert len(path) == len(alphas)
    for alpha, solution in zip(alphas, path, strict=True):
        np.testing.assert_array_equal(solution.weights, solve(Phi, F, alpha))
        assert solution.weights.flags.c_contiguous


@pytest.mark.parametrize("alphas", [[0.1, 0.0, 0.2], [0.0, 0.1], [0.1, 0.2, 0.0]])
def test_path__none_where_singular_and_weights_around_it(alphas):
    gram, cross = np.ones((3, 3)), np.arange(3.0)[None] + 1
    for alpha, solution in zip(alphas, solve_path(gram, cross, alphas=alphas), strict=True):
        if alpha == 0:
            assert solution is None
        else:
            weights = solve_weights(gram, cross, alpha=alpha).weights
            np.testing.assert_array_equal(solution.weights, weights)


@given(
    n_basis=st.integers(1, 12), alpha=st.sampled_from([1e-5, 1e-2, 1.0]), seed=st.integers(0, 99)
)
def test_penalty__reference_penalized(n_basis, alpha, seed):
    (Phi, T), (diagonal, P) = draw(n_basis=n_basis, seed=seed), draw_penalties(n_basis, seed)
    for penalty, matrix in ((diagonal, np.diag(diagonal)), (P, P)):
        expected = reference_penalized(Phi, T, alpha, matrix)
        found = solve(Phi, T, alpha, penalty)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


def test_penalty__basis_rows_of_an_infinite_one_are_left_out():
    (Phi, T), (diagonal, _) = draw(), draw_penalties()
    kept = np.array([True, False, True, True, False, True])
    weights = solve(Phi, T, 1e-3, np.where(kept, diagonal, np.inf))
    np.testing.assert_array_equal(weights[:, ~kept], 0.0)
    expected = solve(np.ascontiguousarray(Phi[:, kept]), T, 1e-3, diagonal[kept])
    np.testing.assert_allclose(weights[:, kept], expected, rtol=1e-12)


@pytest.mark.parametrize("term", ["none", "diagonal", "left out", "full", "locality", "directions"])
@pytest.mark.parametrize("targets", [ClassTargets(3), NumberTargets(np.array([2.0, -1.0]))])
@pytest.mark.parametrize("weighted", [False, True])
def test_leverages__give_the_scores_of_networks_solved_without_each_row(term, targets, weighted):
    rng, n, r, alpha = np.random.default_rng(0), 30, 6, 1e-4
    Phi, _ = draw(n_rows=n, n_basis=r)
    diagonal, full = draw_penalties(r)
    y = rng.integers(0, 3, n) if isinstance(targets, ClassTargets) else rng.normal(size=(n, 2))
    weights = rng.uniform(0.1, 5.0, n) if weighted else np.ones(n)
    T = targets.bordered(y)
    terms = {
        "diagonal": {"penalty": diagonal},
        "left out": {"penalty": np.where(np.arange(r) % 3, diagonal, np.inf)},
        "full": {"penalty": full},
        "locality": {"locality": Locality(0.1, full)},
        "directions": {"directions": rng.normal(size=(r, 3))},
    }.get(term, {})
    root = np.sqrt(weights)[:, None]
    moments = Moments.from_block(root * Phi, root * T)

    def system():
        return replace(RidgeSystem.of(moments, targets, normalized=False), **terms)

    solved = system()
    W = solved.solve(alpha).weights
    scores = Phi @ W.T + solved.intercept(W)
    leverages = system().factored(alpha).leverages(Phi) * weights
    found = scores_left_out(scores, T[:, 1:], leverages)
    ridge, span = solved.ridge(alpha), np.eye(r)
    if term == "directions":
        span = np.linalg.qr(terms["directions"])[0]
        ridge = alpha * np.trace(solved.gram) * np.eye(3)
    elif ridge.ndim == 1:
        span = span[:, np.isfinite(ridge)]
        ridge = np.diag(ridge[np.isfinite(ridge)])
    A = Phi @ span
    if targets.centred:
        A = np.column_stack([A, np.ones(n)])
        ridge = np.pad(ridge, (0, 1))
    for row in range(n):
        rest = np.delete(np.arange(n), row)
        B = A[rest] * weights[rest, None]
        own = np.linalg.solve(B.T @ A[rest] + ridge, B.T @ T[rest, 1:])
        np.testing.assert_allclose(A[row] @ own, found[row], rtol=1e-8, atol=1e-10)


def test_solve_bytes__terms_of_the_ridge_are_held_next_to_the_sums():
    # Four matrices of 720 kB, a packed one of 361 kB, and five arrays of four columns of targets.
    plain = solve_bytes(300, 3)
    assert plain == 4 * 720_000 + 361_200 + 48_000
    assert plain - solve_bytes(300, 3, in_place=True) == pytest.approx(2.9 * 720_000, abs=8)
    added = [{"penalty_axes": 1}, {"penalty_axes": 2}, {"locality": True}, {"n_components": 20}]
    found = [solve_bytes(300, 3, **terms) - plain for terms in added]
    assert found == [2400, 720_000, 720_000 + 361_200, 8 * 4 * 20 * 320]


def test_leverages__rounding_of_a_small_alpha_does_no_more_than_to_networks_without_each_row():
    rng = np.random.default_rng(0)
    X, F = rng.normal(size=(40, 3)), np.eye(2)[rng.integers(0, 2, 40)]
    # Wide activations of the basis, whose gram matrix has a condition of 1e13.
    Phi = np.exp(-np.square(X[:, None] - X[:30]).sum(axis=2) / 72)
    T = np.column_stack([np.ones(40), F])
    moments, targets = Moments.from_block(Phi, T), ClassTargets(2)

    def system():
        return RidgeSystem.of(moments, targets, normalized=True)

    scores = Phi @ system().solve(1e-13).weights.T
    found = scores_left_out(scores, F, system().factored(1e-13).leverages(Phi))
    ridge = 1e-13 * np.trace(Phi.T @ Phi) * np.eye(30)
    for row in range(40):
        rest = np.delete(np.arange(40), row)
        own = np.linalg.solve(Phi[rest].T @ Phi[rest] + ridge, Phi[rest].T @ F[rest])
        np.testing.assert_allclose(Phi[row] @ own, found[row], atol=1e-3)


def test_leverages__a_row_that_alone_decides_its_score_has_a_finite_one():
    Phi, F = np.eye(3), np.eye(3)
    moments = Moments.from_block(Phi, np.column_stack([np.ones(3), F]))
    system = RidgeSystem.of(moments, ClassTargets(3), normalized=True)
    leverages = system.factored(1e-13).leverages(Phi)
    assert np.isfinite(scores_left_out(F, F, leverages)).all()
