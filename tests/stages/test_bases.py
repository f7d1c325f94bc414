"""Bases of low confidence, drawn, clustered or given."""

import logging
from dataclasses import replace

import numpy as np
import pytest

import dask_nrbfn.fit
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.params import N_DRAWN, FitParams, TuneParams
from dask_nrbfn.stages import bases, units
from dask_nrbfn.stages.basis import BASIS, _centres, given_basis
from dask_nrbfn.storage.model import Model
from tests.stages.fits import assert_refused, fit_table, overlapping
from tests.tables import spirals

TUNING = TuneParams(
    effort="quick",
    folds=2,
    alphas=(1e-2, 1e-4),
    width_factors=(1.0, 0.3),
    features=("normalized",),
    search_basis=8,
)


def fit(X, y, params, *, basis=None, **options):
    return fit_table(X, y, params, of_fit={"basis": basis}, **options)


def sorted_rows(rows):
    return rows[np.lexsort(rows.T)]


def params_of(basis, size=30, **values):
    return FitParams(**({"basis": basis, "basis_size": size, "alpha": 1e-3} | values))


@pytest.mark.parametrize(("n_points", "copies", "n_basis"), [(30, 4, 30), (200, 1, 50), (5, 1, 3)])
def test_bases__without_a_size_a_quarter_of_the_rows(n_points, copies, n_basis):
    # At most those that are distinct, and one for each of three classes. A tuning chooses a size.
    X, y = spirals(n_points)
    X, y = np.repeat(X, copies, axis=0), np.repeat(y, copies)
    run = fit(X, y, params_of("random", None))
    assert run.chosen_params.basis_size is None
    assert BASIS.recorded(run).n_basis == n_basis


def apart(n_rows, n_rare):
    """Return rows of two classes that are far from each other."""
    X = np.random.default_rng(0).normal(size=(n_rows, 2))
    y = (np.arange(n_rows) < n_rare).astype(np.int64)
    X[y == 1] += 20.0
    return X, y


@pytest.mark.parametrize(("n_rare", "n_of_rare"), [(40, 10), (6, 6)])
def test_sknn__without_a_threshold_rows_of_every_class_are_drawn(n_rare, n_of_rare):
    X, y = apart(200, n_rare)
    params = params_of("sknn", None, n_neighbors=5)
    run = fit(X, y, params)
    rows = run.read("basis/rows")
    assert np.all(run.read("confidence/values") == 1.0)
    assert 200 // 4 <= len(rows) <= 200 // 4 + 2
    assert np.count_nonzero(y[rows]) >= n_of_rare
    other = fit(X, y, replace(params, n_parts=3), chunk_rows=7)
    assert other.read("basis/rows").tolist() == rows.tolist()
    assert fit(X, y, replace(params, random_state=1)).read("basis/rows").tolist() != rows.tolist()


def test_sknn__rows_are_drawn_where_only_a_part_of_the_table_overlaps():
    X, y = apart(2400, 1200)
    X[:1200:3], y[:1200:3] = X[:1200:3], 0
    run = fit(X, y, params_of("sknn", None))
    confidence, rows = run.read("confidence/values"), run.read("basis/rows")
    below = np.flatnonzero(confidence < 0.9)
    assert 0 < len(below) < 1200
    assert np.isin(below, rows).all()
    assert len(rows) == len(below) + N_DRAWN
    # Of the class that is sure everywhere, its share of the rows that are not below.
    assert np.count_nonzero(rows >= 1200) > 0.4 * N_DRAWN


def test_sknn__a_given_threshold_is_the_rule_of_the_paper_and_says_what_it_leaves_out(caplog):
    X, y = apart(200, 40)
    run = fit(X, y, params_of("sknn", None, n_neighbors=5, confidence_threshold=0.9))
    assert sorted(y[run.read("basis/rows")]) == [0, 1]
    assert "class 0 has only 0 rows below the threshold 0.9. Leave the threshold" in warned(caplog)


def test_sknn__a_threshold_of_repeated_rows_is_not_blamed_for_their_number(caplog):
    X, y = spirals(12)
    X, y = np.repeat(X, 9, axis=0), np.tile([0, 1, 2], 36)
    fit(X, y, params_of("sknn", None, confidence_threshold=0.9))
    assert not [each for each in caplog.records if each.levelno == logging.WARNING]


def test_sknn__drawn_rows_take_no_place_of_rows_below_the_threshold():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 8)), np.arange(300) % 100
    run = fit(X, y, params_of("sknn", None))
    assert BASIS.recorded(run).n_basis == np.count_nonzero(run.read("confidence/values") < 0.9)


def test_sknn__ten_rows_of_every_class_are_drawn_of_many_classes():
    rng = np.random.default_rng(0)
    y = np.arange(40 * 15) % 40
    X = np.eye(40)[y] * 50 + rng.normal(scale=0.1, size=(600, 40))
    run = fit(X, y, params_of("sknn", None, n_neighbors=5))
    assert np.bincount(y[run.read("basis/rows")]).min() >= 10


