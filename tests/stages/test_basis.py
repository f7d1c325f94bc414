import logging
from dataclasses import asdict, replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.fit import largest_basis, stages_in
from dask_nrbfn.neighbors.plan import NeighborSearch
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages import basis
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import FitSizes, StageJob
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.run import Run
from tests.tables import write_table

SEARCH = NeighborSearch(method="exact", n_partitions=1, threads=1)


def begin(X, y, params, **options):
    dataset = write_table(MemoryStore(), X, y, **options)
    run = Run.start(MemoryStore(), dataset, params, {})
    run.decide("neighbors", asdict(SEARCH))
    return run, dataset


def with_confidence(X, y, confidence, params, **options):
    """Begin a run whose rows have the confidence given."""
    run, dataset = begin(X, y, params.resolve_auto(numbers=False), **options)
    hashes = hash_rows(X, seed=params.random_state)
    run.require_row_array("confidence/values", np.float64)
    run.require_row_array("confidence/tiebreak", np.uint64)
    write_array(run.group("confidence"), "codes", dataset.codes(), "row")
    for start, stop in run.spans:
        run.write_rows("confidence/values", start, confidence[start:stop])
        run.write_rows("confidence/tiebreak", start, hashes[start:stop])
    n_below = int(np.count_nonzero(confidence < params.confidence_threshold))
    run.finish_stage("confidence", {"n_below_threshold": n_below})
    return run, dataset


def context_of(dataset, params, engine):
    return replace(FitContext.resolve(dataset, params, engine), search=SEARCH)


def chosen(X, y, confidence, params, **options):
    """Return the basis rows and the record of the stage."""
    engine = options.pop("engine", InlineEngine())
    run, dataset = with_confidence(X, y, confidence, params, **options)
    most = largest_basis(context_of(dataset, run.params, engine))
    record = BASIS.compute(StageJob(run, dataset, engine, most))
    rows = run.read("basis/rows")
    np.testing.assert_array_equal(run.read("basis/values"), X[rows])
    assert record["n_basis"] == len(rows)
    return rows, record


def distinct_rows(n_rows=300, seed=0):
    """Draw distinct rows of three classes, with confidences of which half are 1."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n_rows, 3)), rng.integers(0, 3, n_rows)
    return X, y, np.where(rng.random(n_rows) < 0.5, 1.0, rng.random(n_rows))


def engine_for(n_basis, dataset):
    """Return an engine with the memory for so many basis rows."""
    context = context_of(dataset, FitParams(), InlineEngine())
    sizes = FitSizes.of(context, n_basis=n_basis)
    growing = [stage for stage in stages_in(context) if stage.grows_with_basis]
    return InlineEngine(memory_bytes=max(stage.cost(sizes).held_bytes for stage in growing))


@pytest.mark.parametrize("threshold", [0.9, 1.0])
def test_basis__without_a_size_the_threshold_decides(threshold, caplog):
    X, y, confidence = distinct_rows()
    rows, record = chosen(X, y, confidence, FitParams(confidence_threshold=threshold))
    assert rows.tolist() == np.flatnonzero(confidence < threshold).tolist()
    assert record == {"n_basis": len(rows), "n_below_threshold": len(rows)}
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_basis__uniform_draws_below_the_threshold():
    X, y, confidence = distinct_rows()
    y[confidence < 0.9] = np.arange(np.count_nonzero(confidence < 0.9)) % 3
    params = FitParams(basis_size=40, basis_rule="uniform")
    draws = [chosen(X, y, confidence, replace(params, random_state=seed))[0] for seed in (0, 1)]
    for rows in draws:
        assert len(rows) == 40
        assert confidence[rows].max() < 0.9
        # The 40 least confident rows of some 135, evenly spread to 0.9, lie below 0.3.
        assert confidence[rows].max() > 0.6
    assert draws[0].tolist() != draws[1].tolist()


def test_basis__uniform_is_filled_up_from_beyond():
    X, y, confidence = distinct_rows()
    confidence = np.where(np.arange(300) < 30, 0.5, 0.9 + confidence / 10)
    params = FitParams(basis_size=100, basis_rule="uniform")
    rows, _ = chosen(X, y, confidence, params)
    least = np.sort(confidence)[99]
    assert set(np.flatnonzero(confidence < least)) <= set(rows)


@pytest.mark.parametrize("rule", ["least-confident", "uniform"])
def test_basis__capped_by_the_memory_at_hand(caplog, rule):
    X, y, confidence = distinct_rows()
    dataset = write_table(MemoryStore(), X, y)
    engine = engine_for(60, dataset)
    assert largest_basis(context_of(dataset, FitParams(), engine)) == 60
    rows, record = chosen(X, y, confidence, FitParams(basis_rule=rule), engine=engine)
    n_below = np.count_nonzero(confidence < 0.9)
    assert record == {"n_basis": 60, "n_below_threshold": n_below, "cap": 60}
    expected, _ = chosen(X, y, confidence, FitParams(basis_rule=rule, basis_size=60))
    assert rows.tolist() == expected.tolist()
    (warning,) = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
    assert (
        f"{n_below} rows are below the threshold 0.9, but the memory allows at most 60 basis "
        in (warning.getMessage())
    )


def test_basis__capped_without_a_size(caplog, monkeypatch):
    monkeypatch.setattr(basis, "MOST_FOUND", 40)
    X, y, confidence = distinct_rows()
    run, dataset = with_confidence(X, y, confidence, FitParams())
    job = StageJob(run, dataset, InlineEngine(), len(X))
    n_below = np.count_nonzero(confidence < 0.9)
    assert BASIS.compute(job) == {"n_basis": 40, "n_below_threshold": n_below, "cap": 40}
    (warning,) = [entry for entry in caplog.records if entry.levelno == logging.WARNING]
    assert "without a size a basis has at most 40 basis rows" in warning.getMessage()
