"""The kernel of l1 distances against sums that are written out."""

import numpy as np
import pytest

from dask_nrbfn.numeric import cityblock
from dask_nrbfn.numeric.cityblock import absolute_sums
from dask_nrbfn.numeric.radial import RadialFeatures

WIDTH = 1.7


def draw(n_rows, p, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, p))


def features_of(basis):
    return RadialFeatures.from_basis(basis, WIDTH, kernel="laplace-l1", normalized=False)


@pytest.mark.parametrize("size", [(3, 5), (64, 64)])
def test_absolute_sums__same_bits_in_any_blocks(monkeypatch, size):
    X, columns, out = draw(37, 9), draw(9, 130, 1), np.empty((2, 37, 130))
    absolute_sums(X, columns, out[0], factor=-0.7)
    monkeypatch.setattr(cityblock, "_BLOCK_ROWS", size[0])
    monkeypatch.setattr(cityblock, "_BLOCK_COLUMNS", size[1])
    # The loop as Python runs it: the machine code has the sizes of its first call.
    cityblock._absolute_sums(X, columns, -0.7, out[1])
    np.testing.assert_array_equal(*out)


def test_activations__is_1_for_a_repeated_row_of_any_offset():
    basis = np.repeat(draw(4, 3) + 1e9, 2, axis=0)
    Phi = features_of(basis).activations(basis)
    assert (Phi[np.arange(8), np.arange(8) ^ 1] == 1).all()
