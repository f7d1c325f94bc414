"""Intervals, sets of labels and distances: what is stored, written, judged and updated."""

import csv
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import zarr
from zarr.storage import MemoryStore

from dask_nrbfn import (
    FitParams,
    InlineEngine,
    Model,
    NRBFNClassifier,
    NRBFNRegressor,
    evaluate_dataset,
    fit_dataset,
    merge_runs,
    predict_dataset,
    update_run,
)
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.stages.cells import _over_means
from dask_nrbfn.stages.validation import read_draw
from dask_nrbfn.storage.run import Run
from tests.cli.program import succeed
from tests.sites import write_site
from tests.tables import copy_of, spirals, write_table

ENGINE = InlineEngine()
NUMBERS = FitParams(basis="random", basis_size=60, features="plain", width_factor=0.5)


def uneven(n, *, seed=0, n_targets=1):
    """Draw rows whose noise grows with the first column."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    noise = (0.1 + np.abs(X[:, :1])) * rng.normal(size=(n, n_targets))
    return X, np.sin(3 * X[:, 1:2]) + 0.5 * noise * np.arange(1, n_targets + 1)


def write(X, T, **options):
    kind = "target" if np.asarray(T).dtype.kind == "f" else "y"
    return write_table(MemoryStore(), X, **{kind: T}, **options)


def covered_shares(model, X, T, coverage=0.9):
    scorer = Scorer(model, extended=True)
    scores = scorer.table(X)
    lower, upper = (scorer.result(f"{end}@{coverage}", scores) for end in ("lower", "upper"))
    return ((lower <= T) & (upper >= T)).mean(axis=0)


def arrays_of(intervals):
    return [intervals.quantiles, *(each for each in intervals.scale if each is not None)]


ROWS = uneven(3000)
DATASET = write(*ROWS)
ONE = fit_dataset(DATASET, MemoryStore(), NUMBERS, ENGINE)
MODEL = Model.load(ONE.location)


@pytest.mark.parametrize("kernel", ["laplace-l1", "gaussian"])
def test_intervals__are_conformal_by_independent_numpy(kernel):
    run, model = ONE, MODEL
    assert model.params.kernel == "laplace-l1"
    if kernel == "gaussian":
        params = replace(NUMBERS, kernel="gaussian", scale="none")
        run = fit_dataset(DATASET, MemoryStore(), params, ENGINE)
        model = Model.load(run.location)
    values, scorer = read_draw(run, "").scores[:, 0], Scorer(model, extended=True)
    scores = scorer.table(ROWS[0])
    Phi = model.features.activations(ROWS[0])
    raw = Phi @ model.intervals.scale.weights[0] + model.intervals.scale.offsets[0, 0]
    half = np.maximum(raw, model.intervals.scale.least[0]) * np.sort(values)[int(3001 * 0.8)]
    low, high = model.target_range[:, 0]
    predicted = np.clip(scores[:, 0], low, high)
    for end, sign in (("lower", -1), ("upper", 1)):
        expected = np.clip(predicted + sign * half, low, high)
        np.testing.assert_allclose(scorer.result(f"{end}@0.8", scores)[:, 0], expected, rtol=1e-9)
    exponents = -np.log(np.minimum(Phi.max(axis=1), 1.0))
    nearest = np.sqrt(2 * exponents) if kernel == "gaussian" else exponents
    np.testing.assert_allclose(scores[:, -1], nearest, atol=1e-7)


def test_residuals__are_those_whose_mean_is_the_held_out_error():
    X = ROWS[0]
    even = np.sin(3 * X[:, 1:2]) + 0.3 * np.random.default_rng(1).normal(size=(3000, 1))
    run = fit_dataset(write(X, even), MemoryStore(), NUMBERS, ENGINE)
    intervals, draw = Model.load(run.location).intervals, read_draw(run, "")
    assert (intervals.scale.offsets == 1.0).all()
    assert intervals.scale.weights is None
    assert draw.scores.mean() == pytest.approx(run.stages["validation"]["mae"][0], rel=1e-9)


@pytest.mark.parametrize("cells", [1, 3])
def test_intervals__cover_new_rows_in_each_fifth_of_uneven_noise(cells):
    model = MODEL
    if cells > 1:
        run = fit_dataset(DATASET, MemoryStore(), replace(NUMBERS, cells=cells), ENGINE)
        model = Model.load(run.location)
    X, T = uneven(4000, seed=1)
    for coverage in (0.5, 0.9):
        assert covered_shares(model, X, T, coverage)[0] == pytest.approx(coverage, abs=0.035)
    if cells == 1:
        for fifth in np.array_split(np.argsort(np.abs(X[:, 0])), 5):
            assert covered_shares(model, X[fifth], T[fifth])[0] == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize(("chunk_rows", "n_parts"), [(70, None), (1000, 7), (3000, 1)])
def test_intervals__do_not_depend_on_chunks_and_parts(chunk_rows, n_parts):
    dataset = write(*ROWS, chunk_rows=chunk_rows)
    params = replace(NUMBERS, n_parts=n_parts)
    run = fit_dataset(dataset, MemoryStore(), params, InlineEngine(n_workers=3))
    found = Model.load(run.location).intervals
    for own, expected in zip(arrays_of(found), arrays_of(MODEL.intervals), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-7, atol=1e-9)
    assert found.far == pytest.approx(MODEL.intervals.far, rel=1e-9)


def test_intervals__weighted_rows_count_like_repeated_ones():
    X, T = uneven(900)
    weights = np.random.default_rng(0).integers(1, 4, 900)
    run = fit_dataset(write(X, T, weights=weights.astype(float)), MemoryStore(), NUMBERS, ENGINE)
    draw = read_draw(run, "")
    places = np.argsort(draw.order)
    np.testing.assert_array_equal(np.sort(draw.own), np.sort(weights))
    quantile = Model.load(run.location).intervals.quantiles[:, 0]
    repeated = np.sort(np.repeat(draw.scores[places, 0], draw.own[places].astype(int)))
    middle = quantile[int(np.ceil(0.5 * (len(quantile) + 1))) - 1]
    assert middle == pytest.approx(np.median(repeated), rel=0.02)


@pytest.mark.parametrize("cells", [1, 2])
def test_updates__keep_the_coverage_and_what_held_out_rows_say(cells):
    params = replace(NUMBERS, cells=cells)
    run = fit_dataset(write(*uneven(900)), MemoryStore(), params, ENGINE)
    before = Model.load(run.location)
    later = write(*uneven(900, seed=2))
    update_run(run.location, later, ENGINE)
    added = Model.load(run.location)
    draw = read_draw(Run.open(run.location), Run.open(run.location).latest_place)
    assert np.bincount(draw.versions).tolist() == [900, 900]
    X, T = uneven(4000, seed=3)
    assert covered_shares(added, X, T)[0] == pytest.approx(0.9, abs=0.03)
    update_run(run.location, later, ENGINE, forget=True)
    forgotten = Model.load(run.location)
    for own, expected in zip(
        arrays_of(forgotten.intervals), arrays_of(before.intervals), strict=True
    ):
        np.testing.assert_allclose(own, expected, rtol=1e-12)
    assert covered_shares(forgotten, X, T)[0] == pytest.approx(0.9, abs=0.03)


def test_merge__joins_the_residuals_of_both_runs():
    run = Run.open(copy_of(ONE.location))
    site = write_site(run, MemoryStore(), DATASET, write(*uneven(700, seed=5)))
    merge_runs(run.location, site.location, ENGINE)
    merged = Run.open(run.location)
    draw = read_draw(merged, merged.latest_place)
    assert np.bincount(draw.versions).tolist() == [3000, 700]
    X, T = uneven(4000, seed=3)
    assert covered_shares(Model.load(run.location), X, T)[0] == pytest.approx(0.9, abs=0.03)


def test_predict__columns_of_intervals_and_distances(tmp_path):
    X, T = uneven(300, seed=4, n_targets=2)
    run = fit_dataset(write(X, T), MemoryStore(), NUMBERS, ENGINE)
    new = write_table(MemoryStore(), X[:50])
    predict_dataset(run.location, new, tmp_path / "p.csv", ENGINE, interval=[0.5, 0.9])
    table = pd.read_csv(tmp_path / "p.csv")
    ends, targets = ("lower", "upper"), ("target_0", "target_1")
    names = [f"{end}_{c}_{t}" for c, end, t in product((0.5, 0.9), ends, targets)]
    assert sorted(table.columns) == sorted([*targets, *names])
    for target in targets:
        columns = [f"lower_0.9_{target}", f"lower_0.5_{target}", target]
        columns += [f"upper_0.5_{target}", f"upper_0.9_{target}"]
        assert (np.diff(table[columns], axis=1) >= 0).all()
    predict_dataset(run.location, new, tmp_path / "p.zarr", ENGINE, interval=[0.9], distance=True)
    group = zarr.open_group(tmp_path / "p.zarr", mode="r")
    np.testing.assert_allclose(group["lower@0.9"][:, 1], table["lower_0.9_target_1"], rtol=1e-12)
    assert group["unlike"].shape == (50,)


def test_predict__one_coverage_and_rows_unlike_all(tmp_path, caplog):
    caplog.set_level("INFO", logger="dask_nrbfn")
    new = np.vstack([ROWS[0][:20], 50.0 + ROWS[0][:3]])
    out = tmp_path / "p.parquet"
    predict_dataset(
        ONE.location, write_table(MemoryStore(), new), out, ENGINE, interval=[0.9], distance=True
    )
    table = pd.read_parquet(out)
    assert list(table.columns) == ["target", "lower", "upper", "unlike"]
    assert (table["unlike"] > 1).tolist() == [False] * 20 + [True] * 3
    assert "3 of 23 rows are farther from the basis" in caplog.text


@pytest.mark.parametrize("cells", [1, 2])
def test_predict__sets_of_labels(tmp_path, cells):
    X, y = spirals(900, seed=1)
    names = np.array(["a", "b", "c"])
    params = FitParams(basis_size=25, cells=cells, width_factor=2.0)
    run = fit_dataset(write_table(MemoryStore(), X, names[y]), MemoryStore(), params, ENGINE)
    X, y = spirals(600, seed=2)
    new = write_table(MemoryStore(), X, names[y])
    predict_dataset(run.location, new, tmp_path / "p.csv", ENGINE, interval=[0.95])
    table = pd.read_csv(tmp_path / "p.csv")
    sets = [each.split("|") for each in table["labels"]]
    assert all(label in own for label, own in zip(table["prediction"], sets, strict=True))
    covered = np.mean([label in own for label, own in zip(names[y], sets, strict=True)])
    assert covered > 0.92
    found = evaluate_dataset(run.location, new, ENGINE)
    last = found.intervals[-1]
    assert last["coverage"] == 0.95
    assert last["covered"][0] == pytest.approx(covered, abs=1e-12)
    assert last["mean_size"][0] == pytest.approx(np.mean([len(own) for own in sets]), abs=1e-12)
    assert found.n_unlike < 10


def test_evaluate__coverage_and_width_of_numbers():
    X, T = uneven(2000, seed=6)
    found = evaluate_dataset(ONE.location, write(X, T), ENGINE)
    for each in found.intervals:
        share = covered_shares(MODEL, X, T, each["coverage"])
        assert each["covered"] == pytest.approx(share.tolist(), abs=1e-12)
    widths = [each["mean_width"][0] for each in found.intervals]
    assert widths == sorted(widths)
    given = fit_dataset(DATASET, MemoryStore(), replace(NUMBERS, alpha=1e-6), ENGINE)
    without = evaluate_dataset(given.location, write(X, T), ENGINE)
    assert (without.intervals, without.n_unlike) == ([], None)


def test_intervals__refused_without_held_out_rows_before_the_first_task(tmp_path):
    run = fit_dataset(DATASET, MemoryStore(), replace(NUMBERS, alpha=1e-6), ENGINE)
    for options in ({"interval": [0.9]}, {"distance": True}):
        with pytest.raises(ParameterError, match="no held-out rows"):
            predict_dataset(run.location, DATASET, tmp_path / "p.csv", ENGINE, **options)
    with pytest.raises(ParameterError, match="the coverage 1 is not between"):
        predict_dataset(ONE.location, DATASET, tmp_path / "p.csv", ENGINE, interval=[1.0])
    assert not (tmp_path / "p.csv").exists()


def test_cli__interval_and_distance(tmp_path):
    X, T = ROWS
    header = ["a", "b", "c", "price"]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *np.column_stack([X, T])[:400].tolist()])
    rows, run = tmp_path / "rows.csv", tmp_path / "run.zarr"
    succeed("ingest", rows, tmp_path / "rows.zarr", "--target", "price")
    succeed("fit", tmp_path / "rows.zarr", run)
    succeed("predict", run, rows, tmp_path / "p.csv", "--interval", "0.5,0.9", "--distance")
    table = pd.read_csv(tmp_path / "p.csv")
    expected = ["price", "lower_0.5", "upper_0.5", "lower_0.9", "upper_0.9", "unlike"]
    assert list(table.columns) == expected
    assert ((table["lower_0.9"] <= T[:400, 0]) & (T[:400, 0] <= table["upper_0.9"])).mean() > 0.85


def test_estimators__intervals_of_arrays_frames_and_dask():
    da = pytest.importorskip("dask.array")
    X, T = ROWS
    network = NRBFNRegressor(basis="random", basis_size=60).fit(X, T[:, 0])
    found = network.predict_interval(X[:100], coverage=0.8)
    assert found.shape == (100, 2)
    assert (found[:, 0] <= network.predict(X[:100])).all()
    lazy = network.predict_interval(da.from_array(X[:100], (33, 3)), coverage=0.8)
    np.testing.assert_allclose(lazy.compute(), found, rtol=1e-9)
    assert network.unlike(X[:100]).shape == (100,)
    several = NRBFNRegressor(basis="random", basis_size=60).fit(X, np.column_stack([T, -T]))
    found = several.predict_interval(X[:50])
    assert found.shape == (50, 2, 2)
    lazy = several.predict_interval(da.from_array(X[:50], (20, 2)))
    np.testing.assert_allclose(lazy.compute(), found, rtol=1e-9)
    given = NRBFNRegressor(alpha=1e-6).fit(X, T[:, 0])
    with pytest.raises(ParameterError, match="no held-out rows"):
        given.predict_interval(X)


def test_estimators__sets_of_labels():
    X, y = spirals(400)
    network = NRBFNClassifier().fit(X, y)
    sets = network.predict_set(X, coverage=0.9)
    assert sets.shape == (400, 3)
    assert sets[np.arange(400), network.predict(X)].all()
    np.testing.assert_array_equal(
        np.concatenate([network.predict_set(X[i : i + 1]) for i in range(100)]), sets[:100]
    )
    frame = network.set_output(predict="pandas").predict_set(X[:3])
    assert frame.columns.tolist() == ["0", "1", "2"]


def test_unlike__rows_like_the_others_are_rarely_unlike_where_the_basis_has_centres():
    shares = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((10_500, 4))
        y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(len(X))
        network = NRBFNRegressor(basis="kmeans", basis_size=125).fit(X[:500], y[:500])
        shares.append((network.unlike(X[500:]) > 1).mean())
    # Of each draw, 0.1 % or a little more; 1 % with distances to the own centre of a row.
    assert np.mean(shares) < 0.004


def test_unlike__a_class_that_was_left_out_is_far():
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = datasets.load_digits(return_X_y=True)
    seen = y != 0
    network = NRBFNClassifier().fit(X[seen][::2], y[seen][::2])
    distances = network.unlike(X)
    new = distances[seen][1::2]
    assert np.mean(new > 1) < 0.02
    left_out = distances[~seen]
    assert np.mean(left_out[:, None] > new) > 0.9


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_cells__constant_ones_are_neither_unlike_nor_wide(unit):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1600, 2))
    varies = X[:, :1] > 0
    T = unit * np.where(varies, np.sin(5 * X[:, 1:]) + 0.1 * rng.normal(size=(1600, 1)), 0.0)
    params = FitParams(cells=8, basis="random", basis_size=100, features="plain")
    run = fit_dataset(write(X[:1200], T[:1200]), MemoryStore(), params, ENGINE)
    scorer = Scorer(Model.load(run.location), extended=True)
    scores, constant = scorer.table(X[1200:]), ~varies[1200:, 0]
    assert (scorer.result("unlike", scores)[constant] > 1).mean() < 0.05
    lower, upper = (scorer.result(f"{end}@0.9", scores)[constant] for end in ("lower", "upper"))
    assert np.median(upper - lower) < 0.7 * unit


def test_cells__a_residual_is_over_the_mean_of_the_others_so_that_small_cells_cover_new_rows():
    residuals = np.abs(np.random.default_rng(0).normal(size=(4000, 7)))
    judged = np.vstack([_over_means(own[:6, None], np.ones(6)) for own in residuals])
    new = residuals[:, 6] / residuals[:, :6].mean(axis=1)
    # Over a mean with the row itself, 0.86.
    assert (new <= np.quantile(judged, 0.9)).mean() > 0.9


def test_evaluate__has_no_coverage_that_predict_refuses():
    X, T = uneven(12, seed=9)
    run = fit_dataset(write(X, T), MemoryStore(), replace(NUMBERS, basis_size=4), ENGINE)
    found = evaluate_dataset(run.location, write(*uneven(50)), ENGINE)
    assert [each["coverage"] for each in found.intervals] == [0.5, 0.8, 0.9]
    with pytest.raises(ParameterError, match=r"the coverage 0\.95 is not between 0 and 0\.9231"):
        Model.load(run.location).check_intervals([0.95])
