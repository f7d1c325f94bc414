import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import RecallError
from dask_nrbfn.fit import stages_of_run
from dask_nrbfn.params import FitLimits, FitParams
from dask_nrbfn.storage.run import Run
from tests.neighbors.naive import naive_distances
from tests.stages.stopping import CountingEngine
from tests.tables import spirals, write_table

# Few of the neighbours are in a row's own one of eight partitions, in ten dimensions.
POOR = FitParams(
    n_neighbors=10, neighbors="exact", n_partitions=8, overlap=1, basis_size=30, alpha=1e-4
)


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


@pytest.mark.slow
def test_recall__a_sample_of_the_rows(run, dataset, monkeypatch):
    monkeypatch.setattr("dask_nrbfn.stages.exact_search.AUDITED_ROWS", 300)
    some = fit_dataset(dataset, MemoryStore(), POOR, InlineEngine(), min_recall=0.0)
    expected, audit = run.stages["recall"], some.stages["recall"]
    assert audit["n_audited"] == 300
    assert len(set(some.read("recall/rows").tolist())) == 300
    assert abs(audit["recall"] - expected["recall"]) < 4 * audit["recall_standard_error"]


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
