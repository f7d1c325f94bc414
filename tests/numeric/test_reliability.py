from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings

from dask_nrbfn.numeric import bins
from dask_nrbfn.numeric.reliability import (
    RankedProbabilities,
    expected_calibration_error,
    reliability_bins,
    reliability_of_rows,
)
from tests.numeric.chunkings import row_chunkings, split


def draw(n_rows, n_classes=2, seed=0):
    """Draw probabilities and classes; the classes are less certain than the probabilities."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(n_classes, 0.5), n_rows)
    mixed = 0.7 * probabilities + 0.3 / n_classes
    codes = (rng.random((n_rows, 1)) > mixed.cumsum(axis=1)).sum(axis=1)
    return probabilities, np.minimum(codes, n_classes - 1)


def naive(probabilities, codes):
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
    probabilities, codes = draw(2_000, n_classes)
    expected, error = naive(probabilities, codes)
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


@settings(max_examples=20)
@given(lengths=row_chunkings(300))
def test_reliability__any_division(lengths):
    probabilities, codes = draw(300)
    parts = [
        RankedProbabilities.from_block(probabilities[rows], codes[rows])
        for rows in split(np.arange(300), lengths)
    ]
    whole = RankedProbabilities.from_block(probabilities, codes)
    assert reduce(add, parts, RankedProbabilities.zeros()).figures() == whole.figures()


def test_reliability__of_many_probabilities_is_near(monkeypatch):
    monkeypatch.setattr(bins, "_MOST_BINS", 500)
    probabilities, codes = draw(20_000)
    expected, error = naive(probabilities, codes)
    figures = RankedProbabilities.from_block(probabilities, codes).figures()
    assert figures["expected_calibration_error"] == pytest.approx(error, abs=2e-3)
    means = [each["mean_probability"] for each in figures["reliability"]]
    np.testing.assert_allclose(means, [mean for _, mean, _ in expected], atol=0.02)
