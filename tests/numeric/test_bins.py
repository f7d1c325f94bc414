from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from dask_nrbfn.numeric import bins
from dask_nrbfn.numeric.bins import Bins, RankedScores, median
from dask_nrbfn.numeric.reliability import (
    RankedProbabilities,
    expected_calibration_error,
    reliability_bins,
    reliability_of_rows,
)
from tests.numeric.chunkings import row_chunkings, split


def bins_of(values):
    return Bins.of_values(values, np.ones((len(values), 1), dtype=np.int64))


@pytest.mark.parametrize("n_rows", [1, 2, 3001])
def test_median__exact_of_few_different_numbers(n_rows):
    values = np.random.default_rng(n_rows).normal(size=n_rows) * 1e3
    assert median(bins_of(values)) == pytest.approx(np.median(values), rel=1e-15)


@pytest.mark.parametrize(("scale", "offset"), [(1, 3), (1e-300, 0), (1e300, 0), (1, -1e6)])
def test_median__of_many_numbers_is_near(scale, offset):
    values = np.random.default_rng(0).normal(size=100_001) * scale + offset
    found = bins_of(values).binned()
    assert len(found.keys) <= 2**14
    # Between numbers not further apart than ranks of 1 %.
    low, high = np.quantile(values, [0.49, 0.51])
    assert low <= median(found) <= high


@given(lengths=row_chunkings(200))
def test_median__any_division(lengths):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bins, "_MOST_BINS", 20)
        patch.setattr(bins, "MOST_ENTRIES", 40)
        values = np.random.default_rng(0).normal(size=200)
        parts = [bins_of(part) for part in split(values, lengths)]
        found = [median(reduce(add, each)) for each in (parts, parts[::-1])]
        assert found == [median(bins_of(values))] * 2


def draw(n_rows, seed=0, *, share=0.3, digits=None):
    """Draw scores (n,), ties among them if they have few digits, and codes (n,)."""
    rng = np.random.default_rng(seed)
    codes = (rng.random(n_rows) < share).astype(np.int64)
    scores = rng.normal(size=n_rows) + codes - 0.5
    return scores if digits is None else scores.round(digits), codes


def small_bins(monkeypatch, most=50):
    monkeypatch.setattr(bins, "_MOST_BINS", most)
    monkeypatch.setattr(bins, "MOST_ENTRIES", 2 * most)


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_ranking__exact_where_each_score_has_its_bin(digits):
    scores, codes = draw(400, digits=digits)
    figures = RankedScores.from_block(scores, codes).figures()
    assert figures["roc_auc"] == pytest.approx(roc_auc_score(codes, scores), rel=1e-12)
    assert figures["roc_auc_bound"] == 0.0


# Spread ones, few of one class within a hundred thousandth, many equal ones, all near 0, far apart.
@pytest.mark.parametrize(
    ("scale", "offset", "share", "digits"),
    [
        (1, 0, 0.3, None),
        (1e-5, -0.9998, 0.01, None),
        (1, 0, 0.5, 2),
        (1e-300, 0, 0.3, None),
        (1e300, 0, 0.3, None),
    ],
)
def test_ranking__within_its_bound(monkeypatch, scale, offset, share, digits):
    small_bins(monkeypatch, most=500)
    scores, codes = draw(20_000, share=share, digits=digits)
    scores = scores * scale + offset
    found = RankedScores.from_block(scores, codes)
    assert 250 <= len(found.binned().keys) <= 500
    figures = found.figures()
    error = abs(figures["roc_auc"] - roc_auc_score(codes, scores))
    assert error <= figures["roc_auc_bound"] < 0.01


@given(row_chunkings(max_rows=300), st.sampled_from([None, 1]))
def test_ranking__any_division(lengths, digits):
    scores, codes = draw(sum(lengths), digits=digits)
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_bins(monkeypatch)
        whole = RankedScores.from_block(scores, codes).binned()
        blocks = [*map(RankedScores.from_block, split(scores, lengths), split(codes, lengths))]
        forward, backward = reduce(add, blocks), reduce(add, blocks[::-1], RankedScores.zeros())
        for found in (forward.binned(), backward.binned()):
            assert found.shift == whole.shift
            np.testing.assert_array_equal(found.keys, whole.keys)
            np.testing.assert_array_equal(found.counts, whole.counts)


