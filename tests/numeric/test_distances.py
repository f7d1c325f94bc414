"""Rows and basis in CSR as arrays; clusters many widths apart as differences of rows."""

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import csr_array

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.numeric import distances
from dask_nrbfn.numeric.distances import distances_from
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.rows import canonical, dense, is_csr
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling, unseen_columns
from dask_nrbfn.numeric.threads import task_threads

WIDTH = 1.0
ROOTS = {
    name: np.sqrt(np.longdouble(square)) for name, square in (("matern32", 3), ("matern52", 5))
}
LOGARITHMS = {
    "gaussian": lambda t: -(t**2) / 2,
    "laplace-l1": lambda t: -t,
    "laplacian": lambda t: -t,
    "matern32": lambda t: np.log1p(ROOTS["matern32"] * t) - ROOTS["matern32"] * t,
    "matern52": lambda t: np.log1p(ROOTS["matern52"] * t + 5 * t**2 / 3) - ROOTS["matern52"] * t,
}


def naive(X, basis, *, kernel, normalized, width=WIDTH):
    """Return activations from differences of rows, in extended precision."""
    X, basis = (np.asarray(rows, dtype=np.longdouble) for rows in (X, basis))
    differences = np.abs(X[:, None] - basis[None]) / np.longdouble(width)
    of_l1 = kernel == "laplace-l1"
    t = differences.sum(axis=2) if of_l1 else np.sqrt((differences**2).sum(axis=2))
    logarithms = LOGARITHMS[kernel](t)
    if not normalized:
        return np.exp(logarithms).astype(np.float64)
    powers = np.exp(logarithms - logarithms.max(axis=1, keepdims=True, initial=-np.inf))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float64)


def clusters(n_rows, apart, n_features, seed=0, share=1.0):
    """Return rows of six clusters so many widths apart, and some rows between and beyond them."""
    rng, own = np.random.default_rng(99), np.random.default_rng(seed)
    centres = rng.normal(size=(6, n_features)) * apart / np.sqrt(share * n_features)
    stored = rng.random((6, n_features)) < share
    places = own.integers(0, 6, n_rows)
    X = centres[places] + own.normal(size=(n_rows, n_features))
    n_far = n_rows // 4
    X[:n_far] *= 10.0 ** own.uniform(-3, 1, (n_far, 1))
    X *= stored[places]
    X[-2:] = 0.0
    return X


KINDS = [(kernel, normalized) for kernel in KERNELS for normalized in (True, False)]


@pytest.mark.parametrize(("apart", "n_features"), [(1e3, 4), (1e6, 1), (1e6, 30)])
@pytest.mark.parametrize(("kernel", "normalized"), KINDS)
def test_activations__of_clusters_far_apart(apart, n_features, kernel, normalized):
    X, basis = clusters(90, apart, n_features), clusters(40, apart, n_features, seed=1)
    X[40:50] = basis[5:15]
    kind = {"kernel": kernel, "normalized": normalized}
    features, expected = RadialFeatures.from_basis(basis, WIDTH, **kind), naive(X, basis, **kind)
    # An l1 distance is rounded once for each column.
    tolerance = np.full(expected.shape, 1e-14 * apart if kernel == "laplace-l1" else 1e-10)
    if kernel == "laplacian":
        # Of a distance near 0 it sees the root of what rounding leaves.
        nearest = np.sqrt(((X[:, None] - basis[None]) ** 2).sum(axis=2)).min(axis=1)
        tolerance += 1e-11 / np.maximum(nearest / WIDTH, 1e-6)[:, None]
    assert (np.abs(features.activations(X) - expected) < tolerance).all()
    weights = np.random.default_rng(2).normal(size=(3, 40))
    errors = np.abs(features.weighted_sums(X, weights) - expected @ weights.T)
    assert (errors < tolerance @ np.abs(weights.T)).all()


