import numpy as np
import pytest

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.numeric.moments import Moments, check_moments
from dask_nrbfn.numeric.targets import NumberTargets


def draw(n_rows=60, n_basis=5, n_targets=2, *, far=0.0, seed=0):
    """Draw plain activations (n, r), numbers (n, q) about `far`, and weights (n,)."""
    rng = np.random.default_rng(seed)
    Phi = rng.uniform(0.1, 1.0, (n_rows, n_basis))
    T = far + Phi @ rng.normal(size=(n_basis, n_targets)) + rng.normal(size=(n_rows, n_targets))
    return Phi, T, rng.uniform(0.5, 3.0, n_rows)


def moments_of(Phi, T, weights, targets):
    factors = np.sqrt(weights)
    return Moments.from_block(factors[:, None] * Phi, targets.bordered(T, factors))


def test_check_moments__of_numbers():
    Phi, T, weights = draw(far=1e3)
    Phi /= Phi.sum(axis=1, keepdims=True)
    moments = moments_of(Phi, T, weights, NumberTargets(T[0]))
    check_moments(moments, weights.sum())
    moments.products[2, 1] += 1e-3
    with pytest.raises(DamagedDataError, match="damaged"):
        check_moments(moments, weights.sum())
