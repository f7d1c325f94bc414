from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric import products
from dask_nrbfn.numeric.distances import distances_from
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.threads import task_threads
from tests.numeric.chunkings import row_chunkings, split
from tests.numeric.frozen import read_only
from tests.numeric.test_distances import naive
from tests.reference import reference_activations, reference_distances


@read_only
def draw(n_rows, n_features, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, n_features))


KINDS = [
    {"kernel": kernel, "normalized": normalized}
    for kernel in KERNELS
    for normalized in (True, False)
]

RATES = {"laplace-l1": 1.0, "laplacian": 1.0, "matern32": 3**0.5, "matern52": 5**0.5}


@pytest.fixture(scope="module", autouse=True)
def short_strips():
    """Let 64 rows of 7 columns pass through the elementwise steps together, not thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_STRIP_ELEMENTS", 64 * 7)
        yield


def scalings(n_features):
    rng = np.random.default_rng(2)
    shift, scale = rng.normal(size=n_features), rng.uniform(0.5, 2.0, n_features)
    return [Scaling(kind, shift, scale) for kind in ("none", "standard", "unit")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n_rows", "n_basis", "offset"), [(0, 7, 0.0), (1, 1, 0.0), (130, 7, 0.0), (130, 7, 1e8)]
)
def test_activations__every_kind_naive(n_rows, n_basis, offset, kind):
    X, basis = draw(n_rows, 3) + offset, draw(n_basis, 3, seed=1) + offset
    features = RadialFeatures.from_basis(basis, 0.7, **kind)
    Phi = features.activations(X)
    assert Phi.shape == (n_rows, n_basis)
    np.testing.assert_allclose(Phi, naive(X, basis, width=0.7, **kind), rtol=1e-11)
    weights, buffer = draw(3, n_basis, seed=2), np.full(Phi.shape, np.nan)
    sums = features.weighted_sums(X, weights, buffer=buffer)
    np.testing.assert_allclose(sums, Phi @ weights.T, rtol=1e-11, atol=1e-14)


@given(lengths=row_chunkings(max_rows=150), kind=st.sampled_from(KINDS), weighted=st.booleans())
def test_activations__every_kind_any_blocks(lengths, kind, weighted):
    X, features = draw(sum(lengths), 4), RadialFeatures.from_basis(draw(9, 4, 100), 1.3, **kind)
    factors = np.random.default_rng(3).uniform(0, 2, len(X)) if weighted else np.ones(len(X))
    blocks = [
        features.activations(rows, factors=own)
        for rows, own in zip(split(X, lengths), split(factors, lengths), strict=True)
    ]
    whole = features.activations(X)
    np.testing.assert_allclose(np.concatenate(blocks), factors[:, None] * whole, rtol=1e-12)
    if kind["normalized"]:
        np.testing.assert_allclose(whole.sum(axis=1), 1.0, rtol=1e-14)


@pytest.mark.parametrize("far", [1e6, 1e12, 1e200])
@pytest.mark.parametrize("kind", KINDS)
def test_activations__every_kind_far_from_the_basis(far, kind):
    width, basis, directions = 0.5, draw(8, 3, seed=1), draw(40, 3)
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    features = RadialFeatures.from_basis(basis, width, **kind)
    # About the centre of the basis, as far rows are seen from it.
    X = far * directions
    Phi = features.activations(X)
    if not kind["normalized"]:
        assert not Phi.any()
    elif kind["kernel"] == "gaussian":
        np.testing.assert_array_equal(Phi.argmax(axis=1), (directions @ basis.T).argmax(axis=1))
        np.testing.assert_allclose(Phi.sum(axis=1), 1.0, rtol=1e-14)
    else:
        # Distances differ by the shadows of the basis rows on the direction, up to 1 / far.
        seen = np.sign(directions) if kind["kernel"] == "laplace-l1" else directions
        powers = np.exp(RATES[kind["kernel"]] * (seen @ basis.T) / width)
        expected = powers / powers.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(Phi, expected, rtol=100 / far + 1e-12)
    weights = draw(3, 8, seed=2)
    np.testing.assert_allclose(
        features.weighted_sums(X, weights), Phi @ weights.T, rtol=1e-11, atol=1e-13
    )


def test_activations__laplacian_from_the_middle_of_a_wide_basis():
    # The row is the centre, and all of its exponentials underflow.
    basis = np.array([[1e5, 0.0], [-1e5, 0.0], [0.0, 1e5 + 1], [0.0, -1e5 - 1]])
    features = RadialFeatures.from_basis(basis, 1.0, kernel="laplacian")
    Phi = features.activations(np.zeros((1, 2)))
    near, far = 1 / (2 + 2 / np.e), 1 / (2 * np.e + 2)
    np.testing.assert_allclose(Phi, [[near, near, far, far]], rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_activations__narrow_types_do_not_overflow(dtype):
    X = np.array([[0, 255], [255, 0], [200, 100], [3, 3]], dtype=dtype)
    basis = np.array([[255, 255], [0, 0], [128, 1]], dtype=dtype)
    Phi = RadialFeatures.from_basis(basis, 90.0).activations(X)
    assert Phi.dtype == np.float64
    np.testing.assert_allclose(Phi, reference_activations(X, basis, 90.0), rtol=1e-12)


@pytest.mark.parametrize(("threads", "n_rows"), [(2, 0), (3, 65), (50, 400)])
def test_radial__same_bits_with_any_threads(threads, n_rows):
    X, basis = 40 * draw(n_rows, 5), draw(7, 5, seed=1)
    weights = draw(3, 7, seed=3)
    row_weights = np.random.default_rng(4).uniform(0, 2, n_rows)
    for scaling, kind in product(scalings(5), KINDS):
        features = RadialFeatures.from_basis(basis, 1.0, scaling, **kind)
        distances = distances_from(basis, scaling)
        for work in (
            features.activations,
            lambda X, features=features, **options: features.weighted_sums(X, weights, **options),
            distances.clipped,
            distances.total,
            lambda X, distances=distances, **options: distances.total(
                X, weights=row_weights, **options
            ),
        ):
            with task_threads(threads):
                found = work(X)
            with task_threads(1):
                np.testing.assert_array_equal(found, work(X))


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "laplace-l1"])
def test_slopes__of_rows_whose_squares_overflow_are_0(kernel):
    features = RadialFeatures.from_basis(draw(7, 4), 0.9, kernel=kernel, normalized=False)
    assert not features.slopes(np.full((2, 4), 1e200)).any()


@pytest.mark.parametrize(("n_rows", "n_basis"), [(0, 7), (64, 1), (65, 7)])
def test_squared_distances__naive(n_rows, n_basis):
    X, basis = draw(n_rows, 4), draw(n_basis, 4, seed=1)
    expected = reference_distances(X, basis).reshape(n_rows, n_basis) ** 2
    np.testing.assert_allclose(distances_from(basis).clipped(X), expected, rtol=1e-11)


def test_squared_distances__duplicates_are_never_negative():
    X = np.repeat(draw(40, 6) * 1e3, 3, axis=0)
    squared = distances_from(X).clipped(X)
    same = np.arange(120)[:, None] // 3 == np.arange(120) // 3
    assert squared.min() >= 0
    assert squared[same].max() < 1e-14 * squared.max()
    assert squared[~same].min() > 1e-3 * squared.max()


@given(repeats=st.lists(st.integers(0, 4), min_size=1, max_size=150), seed=st.integers(0, 99))
def test_distances_total__weights_equal_repeated_rows(repeats, seed):
    X, distances = draw(len(repeats), 3, seed), distances_from(draw(5, 3, 100))
    total = distances.total(X, weights=np.array(repeats, dtype=np.float64))
    repeated = np.repeat(X, repeats, axis=0)
    assert total == pytest.approx(distances.total(repeated), rel=1e-12)
    expected = np.array(repeats) @ reference_distances(X, draw(5, 3, 100)).sum(axis=1)
    assert total == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("threads", [1, 2])
def test_distances__number_of_the_nearest_basis_row(threads):
    X = np.random.default_rng(0).normal(size=(400, 3)) + 1e3
    distances, nearest = distances_from(X[:30]), np.empty(400, dtype=np.intp)
    weights = np.linspace(1, 2, 400)
    with task_threads(threads):
        total = distances.total(X, weights=weights, nearest=nearest)
    np.testing.assert_array_equal(nearest, reference_distances(X, X[:30]).argmin(axis=1))
    assert total == distances.total(X, weights=weights)


@pytest.mark.parametrize(
    ("named", "what", "names"),
    [
        (kernel_named, "kernel", "gaussian, laplace-l1, laplacian, matern32, matern52"),
        (loss_named, "loss", "hinge, logistic, squared, squared-hinge"),
        (penalty_named, "penalty", "clusters, kernel, weights"),
    ],
)
def test_named__unknown(named, what, names):
    with pytest.raises(ParameterError, match=f"{what} is 'gaussien'") as error:
        named("gaussien")
    assert names in error.value.remedy


@pytest.mark.parametrize("far", [1e300, 1e308])
@pytest.mark.parametrize(
    ("name", "width"),
    # The exponents of the Gaussian one are of the size of far / width^2.
    [
        *((name, 1.0) for name in KERNELS),
        *((name, 1e-10) for name in KERNELS if name != "gaussian"),
    ],
)
def test_kernels__rows_as_far_as_float64_goes(name, far, width):
    basis = np.array([[0.0, 0.0], [width, 0.0], [0.0, 3 * width]])
    Phi = RadialFeatures.from_basis(basis, width, kernel=name).activations(np.array([[far, 0.0]]))
    np.testing.assert_allclose(Phi.sum(), 1.0)
    assert Phi.argmax() == 1
