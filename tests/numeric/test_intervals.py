import numpy as np
import pytest

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.hashing import splitmix
from dask_nrbfn.numeric.intervals import (
    Intervals,
    RowScale,
    at_coverage,
    conformal_quantiles,
    interval_scores,
    masses,
)


def orders(n):
    return splitmix(np.arange(n, dtype=np.uint64))


def test_quantiles__are_order_statistics_of_the_rows_and_a_new_one():
    values = np.random.default_rng(0).exponential(size=(99, 2))
    quantiles = conformal_quantiles(values, np.ones(99))
    np.testing.assert_array_equal(quantiles, np.sort(values, axis=0))
    # The 90th of 99 rows: 90 of 100 places for a new row lie below it.
    np.testing.assert_array_equal(at_coverage(quantiles, 0.9), np.sort(values, axis=0)[89])
    np.testing.assert_array_equal(at_coverage(quantiles, 0.901), np.sort(values, axis=0)[90])


def test_quantiles__whole_weights_count_as_equal_rows():
    rng = np.random.default_rng(1)
    values, weights = rng.exponential(size=(50, 1)), rng.integers(1, 4, 50)
    repeated = np.repeat(values, weights, axis=0)
    weighted = conformal_quantiles(values, weights.astype(float))
    for coverage in (0.3, 0.5, 0.8):
        found = float(at_coverage(weighted, coverage)[0])
        assert (repeated <= found).mean() >= coverage
        assert (repeated < found).mean() <= coverage + 2 * weights.max() / weights.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles__cover_new_rows_as_often_as_asked(weighted):
    rng, covered = np.random.default_rng(2), []
    for _ in range(300):
        values = rng.standard_t(3, size=(121, 1))
        weights = rng.uniform(0.5, 2.0, 121) if weighted else np.ones(121)
        quantiles = conformal_quantiles(np.abs(values[:120]), weights[:120])
        covered.append(abs(float(values[120, 0])) <= at_coverage(quantiles, 0.8)[0])
    assert abs(np.mean(covered) - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 300)


def test_quantiles__of_many_rows_are_a_sketch():
    values = np.random.default_rng(3).normal(size=(30_000, 1))
    quantiles = conformal_quantiles(values, np.ones(len(values)))
    assert len(quantiles) == 2**13
    assert abs(float(at_coverage(quantiles, 0.9)[0]) - np.quantile(values, 0.9)) < 1e-3


def test_intervals__refuse_a_coverage_that_few_rows_cannot_show():
    few = Intervals(np.arange(9.0)[:, None], far=1.0)
    few.check(0.9)
    for coverage in (0.91, 0.0, 1.0, -1.0):
        with pytest.raises(ParameterError, match=r"the coverage .* is not between 0 and 0\.9"):
            few.check(coverage)


def test_clip__leaves_the_ends_where_few_rows_know_the_range():
    # A new number is outside the range of n others with the probability 2 / (n + 1).
    few, many = (Intervals(np.ones((n, 1)), far=1.0) for n in (100, 1000))
    assert (few.may_clip(0.5), few.may_clip(0.9)) == (True, False)
    assert (many.may_clip(0.9), many.may_clip(0.99)) == (True, False)


def test_masses__are_those_of_more_probable_classes():
    probabilities = np.random.default_rng(4).dirichlet(np.ones(5), 200)
    expected = [[row[row > own].sum() for own in row] for row in probabilities]
    np.testing.assert_allclose(masses(probabilities), expected, atol=1e-15)


def test_sets__contain_the_class_of_new_rows_as_often_as_asked():
    rng = np.random.default_rng(5)
    probabilities = rng.dirichlet(np.full(6, 0.6), 12_000)
    # Rows have the classes of other, flatter probabilities: the calibration is wrong.
    flat = np.sqrt(probabilities)
    flat /= flat.sum(axis=1, keepdims=True)
    codes = (flat.cumsum(axis=1) < rng.random((len(flat), 1))).sum(axis=1)
    found = masses(probabilities)
    of_class = found[np.arange(len(codes)), codes][:, None]
    intervals = Intervals.of_rows(of_class[:6000], np.ones(6000), np.ones(6000))
    for coverage in (0.8, 0.9, 0.95):
        covered = (of_class[6000:] <= intervals.at(coverage)).mean()
        assert abs(covered - coverage) < 3 * np.sqrt(2 * coverage * (1 - coverage) / 6000)
        # The most probable class is in every set.
        assert (found <= intervals.at(coverage)).any(axis=1).all()


