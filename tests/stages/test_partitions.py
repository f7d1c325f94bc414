"""The search in partitions, against the naive one and against disturbances, and its audit."""

from functools import partial

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import MemoryBudgetError, RecallError
from dask_nrbfn.fit import stages_of_run
from dask_nrbfn.neighbors.partition import Partitions
from dask_nrbfn.params import FitLimits, FitParams
from dask_nrbfn.storage.group import open_group
from dask_nrbfn.storage.run import Run
from tests.neighbors.naive import assert_valid, blobs, naive_distances, naive_neighbors
from tests.stages.fits import fit_table
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import spirals, write_table

SCRATCH = ("partitions", "candidates", "repair")


def params(**changes):
    chosen = {"n_neighbors": 10, "neighbors": "exact", "n_partitions": 4, "overlap": 3}
    chosen |= {"scale": "none", "basis_size": 30, "alpha": 1e-4, "n_parts": 3}
    return FitParams(**(chosen | changes))


def fit(X, y, wanted=None, *, min_recall=0.0, **options):
    return fit_table(X, y, wanted or params(), of_fit={"min_recall": min_recall}, **options)


def neighbors(run):
    return run.read("neighbors/indices"), run.read("neighbors/distances")


def assert_true_neighbors(run, X, *, rtol=1e-6):
    """Assert k distinct other rows for every row, at the distances that are stored."""
    indices, distances = neighbors(run)
    assert_valid(
        indices, np.arange(len(X)), n_rows=len(X), n_neighbors=run.chosen_params.n_neighbors
    )
    measured = np.sqrt(((X[indices] - X[:, None]) ** 2).sum(axis=2))
    np.testing.assert_allclose(distances, measured, rtol=rtol, atol=1e-9)
    assert np.all(np.diff(distances, axis=1) >= 0)


def left_behind(run):
    return [name for name in SCRATCH if name in open_group(run.location, kind="run")]


def test_search__enough_overlap_finds_everything():
    X, y = spirals(600)
    run = fit(X, y)
    assert_true_neighbors(run, X)
    share = np.mean(np.sort(neighbors(run)[0]) == np.sort(naive_neighbors(X, 10)))
    assert share > 0.999
    record = run.stages["neighbors"]
    assert (record["n_partitions"], record["n_repaired"]) == (4, 0)
    assert 600 * 3 / 4 <= record["largest_partition"] <= 1.15 * 600 * 3 / 4
    assert record["mean_distance"] == pytest.approx(neighbors(run)[1].mean(), rel=1e-12)
    assert run.stages["recall"]["recall"] > 0.999
    assert left_behind(run) == []


def repeated(n_rows, n_equal, n_features=4):
    X, y = spirals(n_rows, n_features)
    X[np.random.default_rng(0).permutation(n_rows)[:n_equal]] = X[0]
    return X, y