@pytest.mark.parametrize("basis", ["random", "kmeans"])
def test_bases__more_than_the_distinct_rows(basis):
    X, y = spirals(30)
    X, y = np.repeat(X, 4, axis=0), np.repeat(y, 4)
    with pytest.raises(ParameterError, match="basis_size is 31, but X has only 30 distinct rows"):
        fit(X, y, params_of(basis, 31))
    assert BASIS.recorded(fit(X, y, params_of(basis, 30))).n_basis == 30


def test_random__the_rows_of_the_least_hashes():
    X, y = spirals(200)
    run = fit(X, y, params_of("random", random_state=3), chunk_rows=7)
    rows = run.read("basis/rows")
    expected = np.sort(np.argsort(hash_rows(X, seed=3))[:30])
    # All three classes are among them, so that none has to give a row of its own.
    assert rows.tolist() == expected.tolist()
    np.testing.assert_array_equal(run.read("basis/values"), X[rows])


def test_random__every_class_has_a_row():
    X, y = spirals(400)
    y[:2] = 9  # at this seed none of them is among the 12 of the least hashes
    drawn = np.argsort(hash_rows(X, seed=0))[:12]
    assert 9 not in y[drawn]
    rows = fit(X, y, params_of("random", 12)).read("basis/rows")
    assert len(rows) == len(set(rows)) == 12
    assert set(y[rows]) == {0, 1, 2, 9}


@pytest.mark.slow
def test_kmeans__order_of_rows_is_free():
    X, y = spirals(300)
    order = np.random.default_rng(1).permutation(300)
    X = X * [1, 10, 100, 0.1] + [0, 5, -3, 7]
    first, second = (
        fit(X[rows], y[rows], params_of("kmeans", 10, scale="standard")).read("basis/values")
        for rows in (range(300), order)
    )
    np.testing.assert_allclose(sorted_rows(first), sorted_rows(second), rtol=1e-6)


def test_kmeans__many_centres_begin_at_distinct_rows():
    distinct = np.random.default_rng(0).normal(size=(300, 3))
    rows = np.repeat(distinct, 5, axis=0)
    hashes = hash_rows(rows, seed=0)
    order, scaling = np.argsort(hashes), Scaling("none", np.zeros(3), np.ones(3))
    for size, expected in ((280, 280), (400, 300)):
        found = _centres(rows[order], hashes[order], scaling, size, 0)
        assert len(found.rows) == expected


def test_kmeans__centres_of_few_rows_are_not_moved_to_one_row():
    X = np.random.default_rng(0).standard_normal((400, 2))
    hashes, scaling = hash_rows(X, seed=0), Scaling("none", np.zeros(2), np.ones(2))
    order = np.argsort(hashes)
    centres = _centres(X[order], hashes[order], scaling, 390, 0).values
    assert len(np.unique(centres, axis=0)) == 390


@pytest.mark.parametrize("scale", ["standard", "unit"])
def test_kmeans__centres_are_means_of_what_is_next_to_them(scale):
    # Clusters so far apart that there is no doubt which rows belong together.
    rng = np.random.default_rng(0)
    angles = 2 * np.pi * np.arange(6) / 6
    centres = 10 * np.column_stack([np.cos(angles), np.sin(angles), angles])
    X = np.repeat(centres, 40, axis=0) + rng.normal(scale=0.1, size=(240, 3))
    X = (X * [1, 5, 0.2])[rng.permutation(240)]
    run = fit(X, np.arange(240) % 2, params_of("kmeans", 6, scale=scale, random_state=5))
    model = Model.load(run.location)
    rows = model.scaling.apply(X)
    nearest = np.linalg.norm(rows[:, None] - model.basis, axis=2).argmin(axis=1)
    assert np.bincount(nearest, minlength=6).tolist() == [40] * 6
    means = np.array([rows[nearest == centre].mean(axis=0) for centre in range(6)])
    # Steps on batches end near the means, within the spread of the rows.
    spread = max(rows[nearest == centre].std(axis=0).max() for centre in range(6))
    assert np.abs(model.basis - means).max() < spread
    if scale == "unit":
        np.testing.assert_allclose(np.linalg.norm(model.basis, axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, "none"), (np.int16, "standard")])
def test_given__rows_become_the_basis(dtype, scale):
    X, y = spirals(120)
    basis = (20 * np.random.default_rng(0).normal(size=(11, 4))).astype(dtype)
    params = given_basis(FitParams(alpha=1e-3, scale=scale), basis)
    run = fit(20 * X, y, params, basis=basis)
    np.testing.assert_array_equal(run.read("basis/values"), basis)
    assert run.read("basis/rows").tolist() == [-1] * 11
    model = Model.load(run.location)
    np.testing.assert_array_equal(model.basis, model.scaling.apply(basis))