@pytest.mark.parametrize(("apart", "share"), [(1e2, 0.02), (1e6, 0.2)])
@pytest.mark.parametrize(("kernel", "normalized"), KINDS)
def test_activations__of_clusters_far_apart_in_csr(apart, share, kernel, normalized):
    X, basis = (clusters(n_rows, apart, 120, n_rows, share) for n_rows in (60, 40))
    kind = {"kernel": kernel, "normalized": normalized}
    expected = naive(X, basis, **kind)
    in_csr = [canonical(csr_array(rows)) for rows in (X, basis)]
    # So near, squares are subtracted, and these kernels take the root of what is left of 0.
    atol = 1e-7 if apart < 362 and kernel != "gaussian" else 1e-10
    if kernel == "laplace-l1":
        # What is rounded is as large as the two rows.
        atol = 1e-13 * apart
    for rows, basis_rows in ((in_csr[0], in_csr[1]), (in_csr[0], basis), (X, in_csr[1])):
        features = RadialFeatures.from_basis(basis_rows, WIDTH, **kind)
        np.testing.assert_allclose(features.activations(rows), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("held", [1, 7])
def test_activations__of_clusters_a_few_at_a_time(monkeypatch, held):
    X, basis = clusters(50, 1e4, 3), clusters(20, 1e4, 3, seed=1)
    expected = naive(X, basis, kernel="matern52", normalized=True)
    monkeypatch.setattr(distances, "_HELD_ELEMENTS", held)
    for some in (basis, canonical(csr_array(basis))):
        Phi = RadialFeatures.from_basis(some, WIDTH, kernel="matern52").activations(X)
        np.testing.assert_allclose(Phi, expected, atol=1e-10, rtol=0)


def test_activations__beside_far_clusters_nothing_is_lost_by_rows_that_overflow():
    basis = clusters(20, 1e5, 3)
    X = np.concatenate([basis, [[1e200, 0, 0], [0, -1e160, 1.0], [1e30, 0, 1e20], [np.nan, 0, 0]]])
    with np.errstate(all="ignore"):
        Phi = RadialFeatures.from_basis(basis, WIDTH).activations(X)
    expected = naive(basis, basis, kernel="gaussian", normalized=True)
    np.testing.assert_allclose(Phi[:20], expected, atol=1e-10, rtol=0)
    np.testing.assert_allclose(Phi[20:23].sum(axis=1), 1.0, rtol=1e-14)
    assert np.isnan(Phi[23]).all()


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
PLACES = [(0.02, 0.02, False), (0.02, None, False), (0.2, 0.2, False), (0.2, 0.02, True)]


@pytest.mark.parametrize(("share", "of_basis", "as_array"), PLACES)
@pytest.mark.parametrize("kind", ["none", "unit", "standard"])
def test_activations__of_csr_as_of_arrays(share, of_basis, as_array, kind):
    X, basis = draw(70, share=share), draw(9, share=of_basis or 0.5, seed=1)
    scaling = scaling_of(kind, X)
    basis = scaling.apply(basis)
    rows = dense(X) if as_array else X
    for kernel in ("laplace-l1", "gaussian"):
        of_arrays = RadialFeatures.from_basis(dense(basis), 3.0, scaling, kernel=kernel)
        given = basis if of_basis else dense(basis)
        features = RadialFeatures.from_basis(given, 3.0, scaling, kernel=kernel)
        is_like(features.activations(rows), of_arrays.activations(dense(X)))
    weights = np.random.default_rng(3).normal(size=(2, 9))
    np.testing.assert_allclose(
        features.weighted_sums(rows, weights),
        of_arrays.weighted_sums(dense(X), weights),
        rtol=1e-10,
        atol=1e-12,
    )
    found = distances_from(features.basis, scaling)
    expected = distances_from(dense(basis), scaling)
    squared = expected.clipped(dense(X))
    np.testing.assert_allclose(found.clipped(rows), squared, rtol=1e-10, atol=1e-10)
    nearest = np.empty((2, 70), dtype=np.intp)
    is_like(found.total(rows, nearest=nearest[0]), expected.total(dense(X), nearest=nearest[1]))
    # Of basis rows that are equally near rounding makes one the nearest.
    np.testing.assert_allclose(*squared[np.arange(70), nearest], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("share", "of_basis"), [(0.02, 0.02), (0.2, None)])
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
        if kernel == "laplace-l1":
            t = np.abs(rows[:, None] - g).sum(axis=2) / 0.5
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


def test_activations__bits_of_csr_do_not_depend_on_threads():
    X, basis = draw(3000, share=0.02), draw(300, share=0.02, seed=1)
    for each in (basis, dense(basis)):
        features = RadialFeatures.from_basis(each, 3.0)
        found = []
        for threads in (1, 2):
            with task_threads(threads):
                found.append(features.activations(X).tobytes())
        assert found[0] == found[1]


@pytest.mark.parametrize(("first_is_empty", "dtype"), [(False, "float32"), (True, "float64")])
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
    assert is_csr(scaled)
    assert scaled.dtype == np.float64
    is_like(dense(scaled), scaling.apply(dense(X)), rtol=1e-14)
    if kind != "unit":
        is_like(dense(scaling.restore(scaled)), dense(X), rtol=1e-14)


def test_unseen_columns__of_rows_that_are_not_centred():
    """Means that a shift would take away drown what is small beside them."""
    statistics = ColumnStatistics(4, np.array([1e9, 0.0]), np.array([4.0, 4.0]))
    assert not len(unseen_columns("standard", statistics))
    for kind in ("none", "standard"):
        assert unseen_columns(kind, statistics, centred=False).tolist() == [0, 1]
