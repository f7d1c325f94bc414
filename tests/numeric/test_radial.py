import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.numeric import strips
from dask_nrbfn.numeric.radial import BasisDistances, RadialFeatures
from dask_nrbfn.numeric.scaling import Scaling
from tests.numeric.chunkings import row_chunkings, split
from tests.reference import reference_activations, reference_distances


def draw(n_rows, n_features, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, n_features))


@pytest.fixture(scope="module", autouse=True)
def short_strips():
    """Let 64 rows of 7 columns pass through the elementwise steps together, not thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strips, "_STRIP_ELEMENTS", 64 * 7)
        yield


def scalings(n_features):
    rng = np.random.default_rng(2)
    shift, scale = rng.normal(size=n_features), rng.uniform(0.5, 2.0, n_features)
    return [Scaling(kind, shift, scale) for kind in ("none", "standard", "unit")]


@pytest.mark.parametrize("n_rows", [0, 1, 63, 64, 65, 130])
@pytest.mark.parametrize("n_basis", [1, 7])
def test_activations__naive(n_rows, n_basis):
    X, basis = draw(n_rows, 3), draw(n_basis, 3, seed=1)
    Phi = RadialFeatures.from_basis(basis, 0.7).activations(X)
    expected = np.array([reference_activations(x[None], basis, 0.7)[0] for x in X])
    assert Phi.shape == (n_rows, n_basis)
    np.testing.assert_allclose(Phi, expected.reshape(n_rows, n_basis), rtol=1e-11)


@given(lengths=row_chunkings(max_rows=150), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_activations__any_blocks(lengths, seed):
    X, features = draw(sum(lengths), 4, seed), RadialFeatures.from_basis(draw(9, 4, 100), 1.3)
    whole = features.activations(X)
    blocks = [features.activations(block) for block in split(X, lengths)]
    np.testing.assert_allclose(np.concatenate(blocks), whole, rtol=1e-12)
    np.testing.assert_allclose(whole.sum(axis=1), 1.0, rtol=1e-14)


def test_activations__same_after_scaling_everything():
    X, basis = draw(20, 3), draw(5, 3, seed=1)
    Phi = RadialFeatures.from_basis(basis, 0.8).activations(X)
    scaled = RadialFeatures.from_basis(1000 * basis, 800.0).activations(1000 * X)
    np.testing.assert_allclose(scaled, Phi, rtol=1e-12)


def test_activations__columns_follow_the_basis():
    X, basis, order = draw(20, 3), draw(5, 3, seed=1), [3, 1, 4, 0, 2]
    Phi = RadialFeatures.from_basis(basis, 0.8).activations(X)
    permuted = RadialFeatures.from_basis(basis[order], 0.8).activations(X)
    np.testing.assert_allclose(permuted, Phi[:, order], rtol=1e-12)


def test_activations__far_offset():
    X, basis = draw(30, 3) + 1e8, draw(6, 3, seed=1) + 1e8
    Phi = RadialFeatures.from_basis(basis, 0.9).activations(X)
    np.testing.assert_allclose(Phi, reference_activations(X, basis, 0.9), rtol=1e-11)


def test_activations__repeated_basis_rows_share_equally():
    X, basis = draw(10, 2), np.repeat(draw(1, 2, seed=1), 4, axis=0)
    Phi = RadialFeatures.from_basis(basis, 0.5).activations(X)
    np.testing.assert_array_equal(Phi, Phi[:, :1].repeat(4, axis=1))
    np.testing.assert_allclose(Phi, 0.25, rtol=1e-15)


def test_activations__far_from_the_basis_the_nearest_row_wins():
    width, basis = 0.5, draw(8, 3, seed=1)
    directions = draw(40, 3)
    X = 1e6 * width * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    distances = reference_distances(X, basis)
    with np.errstate(under="ignore"):
        plain = np.exp(-(distances**2) / (2 * width**2))
    assert not plain.any()  # so the plain quotient would be 0 / 0
    Phi = RadialFeatures.from_basis(basis, width).activations(X)
    assert np.isfinite(Phi).all()
    np.testing.assert_allclose(Phi.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_array_equal(Phi.argmax(axis=1), distances.argmin(axis=1))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_activations__narrow_types_do_not_overflow(dtype):
    X = np.array([[0, 255], [255, 0], [200, 100], [3, 3]], dtype=dtype)
    basis = np.array([[255, 255], [0, 0], [128, 1]], dtype=dtype)
    Phi = RadialFeatures.from_basis(basis, 90.0).activations(X)
    assert Phi.dtype == np.float64
    np.testing.assert_allclose(Phi, reference_activations(X, basis, 90.0), rtol=1e-12)


def test_activations__column_major_rows():
    X, features = draw(70, 5), RadialFeatures.from_basis(draw(6, 5, seed=1), 1.0)
    Phi = features.activations(np.asfortranarray(X))
    np.testing.assert_allclose(Phi, features.activations(X), rtol=1e-12)


def test_activations__out_gives_the_same_bits():
    X, features = draw(100, 5), RadialFeatures.from_basis(draw(9, 5, seed=1), 1.0)
    buffer = np.full((100, 9), np.nan)
    Phi = features.activations(X, out=buffer)
    assert np.shares_memory(Phi, buffer)
    np.testing.assert_array_equal(Phi, features.activations(X))
    features.activations(X[::-1].copy(), out=buffer)
    np.testing.assert_array_equal(features.activations(X, out=buffer), features.activations(X))


@pytest.mark.parametrize("threads", [2, 3, 50])
@pytest.mark.parametrize("n_rows", [0, 1, 65, 400])
@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_radial__same_bits_with_any_threads(threads, n_rows, dtype):
    X, basis = (40 * draw(n_rows, 5)).astype(dtype), draw(7, 5, seed=1)
    weights = draw(3, 7, seed=3)
    for scaling in scalings(5):
        features = RadialFeatures.from_basis(basis, 1.0, scaling)
        distances = BasisDistances.from_basis(basis, scaling)
        for work in (
            features.activations,
            lambda X, features=features, **options: features.weighted_sums(X, weights, **options),
            distances.squared,
            distances.total,
        ):
            np.testing.assert_array_equal(work(X, threads=threads), work(X))


def test_radial__one_thread_makes_no_pool(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a pool was made")

    monkeypatch.setattr(strips, "ThreadPoolExecutor", refuse)
    X, basis = draw(400, 5), draw(7, 5, seed=1)
    features, distances = RadialFeatures.from_basis(basis, 1.0), BasisDistances.from_basis(basis)
    features.activations(X)
    distances.total(X)
    features.activations(X[:20], threads=2)
    with pytest.raises(AssertionError, match="a pool was made"):
        features.activations(X, threads=2)


@pytest.mark.parametrize("kind", range(3))
def test_radial__scales_rows(kind):
    X, basis, scaling = draw(130, 4), draw(7, 4, seed=1), scalings(4)[kind]
    scaled = scaling.apply(X)
    features = RadialFeatures.from_basis(basis, 0.9)
    np.testing.assert_array_equal(
        RadialFeatures.from_basis(basis, 0.9, scaling).activations(X), features.activations(scaled)
    )
    total = BasisDistances.from_basis(basis, scaling).total(X)
    assert total == BasisDistances.from_basis(basis).total(scaled)


@pytest.mark.parametrize("n_rows", [0, 1, 130])
def test_weighted_sums__activations_times_weights(n_rows):
    X, features = draw(n_rows, 4), RadialFeatures.from_basis(draw(7, 4, seed=1), 0.9)
    weights, buffer = draw(3, 7, seed=2), np.full((n_rows, 7), np.nan)
    sums = features.weighted_sums(X, weights)
    np.testing.assert_allclose(sums, features.activations(X) @ weights.T, rtol=1e-11, atol=1e-14)
    np.testing.assert_array_equal(features.weighted_sums(X, weights, buffer=buffer), sums)


def test_radial__inputs_stay_as_they_were():
    X, basis = draw(70, 3), draw(6, 3, seed=1)
    X_before, basis_before = X.copy(), basis.copy()
    features = RadialFeatures.from_basis(basis, 1.0)
    first = features.activations(X)
    BasisDistances.from_basis(basis).total(X)
    BasisDistances.from_basis(basis).squared(X)
    np.testing.assert_array_equal(features.activations(X), first)
    np.testing.assert_array_equal(X, X_before)
    np.testing.assert_array_equal(basis, basis_before)


@pytest.mark.parametrize("n_rows", [0, 1, 64, 65, 130])
@pytest.mark.parametrize("n_basis", [1, 7])
def test_squared_distances__naive(n_rows, n_basis):
    X, basis = draw(n_rows, 4), draw(n_basis, 4, seed=1)
    expected = reference_distances(X, basis).reshape(n_rows, n_basis) ** 2
    np.testing.assert_allclose(BasisDistances.from_basis(basis).squared(X), expected, rtol=1e-11)


def test_squared_distances__far_offset():
    X, basis = draw(50, 4) + 1e8, draw(7, 4, seed=1) + 1e8
    expected = reference_distances(X, basis) ** 2
    assert not np.allclose(  # without the shift the terms cancel
        (X**2).sum(axis=1)[:, None] - 2 * X @ basis.T + (basis**2).sum(axis=1), expected, rtol=0.1
    )
    np.testing.assert_allclose(BasisDistances.from_basis(basis).squared(X), expected, rtol=1e-11)


def test_squared_distances__duplicates_are_never_negative():
    X = np.repeat(draw(40, 6) * 1e3, 3, axis=0)
    squared = BasisDistances.from_basis(X).squared(X)
    same = np.arange(120)[:, None] // 3 == np.arange(120) // 3
    assert squared.min() >= 0
    assert squared[same].max() < 1e-14 * squared.max()
    assert squared[~same].min() > 1e-3 * squared.max()


def test_squared_distances__narrow_types_do_not_overflow():
    X, basis = np.array([[0, 255]], dtype=np.uint8), np.array([[255.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(
        BasisDistances.from_basis(basis).squared(X), [[2 * 255**2, 255**2]], rtol=1e-14
    )


def test_squared_distances__out_gives_the_same_bits():
    X, basis, buffer = draw(100, 5), draw(9, 5, seed=1), np.full((100, 9), np.nan)
    squared = BasisDistances.from_basis(basis).squared(X, out=buffer)
    assert np.shares_memory(squared, buffer)
    np.testing.assert_array_equal(squared, BasisDistances.from_basis(basis).squared(X))


@given(lengths=row_chunkings(max_rows=150), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_distances_total__any_blocks(lengths, seed):
    X, basis = draw(sum(lengths), 3, seed), draw(5, 3, 100)
    parts = sum(BasisDistances.from_basis(basis).total(block) for block in split(X, lengths))
    assert parts == pytest.approx(reference_distances(X, basis).sum(), rel=1e-12)


def test_distances_total__symmetric():
    X, Y = draw(90, 3), draw(11, 3, seed=1)
    assert BasisDistances.from_basis(Y).total(X) == pytest.approx(
        BasisDistances.from_basis(X).total(Y), rel=1e-13
    )


def test_distances_total__one_row_that_is_the_basis():
    row = np.full((1, 3), 1e8 + 0.1)
    assert BasisDistances.from_basis(row).total(row) == 0.0


def test_distances_total__buffer_gives_the_same_bits():
    X, basis, buffer = draw(100, 5), draw(9, 5, seed=1), np.full((100, 9), np.nan)
    fresh = BasisDistances.from_basis(basis).total(X)
    assert BasisDistances.from_basis(basis).total(X, buffer=buffer) == fresh
    assert BasisDistances.from_basis(basis).total(X, buffer=buffer) == fresh