def test_given__tuned(monkeypatch):
    tried, try_networks = [], units.try_networks
    monkeypatch.setattr(
        units,
        "try_networks",
        lambda *given, **of: tried.append(given[0]) or try_networks(*given, **of),
    )
    X, y = spirals(200)
    basis = X[::10] + 0.01
    run = fit(X, y, given_basis(FitParams(), basis), basis=basis, tuning=TUNING)
    assert len(run.stages["search"]["tried"]) == 2
    assert run.stages["search"]["n_basis"] == 8
    # Rounds have some of the given rows, which are in no fold.
    assert {len(table.basis) for table in tried[:2]} == {8}
    for table in tried:
        assert all(row in basis.tolist() for row in table.basis.tolist())
        assert set(table.basis_folds) == {-1}
    np.testing.assert_array_equal(run.read("basis/values"), basis)


@pytest.mark.parametrize(
    "values", [np.ones(4), np.full((3, 4), "a"), [[1.0, np.nan]], [[np.inf]], [[True, False]]]
)
def test_given__values_that_are_no_basis(values):
    with pytest.raises(ParameterError, match=r"the basis has dtype .* Give finite numbers"):
        given_basis(FitParams(), values)


@pytest.mark.parametrize("tuning", [None, TUNING])
def test_given__mistakes_are_refused_before_any_task(tuning):
    (X, y), wide = spirals(40), np.ones((5, 6))
    named = given_basis(FitParams(), X[:5])
    for params, basis, message in [
        (given_basis(FitParams(), wide), wide, "the basis rows have 6 columns, but X has 4"),
        (named, None, "the basis rows are missing"),
        (named, X[1:6], "params belong to other basis rows than the given ones"),
        (params_of("random", 5), X[:5], "params belong to other basis rows than the given ones"),
    ]:
        assert_refused(X, y, params, message, tuning=tuning, of_fit={"basis": basis})


def test_uniform__rows_below_the_threshold_are_drawn():
    X, y = overlapping(400, 0.4)
    params = params_of("sknn", 40, basis_rule="uniform")
    draws = []
    for seed in (0, 1):
        run = fit(X, y, replace(params, random_state=seed))
        confidence, rows = run.read("confidence/values"), run.read("basis/rows")
        assert len(rows) == 40
        assert confidence[rows].max() < 0.9
        assert confidence[rows].max() > np.sort(confidence)[40]
        draws.append(rows.tolist())
    assert draws[0] != draws[1]


def test_uniform__is_filled_up_from_beyond():
    X, y = spirals(200)
    run = fit(X, y, params_of("sknn", 150, basis_rule="uniform", scale="none"))
    confidence, rows = run.read("confidence/values"), run.read("basis/rows")
    assert np.count_nonzero(confidence < 0.9) < 150
    assert set(np.flatnonzero(confidence < np.sort(confidence)[149])) <= set(rows)


def warned(caplog):
    (warning,) = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
    return warning.getMessage()


@pytest.mark.parametrize("rule", ["least-confident", "uniform"])
def test_sknn__capped_by_the_memory_at_hand(caplog, monkeypatch, rule):
    X, y = overlapping(400, 0.4)
    params = params_of("sknn", None, basis_rule=rule, confidence_threshold=0.9)
    with monkeypatch.context() as patched:
        patched.setattr(dask_nrbfn.fit, "largest_basis", lambda context: 60)
        run = fit(X, y, params)
    n_below = np.count_nonzero(run.read("confidence/values") < 0.9)
    record = BASIS.recorded(run)
    assert (record.n_basis, record.n_below_threshold, record.cap) == (60, n_below, 60)
    expected = fit(X, y, params_of("sknn", 60, basis_rule=rule)).read("basis/rows")
    assert run.read("basis/rows").tolist() == expected.tolist()
    assert f"{n_below} rows are below the threshold 0.9 and 0 others" in caplog.text
    assert "the memory allows at most 60 basis rows" in caplog.text


@pytest.mark.parametrize(("threshold", "name"), [(None, "MOST_USUAL"), (0.9, "MOST_FOUND")])
def test_sknn__without_a_size_not_all_rows_of_classes_that_overlap(
    caplog, monkeypatch, threshold, name
):
    monkeypatch.setattr(bases, name, 40)
    params = replace(params_of("sknn", None), confidence_threshold=threshold)
    run = fit(*overlapping(400, 0.4), params)
    record, confidence = BASIS.recorded(run), run.read("confidence/values")
    assert (record.n_basis, record.cap) == (40, 40)
    n_drawn = 0 if threshold else (40 - 3) // 2
    assert np.count_nonzero(confidence[run.read("basis/rows")] < 0.9) == 40 - n_drawn
    assert "without a size a basis has at most 40 basis rows" in warned(caplog)