def uneven(n, *, slope, seed=0):
    rng = np.random.default_rng(seed)
    Phi = rng.uniform(0, 1, (n, 8))
    return Phi, (0.2 + slope * Phi[:, :1]) * rng.normal(size=(n, 1))


def test_scale__follows_uneven_noise():
    Phi, residuals = uneven(4000, slope=2.0)
    weights = np.ones(4000)
    scale, scales = RowScale.learned(residuals, Phi, weights, orders(4000))
    assert scale.weights is not None
    expected = 0.2 + 2.0 * Phi[:, 0]
    assert np.corrcoef(scales[:, 0], expected)[0, 1] > 0.97
    new, of_new = uneven(4000, slope=2.0, seed=1)
    raw = new @ scale.weights.T + scale.offsets
    intervals = Intervals.of_rows(np.abs(residuals) / scales, weights, weights, scale)
    half = intervals.half_widths(raw, 0.9)
    inside = np.abs(of_new) <= half
    for fifth in np.array_split(np.argsort(new[:, 0]), 5):
        assert abs(inside[fifth].mean() - 0.9) < 0.04
    # With equal widths, few of the noisy rows are inside.
    equal = np.quantile(np.abs(residuals), 0.9)
    noisy = np.argsort(new[:, 0])[-800:]
    assert (np.abs(of_new[noisy]) <= equal).mean() < 0.8


def test_scale__of_quiet_rows_is_not_so_small_that_intervals_cover_them_too_rarely():
    Phi, residuals = uneven(4000, slope=4.0)
    # The rows of one half have hardly any noise, except for few.
    quiet = Phi[:, 0] < 0.5
    residuals[quiet] *= np.where(np.arange(quiet.sum()) % 8, 0.02, 1.0)[:, None]
    scale, scales = RowScale.learned(residuals, Phi, np.ones(4000), orders(4000))
    assert scale.weights is not None
    mean = np.abs(residuals).mean()
    assert scale.least == pytest.approx(0.35 * mean)
    assert scales.min() == pytest.approx(0.35 * mean)


def test_scale__stays_equal_where_it_does_not_narrow_the_intervals():
    Phi, residuals = uneven(4000, slope=0.0)
    scale, scales = RowScale.learned(residuals, Phi, np.ones(4000), orders(4000))
    np.testing.assert_array_equal(scales, 1.0)
    np.testing.assert_array_equal(scale.offsets, 1.0)
    few, of_few = uneven(400, slope=2.0)
    assert RowScale.learned(of_few, few, np.ones(400), orders(400))[0].weights is None


def test_scale__no_residuals_at_all():
    Phi, residuals = np.ones((600, 3)), np.zeros((600, 1))
    scale, scales = RowScale.learned(residuals, Phi, np.ones(600), orders(600))
    intervals = Intervals.of_rows(residuals / scales, np.zeros(600), np.ones(600), scale)
    assert not intervals.half_widths(np.ones((2, 1)), 0.9).any()
    assert intervals.far > 0


def test_interval_scores__are_half_of_those_of_the_formula():
    sizes = np.abs(np.random.default_rng(7).normal(size=199))
    found = interval_scores(sizes, np.ones(199), np.ones(199))
    half = np.sort(sizes)[179]
    # Gneiting & Raftery 2007, eq. 43, of the interval [-half, half] and the residual.
    score = 2 * half + 2 / 0.1 * np.maximum(sizes - half, 0)
    np.testing.assert_allclose(2 * found, score, rtol=1e-12)
