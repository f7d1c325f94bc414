"""What stages declare that they need and leave, compared with what they read and write."""

from collections import defaultdict

import numpy as np
import pytest
import zarr
from scipy import sparse
from zarr.storage import MemoryStore

import dask_nrbfn.fit
from dask_nrbfn import (
    FitParams,
    InlineEngine,
    TuneParams,
    embed_dataset,
    fit_dataset,
    given_basis,
    ingest_arrays,
    tune_dataset,
)
from dask_nrbfn.fit import stages_of_run

ALPHAS = (1e-3, 1e-6)
LOSSES = TuneParams(effort="quick", losses=("squared", "logistic"), alphas=ALPHAS, folds=2)
SEARCHED = TuneParams(alphas=ALPHAS, folds=2, width_factors=(1.0,), localities=(0.0, 1e-4))
SPANS = TuneParams(effort="quick", components=(3, 5), alphas=ALPHAS, width_factors=(1.0,))
GIVEN = np.random.default_rng(3).normal(size=(12, 5))
FITS = {
    "classes": ("plain", {}),
    "partitions": ("plain", {"neighbors": "approximate", "n_partitions": 4, "n_neighbors": 5}),
    "candidates": ("plain", {"candidates": 100, "basis_size": 20, "n_neighbors": 5}),
    "learned": ("plain", {"scale": "learned", "basis": "random", "locality": 1e-6, "n_parts": 4}),
    "clusters": (
        "unlabelled",
        {"basis": "kmeans", "features": "plain", "penalty": "clusters", "alpha": 1e-6},
    ),
    "pruned": (
        "unlabelled",
        {"basis": "kmeans", "basis_size": 30, "features": "plain", "penalty": "clusters"}
        | {"locality": 1e-6, "n_neighbors": 5, "prune": 15, "loss": "logistic", "alpha": 1e-6},
    ),
    "locality": ("unlabelled", {"n_neighbors": 5, "locality": 1e-6}),
    "numbers": ("numbers", {"alpha": 1e-8, "prune": 20, "penalty": "kernel"}),
    "loss": ("plain", {"loss": "logistic", "basis_size": 30, "alpha": 1e-6}),
    "sparse": (
        "sparse",
        {"scale": "standard", "basis_size": 30, "n_neighbors": 5, "locality": 1e-6}
        | {"neighbors": "approximate", "n_partitions": 4},
    ),
    "components": ("plain", {"components": 6, "basis_size": 40}),
    "cells": ("plain", {"cells": 3, "basis_size": 20, "scale": "learned", "metric_rounds": 1}),
}
CLUSTERS = TuneParams(
    effort="quick", penalties=("weights", "clusters"), features=("plain",), width_factors=(1.0,)
)
TUNINGS = {
    "losses": ("plain", LOSSES, {}),
    "clusters tuned": ("plain", CLUSTERS, {"basis": "kmeans"}),
    "search": ("unlabelled", SEARCHED, {}),
    "cells tuned": ("unlabelled", LOSSES, {"cells": "auto", "basis_size": 30}),
    "spans": ("numbers", SPANS, {}),
    "given": ("plain", LOSSES, vars(given_basis(FitParams(), GIVEN))),
}
NAMES = [*FITS, *TUNINGS, "embedding"]


class RecordingStore(MemoryStore):
    """A store that records which arrays a stage reads and writes.

    zarr makes copies of it: each run has a class of its own, on which the record is.
    """

    @classmethod
    def begin(cls):
        record = {"stage": None, "read": defaultdict(set), "written": defaultdict(set)}
        return type("RunStore", (cls,), record)()

    async def get(self, key, *arguments, **options):
        self._record(self.read, key)
        return await super().get(key, *arguments, **options)

    async def set(self, key, *arguments, **options):
        self._record(self.written, key)
        return await super().set(key, *arguments, **options)

    def _record(self, touched, key):
        name, chunk, _ = key.partition("/c/")
        if chunk and self.stage:
            before, parts, _ = name.partition("/parts/")
            touched[self.stage].add(f"{before}/parts" if parts else name)


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(7)
    y = rng.integers(0, 3, 300)
    X = rng.normal(0, 3, (3, 5))[y] + rng.normal(0, 1.3, (300, 5))
    numbers = np.column_stack([2 * X[:, 0], X[:, 1] ** 2])
    rows = sparse.random_array((300, 40), density=0.2, rng=rng, format="csr")
    unlabelled = np.where(np.arange(300) % 5, y, -1)
    return {
        "plain": ingest_arrays(X, y, MemoryStore(), chunk_rows=64),
        "numbers": ingest_arrays(X, None, MemoryStore(), target=numbers, chunk_rows=64),
        "unlabelled": ingest_arrays(X, unlabelled, MemoryStore(), unlabelled=-1, chunk_rows=64),
        "sparse": ingest_arrays(rows, y, MemoryStore(), chunk_rows=64),
    }


@pytest.fixture(scope="module")
def finished(tables):
    """Give a function that returns a run of a kind, with what each of its stages has touched."""
    runs, run_stage = {}, dask_nrbfn.fit.run_stage

    def finish(name):
        store, engine = RecordingStore.begin(), InlineEngine()

        def recorded(stage, *arguments, **options):
            type(store).stage = stage.name
            run_stage(stage, *arguments, **options)
            type(store).stage = None

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dask_nrbfn.fit, "run_stage", recorded)
            if name in FITS:
                table, asked = FITS[name]
                return fit_dataset(tables[table], store, FitParams(**asked), engine)
            if name in TUNINGS:
                table, tuning, asked = TUNINGS[name]
                params = FitParams(**{"basis_size": 30} | asked)
                basis = GIVEN if params.basis_is_given else None
                return tune_dataset(tables[table], store, params, tuning, engine, basis=basis)
            return embed_dataset(tables["plain"], store, FitParams(basis_size=40), engine)

    def run_of(name):
        if name not in runs:
            runs[name] = finish(name)
        return runs[name]

    return run_of


def covered(name, declared):
    """Return whether an array is declared, or in a declared group."""
    return any(
        name == each or name.startswith(each if each.endswith("-") else f"{each}/")
        for each in declared
    )


def stored(stage, run):
    return {*stage.leaves(run), *stage.passes, *stage.scratch, f"{stage.name}/parts"}


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("name", NAMES)
def test_stages__touch_and_leave_what_they_declare(finished, name):
    run = finished(name)
    group, store, stages = zarr.open_group(run.location, mode="r"), run.location, stages_of_run(run)
    for stage in stages:
        own = stored(stage, run)
        assert {each for each in store.written[stage.name] if not covered(each, own)} == set()
        others = {each for each in store.read[stage.name] if not covered(each, own)}
        assert {each for each in others if not covered(each, stage.needs)} == set()
    assert all(each in group for stage in stages for each in stage.leaves(run))
    arrays = {
        key for key, member in group.members(max_depth=None) if isinstance(member, zarr.Array)
    }
    kept = {each for stage in stages for each in (*stage.leaves(run), *stage.passes)}
    assert {each for each in arrays if not covered(each, kept | {"given"})} == set()
