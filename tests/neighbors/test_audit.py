import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dask_nrbfn.neighbors import measure_recall

SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 6))
FEW = st.sampled_from([0.0, 1.0, 2.0, 3.5])


@given(exact=arrays("f8", SHAPES, elements=FEW), data=st.data())
@settings(max_examples=100)
def test_measure_recall__equals_naive(exact, data):
    exact = np.sort(exact, axis=1)
    found = np.sort(data.draw(arrays("f8", exact.shape, elements=FEW)), axis=1)
    found = np.maximum(found, exact)
    shares = [
        sum(d <= kth for d in row) / len(row)
        for row, kth in zip(found.tolist(), exact[:, -1].tolist(), strict=True)
    ]
    recall = measure_recall(found, exact)
    assert recall.mean == pytest.approx(np.mean(shares))
    expected = np.std(shares, ddof=1) / np.sqrt(len(shares)) if len(shares) > 1 else 0.0
    assert recall.standard_error == pytest.approx(expected)


def test_measure_recall__everything_and_nothing():
    exact = np.sort(np.random.default_rng(0).uniform(size=(50, 10)), axis=1)
    assert measure_recall(exact, exact) == (1.0, 0.0)
    assert measure_recall(exact + 1.0, exact) == (0.0, 0.0)
    assert measure_recall(np.full_like(exact, np.inf), exact) == (0.0, 0.0)


def test_measure_recall__the_last_bits_do_not_count():
    exact = np.sort(np.random.default_rng(0).uniform(size=(50, 10)), axis=1)
    assert measure_recall(exact * (1 + 1e-12), exact).mean == 1.0
    assert measure_recall(exact * (1 + 1e-6), exact).mean < 0.95


def test_measure_recall__copies_at_distance_zero():
    assert measure_recall(np.zeros((3, 4)), np.zeros((3, 4))).mean == 1.0
    assert measure_recall(np.full((3, 4), 1e-300), np.zeros((3, 4))).mean == 0.0


def test_measure_recall__the_error_bar_is_that_of_repeated_audits():
    rng = np.random.default_rng(0)
    exact = np.tile(np.arange(1.0, 11.0), (1000, 1))
    audits = []
    for _ in range(200):
        missed = rng.uniform(size=(1000, 1)) < 0.2
        audits.append(measure_recall(np.where(missed & (exact > 6), 99.0, exact), exact))
    means = [audit.mean for audit in audits]
    assert np.mean(means) == pytest.approx(0.92, abs=0.002)
    assert np.mean([audit.standard_error for audit in audits]) == pytest.approx(
        np.std(means), rel=0.2
    )
