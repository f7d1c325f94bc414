"""Rows and basis in CSR: what is computed of them is what is computed of the same arrays."""

from itertools import product

import numpy as np
import pytest
from scipy import sparse

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.numeric import distances as numeric_distances
from dask_nrbfn.numeric.distances import BasisDistances
from dask_nrbfn.numeric.radial import RadialFeatures, Scratch
from dask_nrbfn.numeric.rows import canonical, dense, is_sparse
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling, unseen_columns
from tests.numeric.test_radial import LOGARITHMS

P = 200


def draw(n_rows, *, share, seed=0, n_features=P):
    """Return rows of which a share of the values is stored, and one row that has none."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features)) * (rng.random((n_rows, n_features)) < share)
    rows[-1] = 0.0
    return canonical(sparse.csr_array(rows))


def scaling_of(kind, X, *, centred=False):
    return Scaling.from_statistics(kind, ColumnStatistics.from_block(X), centred=centred)


def is_like(found, expected, rtol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-300)


# Of rows 2 % are multiplied as they are, 20 % are filled; likewise of a basis.
PLACES = list(product((0.02, 0.2), (0.02, 0.2, None), (False, True)))


@pytest.mark.parametrize(("share", "of_basis", "as_array"), PLACES)
@pytest.mark.parametrize("kind", ["none", "unit", "standard"])
def test_activations__of_csr_as_of_arrays(share, of_basis, as_array, kind):
    X, basis = draw(70, share=share), draw(9, share=of_basis or 0.5, seed=1)
    scaling = scaling_of(kind, X)
    basis = scaling.apply(basis)
    of_arrays = RadialFeatures.from_basis(dense(basis), 3.0, scaling)
    features = RadialFeatures.from_basis(basis if of_basis else dense(basis), 3.0, scaling)
    rows = dense(X) if as_array else X
    is_like(features.activations(rows), of_arrays.activations(dense(X)))
    weights = np.random.default_rng(3).normal(size=(2, 9))
    np.testing.assert_allclose(
        features.weighted_sums(rows, weights, threads=2),
        of_arrays.weighted_sums(dense(X), weights),
        rtol=1e-10,
        atol=1e-12,
    )
    distances = BasisDistances.from_basis(features.basis, scaling)
    expected = BasisDistances.from_basis(dense(basis), scaling)
    squared = expected.squared(dense(X))
    np.testing.assert_allclose(distances.squared(rows), squared, rtol=1e-10, atol=1e-10)
    nearest = np.empty((2, 70), dtype=np.intp)
    is_like(distances.total(rows, nearest=nearest[0]), expected.total(dense(X), nearest=nearest[1]))
    # Of basis rows that are equally near rounding makes one the nearest.
    np.testing.assert_allclose(*squared[np.arange(70), nearest], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("share", [0.02, 0.2])
@pytest.mark.parametrize("of_basis", [0.02, None])
@pytest.mark.parametrize("kernel", KERNELS)
def test_activations__of_far_rows_in_csr(share, of_basis, kernel):
    X, basis_rows = draw(70, share=share), draw(9, share=0.02, seed=1)
    basis = basis_rows if of_basis else dense(basis_rows)
    features = RadialFeatures.from_basis(basis, 0.5, kernel=kernel)
    for far in (1e3, 1e6):
        # Of squares of 1e12 float64 would not have the digits that matter.
        rows, g = (dense(each).astype(np.longdouble) for each in (X * far, basis_rows))
        linear = ((g**2).sum(axis=1) - 2 * rows @ g.T) / 0.5**2
        t = np.sqrt((rows**2).sum(axis=1, keepdims=True) / 0.5**2 + linear)
        logarithms = -linear / 2 if kernel == "gaussian" else LOGARITHMS[kernel](t)
        expected = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
        expected /= expected.sum(axis=1, keepdims=True)
        Phi = features.activations(X * far)
        np.testing.assert_allclose(Phi, expected.astype(np.float64), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(features.activations(X * 1e200).sum(axis=1), 1.0, rtol=1e-12)


def test_activations__rows_in_csr_of_a_centred_scaling_are_filled():
    X = draw(70, share=0.02)
    scaling = scaling_of("standard", X, centred=True)
    assert scaling.fills
    features = RadialFeatures.from_basis(scaling.apply(dense(X)[:9]), 3.0, scaling)
    is_like(features.activations(X), features.activations(dense(X)))


def test_activations__filled_in_pieces(monkeypatch):
    monkeypatch.setattr(numeric_distances, "_FILLED_ELEMENTS", 7 * P)
    X, basis = draw(70, share=0.2), draw(9, share=0.2, seed=1)
    features = RadialFeatures.from_basis(basis, 3.0)
    is_like(features.activations(X), features.activations(dense(X)))


def test_activations__bits_of_csr_do_not_depend_on_threads():
    X, basis = draw(3000, share=0.02), draw(300, share=0.02, seed=1)
    for each in (basis, dense(basis)):
        features = RadialFeatures.from_basis(each, 3.0)
        one, two = (features.activations(X, threads=threads) for threads in (1, 2))
        assert one.tobytes() == two.tobytes()


def test_between_basis_rows__in_csr():
    basis = draw(30, share=0.02)
    features = RadialFeatures.from_basis(basis, 2.0, scaling_of("standard", basis))
    is_like(
        features.between_basis_rows(),
        RadialFeatures.from_basis(dense(basis), 2.0).between_basis_rows(),
    )
    places = np.array([3, 5])
    np.testing.assert_array_equal(dense(features.at(places).basis), dense(basis)[places])


def test_slopes__of_csr():
    X, basis = draw(30, share=0.02), draw(9, share=0.02, seed=1)
    features = RadialFeatures.from_basis(basis, 2.0, kernel="laplacian", normalized=False)
    of_arrays = RadialFeatures.from_basis(dense(basis), 2.0, kernel="laplacian", normalized=False)
    is_like(features.slopes(X), of_arrays.slopes(dense(X)))


def test_scratch__only_arrays_take_any():
    X = draw(9, share=0.02)
    scratch = Scratch(12, P)
    assert scratch.of(X) is None
    assert scratch.of(dense(X)).shape == (9, P + 2)
    assert np.shares_memory(scratch.of(dense(X)), scratch.of(dense(X)[:3]))


@pytest.mark.parametrize("first_is_empty", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_column_statistics__of_csr_as_of_arrays(first_is_empty, dtype):
    X = dense(draw(50, share=0.3)).astype(dtype)
    X[:, 3], X[:, 4], X[:, 5] = 0.1, 0.0, 1e6 + np.arange(50)
    if first_is_empty:
        X[0] = 0.0
        X[:, 3] = 0.1
    found = ColumnStatistics.from_block(canonical(sparse.csr_array(X)))
    expected = ColumnStatistics.from_block(X)
    assert found.n_rows == expected.n_rows
    is_like(found.mean, expected.mean, rtol=1e-12)
    is_like(found.squared_deviation, expected.squared_deviation, rtol=1e-12)
    assert found.squared_deviation[[3, 4]].tolist() == [0.0, 0.0]


def test_column_statistics__of_csr_too_large_to_be_squared():
    X = np.zeros((5, 2))
    X[2, 1] = 1e200
    found = ColumnStatistics.from_block(canonical(sparse.csr_array(X)))
    assert np.isfinite(found.squared_deviation).tolist() == [True, False]


@pytest.mark.parametrize("kind", ["none", "unit", "standard"])
def test_scaling__of_csr_as_of_arrays(kind):
    X = draw(50, share=0.1).astype(np.float32)
    scaling = scaling_of(kind, X)
    scaled = scaling.apply(X)
    assert is_sparse(scaled)
    assert scaled.dtype == np.float64
    is_like(dense(scaled), scaling.apply(dense(X)), rtol=1e-14)
    if kind != "unit":
        is_like(dense(scaling.restore(scaled)), dense(X), rtol=1e-14)


def test_scaling__distances_are_those_of_centred_rows():
    X = draw(50, share=0.1)
    plain, centred = (scaling_of("standard", X, centred=centred) for centred in (False, True))
    of_csr = BasisDistances.from_basis(plain.apply(X[:9]), plain)
    of_arrays = BasisDistances.from_basis(centred.apply(dense(X)[:9]), centred)
    np.testing.assert_allclose(of_csr.squared(X), of_arrays.squared(dense(X)), atol=1e-11)


def test_unseen_columns__of_rows_that_are_not_centred():
    """Means that a shift would take away drown what is small beside them."""
    statistics = ColumnStatistics(4, np.array([1e9, 0.0]), np.array([4.0, 4.0]))
    assert not len(unseen_columns("standard", statistics))
    for kind in ("none", "standard"):
        assert unseen_columns(kind, statistics, centred=False).tolist() == [0, 1]
