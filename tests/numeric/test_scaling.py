from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dask_nrbfn.numeric.rows import canonical, dense
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling, unseen_columns
from tests.numeric.chunkings import row_chunkings, split
from tests.numeric.frozen import read_only


@read_only
def draw(n_rows, n_features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, n_features))


def statistics_of(X, lengths=None):
    blocks = [X] if lengths is None else split(X, lengths)
    return reduce(add, map(ColumnStatistics.from_block, blocks))


def standard(X):
    return Scaling.from_statistics("standard", statistics_of(X))


@given(
    lengths=row_chunkings(), offset=st.sampled_from([0.0, -50.0, 1e4, 1e9]), seed=st.integers(0, 99)
)
def test_statistics__any_split(lengths, offset, seed):
    X = draw(sum(lengths), seed=seed) + offset
    exact = (X - offset).astype(np.longdouble)
    statistics = statistics_of(X, lengths)
    assert statistics.n_rows == len(X)
    # A float64 near 1e9 is spaced 1.2e-7 apart.
    atol = 1e-11 + 2e-15 * abs(offset)
    np.testing.assert_allclose(statistics.mean - offset, exact.mean(axis=0), atol=atol)
    np.testing.assert_allclose(statistics.standard_deviation, exact.std(axis=0), atol=atol)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_statistics__narrow_types_do_not_overflow(dtype):
    X = np.random.default_rng(0).integers(0, 128, (500, 2)) * 2 - (dtype != np.uint8) * 100
    statistics = statistics_of(X.astype(dtype))
    np.testing.assert_allclose(statistics.mean, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(statistics.standard_deviation, X.std(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("value", "n_rows"), [(0.0, 1), (0.1, 3), (-7.3, 1000), (1e9 + 0.1, 20_000)]
)
def test_standard__constant_column_becomes_0(value, n_rows):
    # A sum of many equal numbers is not their exact multiple, which must not look like a spread.
    X = np.column_stack([np.full(n_rows, value), np.arange(n_rows)])
    scaling = standard(X)
    assert scaling.scale[0] == 1.0
    np.testing.assert_allclose(scaling.apply(X[:5])[:, 0], 0.0, atol=1e-12 * max(1, abs(value)))


def test_standard__small_spread_is_not_constant():
    X = np.column_stack([1.0 + 1e-9 * draw(50, 1)[:, 0], np.arange(50)])
    np.testing.assert_allclose(standard(X).apply(X).std(axis=0), 1.0, rtol=1e-5)


def test_standard__a_category_weighs_as_a_number_does():
    rng = np.random.default_rng(0)
    codes = rng.choice(4, 400, p=[0.7, 0.2, 0.09, 0.01])
    X = np.column_stack([np.eye(4)[codes], 30 * draw(400, 1), np.ones((400, 2))])
    grouped = Scaling.from_statistics("standard", statistics_of(X), [(0, 4), (5, 7)])
    scaled = grouped.apply(X)
    # Of all pairs of rows the mean squared difference, in the category and in the number.
    np.testing.assert_allclose(2 * scaled[:, :4].var(axis=0).sum(), 2.0)
    np.testing.assert_allclose(2 * scaled[:, 4].var(), 2.0)
    np.testing.assert_array_equal(grouped.scale[:4], grouped.scale[0])
    np.testing.assert_array_equal(grouped.scale[4:], standard(X).scale[4:])
    np.testing.assert_array_equal(grouped.shift, standard(X).shift)


@pytest.mark.parametrize("mean", [1.0, -1e17])
def test_standard__column_of_rounding_becomes_0(mean):
    X = np.array([[mean, 1.0], [np.nextafter(mean, 0), 2.0], [mean, 3.0]])
    scaled = Scaling.from_statistics("standard", ColumnStatistics.from_block(X)).apply(X)
    np.testing.assert_allclose(scaled[:, 0], 0.0, atol=1e-15)
    np.testing.assert_allclose(scaled[:, 1].std(), 1.0)


@pytest.mark.parametrize(
    ("kind", "column", "unseen"),
    [
        ("standard", [1.0, 1.0 + 2**-52, 1.0], [1]),
        ("standard", [7.0, 7.0, 7.0], []),
        ("standard", [1e6, 1e6 + 1e-6, 1e6], []),
        ("none", [1e6, 1e6 + 1e-9, 1e6], [1]),
        ("none", [1e6, 1e6 + 1e-6, 1e6], []),
        ("none", [7.0, 7.0, 7.0], []),
        ("unit", [1.0, 1.0 + 2**-52, 1.0], []),
    ],
)
def test_unseen_columns__are_those_that_change_no_distance(kind, column, unseen):
    X = np.column_stack([[0.0, 3.0, 9.0], column])
    assert unseen_columns(kind, ColumnStatistics.from_block(X)).tolist() == unseen
    if unseen and kind == "none":
        whole, without = (np.sum((rows - rows[0]) ** 2, axis=1) for rows in (X, X[:, :1]))
        np.testing.assert_array_equal(whole, without)


def test_unit__rows_have_length_1_and_zeros_stay():
    X = draw(30) * np.logspace(-6, 6, 30)[:, None]
    scaled = Scaling("unit", np.zeros(3), np.ones(3)).apply(np.vstack([X, np.zeros(3)]))
    np.testing.assert_allclose(np.sqrt(np.sum(scaled[:30] ** 2, axis=1)), 1.0, rtol=1e-14)
    np.testing.assert_allclose(scaled[:30] * np.linalg.norm(X, axis=1)[:, None], X, rtol=1e-13)
    np.testing.assert_array_equal(scaled[30], 0.0)


@pytest.mark.parametrize("magnitude", [1e-310, 1e-160, 1e-145, 1e145, 1e160, 1e307])
def test_unit__rows_whose_squares_leave_float64(magnitude):
    rows = np.array([[3.0, 0.0, 4.0], [0.3, -0.1, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    X = rows.copy()
    X[0] *= magnitude
    X[3] *= magnitude
    unit = Scaling("unit", np.zeros(3), np.ones(3))
    expected = unit.apply(rows)
    np.testing.assert_allclose(unit.apply(X), expected, rtol=1e-12)
    np.testing.assert_array_equal(unit.apply(X)[1:3], expected[1:3])
    scaled = unit.apply(canonical(csr_array(X)))
    np.testing.assert_allclose(dense(scaled), expected, rtol=1e-12)
    np.testing.assert_array_equal(dense(scaled)[1:3], dense(unit.apply(csr_array(rows)))[1:3])


@pytest.mark.parametrize(
    ("kind", "dtype"), [("none", np.uint8), ("standard", np.float64), ("unit", np.float32)]
)
def test_scaling__into_other_rows(kind, dtype):
    X = (50 + 10 * draw(20)).astype(dtype)
    before = X.copy()
    scaling = Scaling.from_statistics(kind, statistics_of(X))
    wider = np.full((20, 5), np.nan)
    scaled = scaling.apply(X, out=wider[:, 1:4])
    assert np.shares_memory(scaled, wider)
    assert wider[:, 1:4].tobytes() == scaling.apply(X).tobytes()
    assert np.isnan(wider[:, [0, 4]]).all()
    assert X.tobytes() == before.tobytes()