def test_ranking__zeros_of_both_signs_are_equal():
    figures = RankedScores.from_block(np.array([0.0, -0.0]), np.array([0, 1])).figures()
    assert figures["roc_auc"] == 0.5


@pytest.mark.parametrize("n_rows", [0, 5])
def test_ranking__of_one_class(n_rows):
    found = RankedScores.from_block(np.ones(n_rows), np.ones(n_rows, dtype=int))
    assert found.figures() == {"roc_auc": None, "roc_auc_bound": None}


def draw_probabilities(n_rows, n_classes=2, seed=0):
    """Draw probabilities and classes; the classes are less certain than the probabilities."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(n_classes, 0.5), n_rows)
    mixed = 0.7 * probabilities + 0.3 / n_classes
    codes = (rng.random((n_rows, 1)) > mixed.cumsum(axis=1)).sum(axis=1)
    return probabilities, np.minimum(codes, n_classes - 1)


def naive_reliability(probabilities, codes):
    """Return the bins and the error, one bin after the other."""
    if probabilities.shape[1] == 2:
        values, occurred = probabilities[:, 1], codes == 1
    else:
        values, occurred = probabilities.max(axis=1), probabilities.argmax(axis=1) == codes
    found, error = [], 0.0
    for part in np.array_split(np.argsort(values), 10):
        mean, share = values[part].mean(), occurred[part].mean()
        found.append((len(part), mean, share))
        error += abs(mean - share) * len(part) / len(values)
    return found, error


@pytest.mark.parametrize("n_classes", [2, 4])
def test_reliability__equals_the_naive_one(n_classes):
    probabilities, codes = draw_probabilities(2_000, n_classes)
    expected, error = naive_reliability(probabilities, codes)
    of_rows = reliability_of_rows(probabilities, codes, np.ones(2_000))
    figures = RankedProbabilities.from_block(probabilities, codes).figures()
    for found in (of_rows, figures["reliability"]):
        assert [tuple(each.values()) for each in found] == [pytest.approx(row) for row in expected]
        assert expected_calibration_error(found) == pytest.approx(error)
    assert figures["expected_calibration_error"] == pytest.approx(error)
    assert error > 0.03


def test_reliability__equal_probabilities_are_one_bin():
    values = np.repeat([0.1, 0.3], [70, 30])
    (low, high) = reliability_bins(values, np.ones(100), np.r_[np.ones(7), np.zeros(93)])
    assert low == pytest.approx({"n_rows": 70, "mean_probability": 0.1, "observed_share": 0.1})
    assert high == pytest.approx({"n_rows": 30, "mean_probability": 0.3, "observed_share": 0.0})


@given(lengths=row_chunkings(300))
def test_reliability__any_division(lengths):
    probabilities, codes = draw_probabilities(300)
    parts = [
        RankedProbabilities.from_block(probabilities[rows], codes[rows])
        for rows in split(np.arange(300), lengths)
    ]
    whole = RankedProbabilities.from_block(probabilities, codes)
    assert reduce(add, parts, RankedProbabilities.zeros()).figures() == whole.figures()


def test_reliability__of_many_probabilities_is_near(monkeypatch):
    monkeypatch.setattr(bins, "_MOST_BINS", 500)
    probabilities, codes = draw_probabilities(20_000)
    expected, error = naive_reliability(probabilities, codes)
    figures = RankedProbabilities.from_block(probabilities, codes).figures()
    assert figures["expected_calibration_error"] == pytest.approx(error, abs=2e-3)
    means = [each["mean_probability"] for each in figures["reliability"]]
    np.testing.assert_allclose(means, [mean for _, mean, _ in expected], atol=0.02)
