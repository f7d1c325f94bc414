"""Normal scores of ranks, against ranks that are counted row by row."""

from statistics import NormalDist

import numpy as np
import pytest

from dask_nrbfn.numeric import ranks
from dask_nrbfn.numeric.ranks import FEWEST_VALUES, N_KNOTS, Line, RankLines
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling


def counted_scores(values):
    """Return the normal score of each value (n,), by the rows below it and those equal to it."""
    n = len(values)
    middles = [(np.sum(values < x) + 0.5 * np.sum(values == x)) / n for x in values]
    scores = np.array([NormalDist().inv_cdf(middle) for middle in middles])
    return (scores - scores.mean()) / scores.std()


def scaled(X, kind="rank"):
    """Return the scaling of rows whose columns all have lines."""
    statistics = ColumnStatistics.from_block(X)
    lines = {column: Line.through(X[:, column]) for column in range(X.shape[1])}
    found = {column: line for column, line in lines.items() if line is not None}
    return Scaling.from_statistics(kind, statistics).with_ranks(RankLines.of(found))


VALUES = {
    "distinct": np.random.default_rng(0).normal(size=200),
    "heavy tail": np.exp(4 * np.random.default_rng(1).normal(size=200)),
    "ties": np.random.default_rng(2).integers(-20, 20, 200),
    "mostly 0": np.maximum(np.random.default_rng(3).normal(size=200) - 1.0, 0.0),
    "float32": np.random.default_rng(4).normal(size=200).astype(np.float32),
    "far offset": 1e12 + np.arange(200.0) ** 2,
}


@pytest.mark.parametrize("name", VALUES)
def test_line__has_the_score_of_every_value(name):
    values = VALUES[name]
    line = Line.through(values)
    assert (np.diff(line.knots) > 0).all()
    assert (np.diff(line.scores) > 0).all()
    expected = counted_scores(values)
    found = np.interp(values, line.knots, line.scores)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    correlation = np.corrcoef(values.astype(np.float64), expected)[0, 1]
    assert line.correlation == pytest.approx(correlation, abs=1e-6)


def test_line__of_many_values_has_few_knots_and_keeps_the_tails():
    values = np.exp(3 * np.random.default_rng(0).normal(size=20_000))
    line = Line.through(values)
    assert len(line.knots) <= N_KNOTS
    assert line.knots[[0, -1]].tolist() == [values.min(), values.max()]
    found, places = np.interp(values, line.knots, line.scores), np.argsort(np.argsort(values))
    expected = np.array([NormalDist().inv_cdf((place + 0.5) / 20_000) for place in places])
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.1)
    assert found.mean() == pytest.approx(0.0, abs=1e-9)
    assert found.std() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("factor", [1e-200, 1e150])
def test_line__keeps_its_scores_where_squares_underflow_or_overflow(factor):
    values = VALUES["heavy tail"]
    line, expected = Line.through(factor * values), Line.through(values)
    np.testing.assert_array_equal(line.scores, expected.scores)
    assert line.correlation == pytest.approx(expected.correlation, abs=1e-9)


def test_line__slopes_between_subnormal_numbers_do_not_overflow():
    values = np.exp(-np.random.default_rng(0).uniform(0, 745, 4000))
    line = Line.through(values)
    assert np.isfinite(np.interp(values, line.knots, line.scores)).all()
    assert np.isfinite(line.correlation)


def test_line__has_no_ranks_of_rounding():
    """Sums that should be 1, and a row that is 0."""
    sums = 1.0 + np.finfo(np.float64).eps * np.arange(-20, 20)
    assert Line.through(np.append(sums, 0.0)) is None


def test_line__needs_ten_values():
    """Indicators and small numbers keep their distances."""
    values = np.arange(300) % FEWEST_VALUES
    assert Line.through(values) is not None
    assert Line.through(values % (FEWEST_VALUES - 1)) is None
    assert Line.through(np.full(300, 7.0)) is None


def test_line__quantiles_that_are_all_equal_become_one_knot(monkeypatch):
    monkeypatch.setattr(ranks, "N_KNOTS", 12)
    monkeypatch.setattr(ranks, "_EVEN_RANKS", 8)
    monkeypatch.setattr(ranks, "_EVEN_SCORES", 4)
    values = np.where(np.arange(5000) % 100, 3.0, np.arange(5000.0))
    line = Line.through(values)
    assert (np.diff(line.knots) > 0).all()
    assert 3.0 in line.knots


def test_rank__one_outlier_leaves_the_other_rows_apart():
    X = np.random.default_rng(0).normal(size=(500, 2))
    X[0, 0] = 1e9
    apart = {
        kind: np.ptp(scaling.apply(X)[1:, 0])
        for kind, scaling in (
            ("standard", Scaling.from_statistics("standard", ColumnStatistics.from_block(X))),
            ("rank", scaled(X)),
        )
    }
    assert apart["standard"] < 1e-6
    assert apart["rank"] > 5.0


def test_rank__values_beyond_the_ends_have_the_scores_of_the_ends():
    X = np.random.default_rng(0).normal(size=(300, 2))
    scaling = scaled(X)
    ends = scaling.apply(np.stack([X.min(axis=0), X.max(axis=0)]))
    np.testing.assert_array_equal(scaling.apply(np.array([[-9e99, -50.0], [50.0, 9e99]])), ends)


def test_rank__columns_without_a_line_are_standardized():
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [rng.normal(size=300), np.arange(300) % 2, np.full(300, 4.0), rng.random(300)]
    )
    scaling = scaled(X)
    standard = Scaling.from_statistics("standard", ColumnStatistics.from_block(X)).apply(X)
    np.testing.assert_array_equal(scaling.ranks.columns, [0, 3])
    np.testing.assert_array_equal(scaling.apply(X)[:, 1:3], standard[:, 1:3])
    for column in (0, 3):
        np.testing.assert_allclose(
            scaling.apply(X)[:, column], counted_scores(X[:, column]), rtol=0, atol=6e-2
        )


def test_rank__restores_the_rows_under_learned_weights_too():
    X = np.exp(np.random.default_rng(0).normal(size=(300, 3)))
    before = X.copy()
    for root in (None, np.array([0.5, 2.0, 3.0])):
        scaling = scaled(X)
        scaling = Scaling("learned", scaling.shift, scaling.scale, root, scaling.ranks)
        np.testing.assert_allclose(scaling.restore(scaling.apply(X)), X, rtol=1e-12)
    np.testing.assert_array_equal(X, before)


def test_rank__fills_rows_in_csr():
    """A column of the training rows may have been 0 nowhere, so rows in CSR become arrays."""
    from scipy.sparse import csr_array

    X = np.random.default_rng(0).normal(size=(300, 3))
    rows = np.where(X > 1, X, 0.0)
    np.testing.assert_array_equal(scaled(X).apply(csr_array(rows)), scaled(X).apply(rows))
