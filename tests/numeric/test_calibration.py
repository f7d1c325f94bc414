import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from dask_nrbfn.choices import LOSSES
from dask_nrbfn.numeric.calibration import (
    FIT_BYTES,
    Calibration,
    DrawnRows,
    ScoreDraw,
    fit_calibration,
)
from dask_nrbfn.numeric.losses import LOGISTIC, SQUARED, loss_named


def drawn(n_rows=600, n_classes=3, *, seed=0, weighted=False):
    """Draw scores that say too little of the last class, and their weights."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, n_classes, n_rows)
    scores = rng.normal(0.3, 0.25, (n_rows, n_classes))
    scores[np.arange(n_rows), codes] += 0.4
    scores[:, -1] -= 0.3
    weights = rng.uniform(0.1, 3.0, n_rows) if weighted else np.ones(n_rows)
    return draw_of(scores, codes, weights)


def draw_of(scores, codes, weights=None, most_scores=2**20, seed=0):
    counts = np.bincount(codes, minlength=scores.shape[1])
    rows = DrawnRows.of_counts(counts, seed=seed, most_scores=most_scores)
    return take(rows, np.arange(len(codes)), scores, codes, weights)


def take(rows, numbers, scores, codes, weights):
    places = rows.places(numbers, codes)
    return rows.take(numbers, codes, weights, scores[places], scores[places, 0], places)


def objective(draw, loss, point):
    """Return the penalized log loss, by the formula."""
    scores, weights = draw.scores, draw.weights / draw.weights.mean()
    n_rows, n_classes = scores.shape
    likely = scores
    if n_classes == 2:
        likely = (1.0 if loss is SQUARED else 0.0) / 2 + (scores - scores[:, ::-1]) / 2
    exponents = point[0] * scores + point[1] * np.log(np.maximum(loss.probability(likely), 0.02))
    exponents = exponents + point[2:]
    smoothed = 0.1 / (n_rows + 2)
    targets = np.where(np.eye(n_classes)[draw.codes] == 1, 1 - smoothed, smoothed / (n_classes - 1))
    losses = np.log(np.exp(exponents).sum(axis=1)) - (targets * exponents).sum(axis=1)
    return weights @ losses + np.square(point[2:]).sum() / 2


def as_point(calibration):
    return np.array([1 / calibration.temperature, calibration.log_slope, *calibration.biases])


@pytest.mark.parametrize("n_classes", [2, 6])
@pytest.mark.parametrize("loss", LOSSES)
def test_fit__is_the_minimum_that_another_method_finds(loss, n_classes):
    draw, loss = drawn(n_classes=n_classes, weighted=True), loss_named(loss)
    found = fit_calibration(draw, loss, temperature=0.3)
    value = objective(draw, loss, as_point(found))
    best = minimize(
        lambda point: objective(draw, loss, point),
        np.array([1.0, 1.0, *np.zeros(n_classes)]),
        bounds=[(0.25, 1024.0), (0.0, 64.0), *[(None, None)] * n_classes],
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000, "maxfun": 10**6},
    )
    assert value == pytest.approx(best.fun, rel=1e-9)
    # With the logistic loss the logarithms of two classes are as good as their scores.
    alike = loss is LOGISTIC and n_classes == 2
    identified = slice(2 if alike else 0, None)
    np.testing.assert_allclose(
        as_point(found)[identified], best.x[identified], rtol=1e-2, atol=1e-2
    )
    assert sum(found.biases) == pytest.approx(0.0, abs=1e-9)


def test_fit__certain_and_missing_classes_have_finite_biases():
    codes = np.repeat([0, 1], [200, 3])
    scores = np.eye(3)[codes]
    found = fit_calibration(draw_of(scores, codes), SQUARED, temperature=0.3)
    assert np.abs(found.biases).max() < 10
    own = found.probabilities(scores, SQUARED)[np.arange(203), codes]
    assert own.min() > 0.95


def test_fit__takes_the_bytes_of_a_score_that_a_plan_counts():
    draw = drawn(20_000, 6)
    tracemalloc.start()
    fit_calibration(draw, SQUARED, temperature=0.3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A plan counts the draw too.
    assert 0.5 * FIT_BYTES < 8 + peak / draw.scores.size < FIT_BYTES


def test_fit__rows_that_are_all_right_do_not_make_others_certain():
    codes = np.repeat([0, 1], [985, 15])
    scores = np.where(np.eye(2)[codes] == 1, 0.9, 0.1)
    found = fit_calibration(draw_of(scores, codes), SQUARED, temperature=2.0**-10)
    less_sure = found.probabilities(np.array([[0.6, 0.4], [0.9, 0.1]]), SQUARED)
    assert less_sure[0, 1] > 1e-3
    assert 1e-5 < less_sure[1, 1] < 1e-3


def test_draw__has_equally_many_rows_of_large_classes_and_all_of_small_ones():
    codes = np.repeat([0, 1, 2], [60_000, 9_000, 200])
    # In any unit.
    weights = 1e-9 * np.random.default_rng(0).uniform(0.5, 1.5, len(codes))
    scores = np.random.default_rng(1).random((len(codes), 3))
    draw = draw_of(scores, codes, weights, most_scores=9 * 3_000)
    counts = np.bincount(draw.codes)
    np.testing.assert_allclose(counts[:2], 3_000, rtol=0.1)
    assert counts[2] == 200
    # They stand for all rows of their class, not for as many as chance drew.
    found = np.bincount(draw.codes, draw.weights)
    np.testing.assert_allclose(found, np.bincount(codes, weights), rtol=1e-12)


def test_draw__takes_8_mib_of_scores_however_many_rows_there_are():
    for n_classes in (2, 64):
        counts = np.full(n_classes, 10**9)
        shares = DrawnRows.of_counts(counts, seed=0).shares
        assert 8 * n_classes * (shares * counts).sum() == pytest.approx(8 * 2**20)


def test_draw__a_version_that_joined_and_left_leaves_the_draw_as_it_was():
    codes, weights = np.arange(300) % 3, np.linspace(1.0, 2.0, 300)
    scores = np.random.default_rng(0).random((2, 300, 3))
    first, second = (draw_of(each, codes, weights) for each in scores)
    both = first + second.of_version(2)
    assert both.totals[:, 0].sum() == 600
    left = both.without(2)
    assert left.totals[:, 0].sum() == 300
    np.testing.assert_array_equal(left.weights, first.weights)
    np.testing.assert_array_equal(left.scores, first.scores)


def test_draw__thinned_rows_of_all_versions_stand_for_equally_many_rows():
    # A part of many rows is drawn, and all of few.
    rng = np.random.default_rng(0)
    sizes = 40_000, 4_000
    codes = [rng.integers(0, 2, size) for size in sizes]
    scores = [np.full((size, 2), float(place)) for place, size in enumerate(sizes)]
    first, second = (
        draw_of(each, own, most_scores=4 * 5_000, seed=seed)
        for seed, (each, own) in enumerate(zip(scores, codes, strict=True))
    )
    joined = first + second.of_version(1)
    for draw in (joined, joined.thinned(4 * 6_000), joined.thinned(4 * 3_000)):
        assert draw.totals[:, 0].sum() == 44_000
        own = [np.bincount(each, minlength=2) for each in codes]
        found = np.bincount(draw.codes, draw.weights)
        np.testing.assert_allclose(found, sum(own), rtol=1e-12)
        # Scores are the number of the version.
        small = draw.weights[draw.scores[:, 0] == 1.0].sum()
        np.testing.assert_allclose(small, 4_000, rtol=0.1)
    for most_scores, n_rows in ((4 * 3_000, 3_000), (3, 1)):
        assert np.bincount(joined.thinned(most_scores).codes).tolist() == [n_rows, n_rows]


@given(cuts=st.lists(st.integers(0, 600), max_size=5))
def test_draw__is_the_same_however_rows_are_cut(cuts):
    draw, numbers = drawn(), np.arange(600)
    rows = DrawnRows.of_counts(np.array([200, 200, 200]), seed=3, most_scores=9 * 50)
    whole = take(rows, numbers, draw.scores, draw.codes, draw.weights)
    ends = [0, *sorted(cuts), 600]
    summed = rows.none(3)
    for start, stop in pairwise(ends):
        part = slice(start, stop)
        columns = (numbers, draw.scores, draw.codes, draw.weights)
        summed += take(rows, *(each[part] for each in columns))
    for name, values in summed.arrays().items():
        np.testing.assert_array_equal(values, whole.arrays()[name])
    again = ScoreDraw.from_arrays(summed.arrays())
    np.testing.assert_array_equal(again.scores, whole.scores)


@pytest.mark.parametrize("loss", LOSSES)
def test_probabilities__of_two_classes_rise_with_the_difference_of_the_scores(loss):
    scores = np.random.default_rng(0).normal(0.5, 0.8, (500, 2))
    calibration = Calibration(0.7, 1.5, (-0.2, 0.2))
    exponents = calibration.exponents(scores, loss_named(loss))
    order = np.argsort(scores[:, 1] - scores[:, 0])
    assert (np.diff((exponents[:, 1] - exponents[:, 0])[order]) > 0).all()
