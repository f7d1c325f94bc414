"""Neighbours and confidence of drawn rows, against those of all rows."""

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.bases import requested_candidates
from dask_nrbfn.storage.group import open_group
from tests.reference import reference_confidence
from tests.stages.fits import fit_table
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import spirals, write_table


def params(**changes):
    chosen = {"n_neighbors": 6, "candidates": 80, "basis_size": 20, "alpha": 1e-4, "n_parts": 3}
    chosen |= {"scale": "none"}
    return FitParams(**(chosen | changes))


def fit(X, y, wanted=None, **options):
    return fit_table(X, y, wanted or params(), **options)


def results(run):
    names = ("neighbors/rows", "neighbors/indices", "neighbors/distances", "confidence/values")
    return [run.read(name) for name in (*names, "basis/rows", "weights/values")]


def test_candidates__have_the_neighbors_that_all_rows_have():
    X, y = spirals(300)
    run, whole = fit(X, y), fit(X, y, params(candidates="all"))
    rows, indices, distances, *_ = results(run)
    assert np.array_equal(indices, whole.read("neighbors/indices")[rows])
    assert np.array_equal(distances, whole.read("neighbors/distances")[rows])
    assert run.stages["recall"] | {"n_audited": 0, "recall": 1.0} == run.stages["recall"]
    # The width of confidence is the mean distance of the candidates.
    assert run.stages["neighbors"]["mean_distance"] == pytest.approx(distances.mean())
    assert run.stages["neighbors"]["n_candidates"] == len(rows) == 80
    chosen = run.read("basis/rows")
    assert np.isin(chosen, rows).all()
    worst = np.sort(run.read("confidence/values"))[:20]
    found = run.read("confidence/values")[np.searchsorted(rows, chosen)]
    assert np.array_equal(np.sort(found), worst)
    assert "partitions" not in open_group(run.location, kind="run")


def test_candidates__a_resumed_search_names_its_parts_before_any_other_task(caplog):
    dataset, place = write_table(MemoryStore(), *spirals(300), chunk_rows=70), MemoryStore()
    with pytest.raises(StoppedError):
        # The targets and one of three parts.
        fit_dataset(dataset, place, params(), CountingEngine(2, label="candidates"))
    resumed = CountingEngine()
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        run = fit_dataset(dataset, place, params(), resumed)
    assert "candidates: 1 of 3 parts found" in caplog.messages[1]
    # Two parts, and their merge.
    assert resumed.done["candidates"] == 3
    whole = fit_dataset(dataset, MemoryStore(), params(), CountingEngine())
    assert all(map(np.array_equal, results(run), results(whole)))


def test_candidates__of_labelled_rows_among_others():
    X, y = spirals(300)
    labelled = np.random.default_rng(0).random(300) < 0.7
    run = fit(X, np.where(labelled, y, -1), params(candidates=60), unlabelled=-1)
    rows = run.read("confidence/rows")
    assert labelled[rows].all()
    assert len(rows) == 60
    of_labelled = np.flatnonzero(labelled)
    assert np.array_equal(of_labelled[run.read("neighbors/rows")], rows)
    assert np.isin(run.read("basis/rows"), rows).all()


def test_confidence__of_candidates_is_that_of_the_naive_one():
    X, y = spirals(200)
    run = fit(X, y, params(candidates=199))
    # But for one row all are there, so the width is all but the same.
    naive = reference_confidence(X, y, n_neighbors=6)[run.read("neighbors/rows")]
    assert run.read("confidence/values") == pytest.approx(naive, abs=0.02)


@pytest.mark.parametrize(
    ("n_rows", "basis_size", "expected"),
    [(99_999, 10, None), (100_000, 10, 50_000), (200_000, 5000, 100_000), (10**6, None, None)],
)
def test_candidates__auto_is_at_most_half_of_the_rows(n_rows, basis_size, expected):
    table = write_table(MemoryStore(), *spirals(30)).with_n_rows(n_rows)
    resolved = FitParams(basis_size=basis_size).resolve_auto(numbers=False)
    assert requested_candidates(resolved, table) == expected
