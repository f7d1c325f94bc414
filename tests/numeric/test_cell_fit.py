import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn.numeric.cell_solution import fit_cell
from dask_nrbfn.numeric.folds import folds_of_rows
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling
from dask_nrbfn.numeric.small_fit import SmallNetwork, SmallTable, fit_folds
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets
from tests.tables import surfaces

RIDGES = tuple(Ridge("weights", 10.0**-power) for power in range(3, 9))
NETWORK = SmallNetwork("gaussian", 0.5, False, RIDGES)


def table_of(X, y, *, n_basis=40, weights=None, n_folds=5):
    folds = folds_of_rows(0, len(X), n_folds=n_folds, seed=0)
    targets = ClassTargets(int(y.max()) + 1) if y.ndim == 1 else NumberTargets(np.median(y, axis=0))
    weights = np.ones(len(X)) if weights is None else weights
    basis = np.arange(len(X))[:: max(1, len(X) // n_basis)][:n_basis]
    return SmallTable(
        X=X,
        y=y,
        targets=targets,
        weights=weights,
        folds=folds,
        basis=X[basis],
        basis_folds=folds[basis],
        block_rows=64,
    )


def standard(X):
    return Scaling.from_statistics("standard", ColumnStatistics.from_block(X))


def kernel(scaled, basis, fit):
    distances = np.linalg.norm(scaled[:, None] - basis[None], axis=2)
    return np.exp(-0.5 * (distances / fit.width) ** 2)


def test_fit_cell__held_out_scores_are_those_of_the_other_folds():
    X, Y = surfaces(200, seed=3)
    table, scaling = table_of(X, Y), standard(X)
    network = replace(NETWORK, ridges=RIDGES[2:3])
    fit = fit_cell(table, scaling, network, n_folds=5)
    scaled = scaling.apply(X)
    kept = table.basis_folds != 1
    Phi = kernel(scaled, scaling.apply(table.basis)[kept], fit)
    seen, out = table.folds != 1, table.folds == 1
    means = Phi[seen].mean(axis=0), Y[seen].mean(axis=0)
    centred = Phi[seen] - means[0]
    gram = centred.T @ centred
    # The penalty is relative to the trace of the sums, which keep their basis rows alone.
    penalized = gram + fit.solved.alpha * np.trace(gram) * np.eye(len(gram))
    weights = np.linalg.solve(penalized, centred.T @ (Y[seen] - means[1]))
    expected = (Phi[out] - means[0]) @ weights + means[1] - table.targets.origin
    np.testing.assert_allclose(fit.held_out[out], expected, rtol=1e-5, atol=1e-7)


def test_fit_cell__one_class_is_constant():
    X = np.random.default_rng(0).normal(size=(50, 2))
    table = replace(table_of(X, np.arange(50) % 3), y=np.full(50, 1))
    fit = fit_cell(table, standard(X), NETWORK, n_folds=5)
    assert fit.solved.is_constant
    np.testing.assert_array_equal(fit.solved.intercept, [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(fit.held_out, np.tile([0.0, 1.0, 0.0], (50, 1)))
    assert fit.solved.residuals.sum() == 0.0


@pytest.mark.parametrize("n_rows", [1, 2, 7, 15])
def test_fit_cell__few_rows(n_rows):
    X = np.random.default_rng(0).normal(size=(n_rows, 2))
    for y in (np.arange(n_rows) % 2, X[:, :1] + 5.0):
        table = table_of(X, y)
        if y.ndim == 1:
            table = replace(table, targets=ClassTargets(2))
        fit = fit_cell(table, standard(X), NETWORK, n_folds=5)
        assert np.isfinite(fit.held_out).all()
        assert np.isfinite(fit.solved.weights).all()


def test_fit_cell__equal_rows_of_two_classes_are_their_shares():
    X, y = np.ones((40, 2)), (np.arange(40) % 4 == 0).astype(int)
    table = replace(table_of(X, y), basis=X[:1], basis_folds=np.array([-1]))
    fit = fit_cell(table, standard(X), replace(NETWORK, normalized=True), n_folds=5)
    scores = fit.solved.weights @ [1.0] + fit.solved.intercept
    np.testing.assert_allclose(scores, [0.75, 0.25], rtol=0.01)


def test_fit_folds__losses_of_many_classes_take_the_memory_of_a_block():
    """The squared errors of all rows at once took half as much again as the plan has."""
    rng, n_rows, n_classes = np.random.default_rng(0), 20_000, 50
    X, y = rng.normal(size=(n_rows, 3)), np.arange(n_rows) % n_classes
    table = replace(table_of(X, y), block_rows=1000)
    network = replace(NETWORK, ridges=NETWORK.ridges[:2])
    tracemalloc.start()
    fit_folds(table, standard(X), network, n_folds=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The scores of two alphas, those that stay, and as much again for the rows and the systems.
    assert peak < 8 * 6 * n_classes * n_rows