HARD = {
    "a third twice": lambda: (np.vstack([spirals(700)[0], spirals(300)[0]]), spirals(1000)[1]),
    "one value 5,000 times of 8,000": lambda: repeated(8000, 5000),
    "far from the origin": lambda: (spirals(900)[0] + 1e6, spirals(900)[1]),
    "one row far off": lambda: (
        np.vstack([spirals(899)[0], np.full((1, 4), 1e5)]),
        spirals(900)[1],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_search__hard_tables_as_without_partitions(name):
    X, y = HARD[name]()
    parted = fit(X, y, params(n_parts=2))
    whole = fit(X, y, params(n_parts=2, n_partitions=1))
    assert_true_neighbors(parted, X, rtol=1e-5)
    assert parted.stages["neighbors"]["n_repaired"] == 0
    np.testing.assert_allclose(neighbors(parted)[1], neighbors(whole)[1], rtol=1e-6, atol=1e-9)
    distances = neighbors(whole)[1]
    # Among equal distances either row may be found, with either label.
    untied = np.all(np.diff(distances, axis=1) > 1e-9, axis=1)
    np.testing.assert_allclose(
        parted.read("confidence/values")[untied],
        whole.read("confidence/values")[untied],
        atol=1e-6,
    )
    errors = [run.stages["weights"]["fitting_error"] for run in (parted, whole)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


@pytest.fixture
def small_partitions(monkeypatch):
    """Place two partitions, one about the rows furthest off, and one where no row is."""

    def place(sample, n_partitions, *, overlap, seed):
        by_column = np.argsort(sample[:, 0])
        centroids = sample[by_column[[0, len(sample) // 2, -1]]].astype(float)
        nowhere = np.full((1, sample.shape[1]), -1e9)
        reaches = np.full(4, 0.0 if overlap == 1 else np.inf)
        return Partitions(np.vstack([nowhere, centroids]), np.zeros(4), reaches)

    monkeypatch.setattr(Partitions, "balanced", place)


@pytest.mark.slow
def test_search__rows_in_small_partitions_are_repaired(small_partitions):
    X, y = spirals(600)
    X[:5] = 0.01 * blobs(5, 4) + [1e4, 0, 0, 0]
    run = fit(X, y, params(overlap=1))
    assert run.stages["neighbors"]["n_repaired"] == 5
    assert_true_neighbors(run, X)
    np.testing.assert_array_equal(neighbors(run)[0][:5], naive_neighbors(X, 10)[:5])
    record = run.stages["neighbors"]
    assert record["mean_distance"] == pytest.approx(neighbors(run)[1].mean(), rel=1e-12)
    assert left_behind(run) == []


def test_search__too_many_incomplete_rows_are_no_result(small_partitions, monkeypatch):
    X, y = spirals(600)
    X[:5] = 0.01 * blobs(5, 4) + [1e4, 0, 0, 0]
    monkeypatch.setattr("dask_nrbfn.stages.neighbors.MAX_TARGETS", 4)
    place = MemoryStore()
    with pytest.raises(RecallError) as caught:
        fit(X, y, params(overlap=1), place=place)
    assert caught.value.problem.startswith("5 rows have fewer than n_neighbors=10")
    assert "Lower n_partitions or raise overlap" in caught.value.remedy
    assert "neighbors" not in Run.open(place).stages


def test_search__refuses_values_beyond_single_precision():
    X, y = spirals(200)
    with pytest.raises(RecallError, match="too large for the single precision of the search"):
        fit(X * 2.0**200, y, params(neighbors="approximate", scale="none"))


def bits(run):
    arrays = ("neighbors/indices", "neighbors/distances", "weights/values")
    return [run.read(name).tobytes() for name in arrays]


@pytest.mark.slow
def test_search__stopped_while_it_repairs(small_partitions):
    X, y = spirals(500)
    X[:5] = 0.01 * blobs(5, 4) + [1e4, 0, 0, 0]
    dataset, whole = write_table(MemoryStore(), X, y, chunk_rows=70), CountingEngine()
    fit_run = partial(fit_dataset, dataset, params=params(overlap=1), min_recall=0.0)
    expected = bits(fit_run(MemoryStore(), engine=whole))
    for n_done in (0, whole.done["repair"] - 1):
        place, resumed = MemoryStore(), CountingEngine()
        with pytest.raises(StoppedError):
            fit_run(place, engine=CountingEngine(n_done, label="repair"))
        assert "partitions" in left_behind(Run.open(place))
        run = fit_run(place, engine=resumed)
        assert bits(run) == expected
        assert left_behind(run) == []
        # The targets are read and the parts are merged again.
        assert n_done + resumed.done["repair"] <= whole.done["repair"] + 2
        assert not resumed.done.keys() & {"partitions", "candidates"}


def test_search__no_memory_at_all_is_refused():
    engine = InlineEngine(memory_bytes=300 * 2**20)
    with pytest.raises(MemoryBudgetError, match=r"neighbors|partitions"):
        fit(*spirals(500), params(n_partitions=None), engine=engine)


# Few of the neighbours are in a row's own one of eight partitions, in ten dimensions.
POOR = FitParams(
    scale="none", n_neighbors=10, neighbors="exact", n_partitions=8, overlap=1, basis_size=30,
    alpha=1e-4,
)  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(900, 10))


@pytest.fixture(scope="module")
def dataset(rows):
    return write_table(MemoryStore(), rows, np.arange(900) % 2)


@pytest.fixture(scope="module")
def run(dataset):
    return fit_dataset(dataset, MemoryStore(), POOR, InlineEngine(), min_recall=0.0)


def test_recall__is_that_of_the_lists(run, rows):
    kth = np.sort(naive_distances(rows), axis=1)[:, 9:10]
    shares = (run.read("neighbors/distances") <= kth * (1 + 1e-9)).mean(axis=1)
    record = run.stages["recall"]
    # There are fewer than 1,000 rows, so that all are looked at.
    assert record["n_audited"] == 900
    assert record["recall"] == pytest.approx(shares.mean(), abs=1e-12)
    assert record["recall_standard_error"] == pytest.approx(shares.std(ddof=1) / 30, rel=1e-9)
    assert run.group("recall").get("parts") is None


def test_recall__an_exact_search_at_once_needs_no_audit():
    dataset = write_table(MemoryStore(), *spirals(200))
    engine = CountingEngine()
    run = fit_dataset(dataset, MemoryStore(), FitParams(neighbors="exact"), engine, min_recall=1.0)
    assert run.stages["recall"]["recall"] == 1.0
    assert run.stages["recall"]["n_audited"] == 0
    assert engine.done["recall"] == 0


def test_recall__below_the_floor(dataset):
    place = MemoryStore()
    for _ in range(2):
        # However often it is started: no stage more is done.
        with pytest.raises(RecallError) as caught:
            fit_dataset(dataset, place, POOR, InlineEngine())
        assert list(Run.open(place).stages) == ["columns", "neighbors", "recall"]
    found = Run.open(place).stages["recall"]["recall"]
    assert found < FitLimits.min_recall
    assert f"{found:.4f} +- " in caught.value.problem
    assert "but min_recall is 0.95" in caught.value.problem
    assert "overlap from 1 to 2" in caught.value.remedy
    assert "n_partitions from 8" in caught.value.remedy
    engine = CountingEngine()
    run = fit_dataset(dataset, place, POOR, engine, min_recall=found)
    assert list(run.stages) == [stage.name for stage in stages_of_run(run)]
    assert not engine.done.keys() & {"columns", "partitions", "candidates", "neighbors", "recall"}
    with pytest.raises(RecallError):
        fit_dataset(dataset, place, POOR, InlineEngine(), min_recall=0.99)
