from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn.numeric.forward import forward_selection
from dask_nrbfn.numeric.ridge import RidgeSystem


def drawn(n_rows=200, n_basis=30, n_targets=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n_rows, n_basis)), rng.normal(size=(n_rows, n_targets))


def system_of(Phi, T):
    zeros = np.zeros(T.shape[1]), np.zeros(Phi.shape[1])
    return RidgeSystem(Phi.T @ Phi, T.T @ Phi, (T**2).sum(axis=0), *zeros)


def reference_path(Phi, T, penalty, size):
    """Return the choice of orthogonal columns of the rows themselves, one after another."""
    rest, residual, chosen, unexplained = Phi.copy(), T.copy(), [], []
    for _ in range(size):
        squares = np.sum(rest**2, axis=0)
        usable = squares > 1e-12 * np.sum(Phi**2, axis=0)
        products = np.sum((rest.T @ T) ** 2, axis=1)
        place = np.where(usable, products / (np.where(usable, squares, 1) + penalty), -1).argmax()
        column = rest[:, place].copy()
        residual -= np.outer(column, column @ T) / (column @ column + penalty)
        rest -= np.outer(column, column @ rest) / (column @ column)
        chosen.append(int(place))
        unexplained.append(np.sum(residual**2) / np.sum(T**2))
    return chosen, unexplained


@pytest.mark.parametrize(("alpha", "n_targets"), [(0.0, 3), (1e-3, 1), (0.1, 3)])
def test_forward_selection__is_that_of_orthogonal_columns(alpha, n_targets):
    Phi, T = drawn(n_targets=n_targets)
    penalty = alpha * np.sum(Phi**2)
    path = forward_selection(system_of(Phi, T), size=12, alpha=alpha)
    chosen, unexplained = reference_path(Phi, T, penalty, 12)
    assert path.chosen.tolist() == chosen
    np.testing.assert_allclose(path.unexplained, unexplained, rtol=1e-9)


def test_forward_selection__takes_no_column_twice_and_no_repetition():
    Phi, T = drawn(n_basis=6)
    path = forward_selection(system_of(np.hstack([Phi, Phi, 0 * Phi]), T), size=18, alpha=0.0)
    assert len(path.chosen) == 6
    assert len(set((path.chosen % 6).tolist())) == 6
    assert path.chosen.max() < 12


def test_forward_selection__leaves_out_what_the_penalty_holds_at_0():
    Phi, T = drawn(n_basis=6)
    penalty = np.where(np.arange(6) == 2, np.inf, 1.0)
    path = forward_selection(replace(system_of(Phi, T), penalty=penalty), size=6, alpha=1e-6)
    assert sorted(path.chosen.tolist()) == [0, 1, 3, 4, 5]


def test_forward_selection__of_targets_that_are_0():
    Phi, _ = drawn()
    path = forward_selection(system_of(Phi, np.zeros((200, 2))), size=3, alpha=0.0)
    assert path.unexplained.tolist() == [0.0, 0.0, 0.0]
