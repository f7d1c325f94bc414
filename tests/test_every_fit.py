"""What every kind of fit promises: any chunks, parts and engine, any stop and any damage."""

import random
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy.sparse import csr_array
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import columns, moments, refine
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.storage import layout
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.stages.stopping import CountingEngine, StoppedError, middles
from tests.tables import copy_of, spirals, surfaces, write_table

GAUSSIAN = FitParams(kernel="gaussian", scale="none", alpha=1e-3, n_parts=2)
DRAWN = replace(GAUSSIAN, basis="random", basis_size=20, width_factor=0.3)
PLAIN = replace(DRAWN, features="plain")
CENTRES = replace(PLAIN, basis="kmeans")
SEARCHED = replace(GAUSSIAN, basis_size=20, n_neighbors=6, neighbors="exact", n_parts=3)
TUNING = TuneParams(
    effort="quick", folds=2, alphas=(1e-2, 1e-4), width_factors=(1.0, 0.3), search_basis=10
)
GIVEN = spirals(12, seed=7)[0]


class Kind(NamedTuple):
    """Parameters, the kind of rows that they are fitted to, and what is done beside."""

    params: FitParams
    rows: str = "classes"
    tuning: TuneParams | None = None
    embeds: bool = False
    judged: bool = False
    basis: np.ndarray | None = None


# Together they have every stage, loss, penalty, basis, scale, kind of rows and kind of cells. The
# first one is the fast case, so it has no search of neighbours.
KINDS = {
    "drawn": Kind(replace(DRAWN, class_weight="balanced"), "weighted"),
    "few labels": Kind(replace(SEARCHED, kernel="auto", scale="auto"), "unlabelled"),
    "partitions, locality": Kind(
        replace(SEARCHED, n_partitions=3, overlap=2, locality=1e-2, features="plain")
    ),
    "candidates, components": Kind(replace(SEARCHED, candidates=60, components=6)),
    "given, pruned": Kind(
        replace(given_basis(GAUSSIAN, GIVEN), features="plain", prune=8),
        basis=GIVEN,
    ),
    "centres": Kind(replace(CENTRES, scale="standard", penalty="clusters"), "unlabelled"),
    "learned": Kind(replace(PLAIN, scale="learned", metric_rounds=2, penalty="kernel"), "weighted"),
    "ranks": Kind(replace(PLAIN, scale="rank"), "unlabelled"),
    "l1, locality": Kind(
        replace(PLAIN, kernel="laplace-l1", scale="standard", locality=1e-2, n_neighbors=6)
    ),
    "sparse": Kind(
        replace(SEARCHED, scale="unit", features="plain", loss="squared-hinge"), "sparse"
    ),
    "numbers": Kind(replace(CENTRES, scale="standard"), "numbers"),
    "embedding": Kind(replace(DRAWN, components=3), embeds=True),
    "tuned scales": Kind(
        DRAWN,
        tuning=replace(
            TUNING,
            kernels=("laplace-l1", "gaussian"),
            scales=("none", "learned"),
            components=(3, 12),
        ),
    ),
    "tuned penalties": Kind(
        CENTRES,
        tuning=replace(TUNING, penalties=("kernel", "clusters", "weights"), features=("plain",)),
    ),
    "tuned bases": Kind(
        replace(SEARCHED, n_parts=2),
        tuning=replace(TUNING, bases=("sknn", "random"), scales=("standard", "learned")),
        judged=True,
    ),
    "tuned losses": Kind(
        PLAIN,
        tuning=replace(TUNING, width_factors=(0.3,), losses=("squared", "logistic", "hinge")),
    ),
    "cells": Kind(replace(PLAIN, cells=3, basis_size=10, scale="learned"), "weighted"),
    "cells of few labels": Kind(replace(SEARCHED, cells=3, class_weight="balanced"), "unlabelled"),
    "cells of numbers": Kind(replace(CENTRES, cells=3, penalty="clusters"), "numbers"),
    "tuned cells": Kind(
        replace(PLAIN, cells="auto", basis_size=10),
        tuning=replace(TUNING, scales=("rank", "learned")),
    ),
}


@pytest.fixture(scope="module")
def kind(request):
    """Give a kind of fit that cuts small tables into parts, and ends after few passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_DEFAULT_PART_ROWS", 40)
        patch.setattr(moments, "_PART_ROWS", 50)
        patch.setattr(refine, "MAX_PASSES", 3)
        patch.setattr(refine, "MAX_JUDGED_PASSES", 3)
        patch.setattr(columns, "_FACTORS", {"gaussian": (0.5, 1.0), "laplace-l1": (0.5,)})
        yield KINDS[request.param]


class Whole(NamedTuple):
    """A fit that nothing stopped: its datasets, its run, and how many tasks each label had."""

    tables: tuple
    run: Run
    done: Counter


@pytest.fixture(scope="module")
def whole(kind):
    # The last of the chunks of 50 rows, and of the parts, is a shorter one.
    engine, tables = CountingEngine(), write(kind, None, chunk_rows=50)
    return Whole(tables, finish(kind, tables, MemoryStore(), engine), engine.done)


def rows_of(kind, seed=0):
    """Return what `write_table` takes: rows, targets and options."""
    X, y = spirals(120, seed=seed)
    X += np.random.default_rng(seed).normal(scale=0.2, size=X.shape)
    match kind.rows:
        case "numbers":
            X, Y = surfaces(120, seed=seed)
            return {"X": X, "target": Y}
        case "weighted":
            return {"X": X, "y": y, "weights": np.random.default_rng(1).uniform(0.5, 3, 120)}
        case "unlabelled":
            return {"X": X, "y": np.where(np.arange(120) % 3, y, -1), "unlabelled": -1}
        case "sparse":
            return {"X": csr_array(np.where(X < 0, 0.0, X) + 0.0), "y": y}
    return {"X": X, "y": y}


def write(kind, place, **options):
    """Write the rows of a kind of fit under a place, or in memory."""
    at = (lambda name: MemoryStore()) if place is None else (lambda name: place / name)
    dataset = write_table(at("rows"), **rows_of(kind), **options)
    judged = write_table(at("judged"), *spirals(60, seed=3)) if kind.judged else None
    return dataset, judged


def finish(kind, tables, place, engine=None, **changes):
    """Return the run that a fit ends with."""
    dataset, judged = tables
    params, engine = replace(kind.params, **changes), engine or InlineEngine()
    options = {"tuning": kind.tuning, "validation": judged, "basis": kind.basis}
    options |= {"embeds": kind.embeds, "min_recall": 0.0}
    return fit_dataset(dataset, place, params, engine, **options)


def digest(run):
    return Model.load(run.location).digest()


def by_kind(names):
    return pytest.mark.parametrize("kind", names, indirect=True, scope="module")


# The sums of a tuning are those of its candidates, each of a kind that is here too.
SUMMED = [
    name
    for name, kind in KINDS.items()
    if kind.tuning is None or name in ("tuned bases", "tuned cells")
]


@pytest.mark.fast_cases(1)
@by_kind(SUMMED)
def test_every_fit__any_parts(kind, whole):
    rows = spirals(40, seed=9)[0] if kind.rows != "numbers" else surfaces(40, seed=9)[0]
    scores = Model.load(whole.run.location).scores(rows)
    run = finish(kind, whole.tables, MemoryStore(), n_parts=9)
    found = Model.load(run.location).scores(rows)
    np.testing.assert_allclose(found, scores, atol=1e-6 * np.abs(scores).max())


# An embedding has no targets, and weights of other losses are no function of sums.
UPDATED = [name for name in KINDS if name not in ("embedding", "sparse", "tuned losses")]


@pytest.mark.fast_cases(1)
@by_kind(UPDATED)
def test_every_fit__added_and_forgotten_rows_leave_the_fit(kind, whole):
    X, store = whole.tables[0].take(np.arange(40)), copy_of(whole.run.location)
    scores, others = Model.load(store).scores(X), write_table(MemoryStore(), **rows_of(kind, 5))
    update_run(store, others, InlineEngine())
    changed = Model.load(store).scores(X)
    update_run(store, others, InlineEngine(), forget=True)
    found, size = Model.load(store).scores(X), np.abs(scores).max()
    assert np.abs(changed - scores).max() > 1e-3 * size
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-9 * size)


def stops(kind, done):
    """Draw stages in the middle of which a fit is stopped, as numbers of tasks that were done."""
    return random.Random(repr(kind.params)).sample(middles(done), 2)


def stop(kind, tables, place, n_done):
    """Leave a fit as it is where so many tasks are done."""
    with pytest.raises(StoppedError):
        finish(kind, tables, place, CountingEngine(n_done))


@pytest.mark.fast_cases(1)
@by_kind(SUMMED)
def test_every_fit__stopped_in_any_stage_ends_with_the_same_bits(kind, whole):
    n_done, _ = stops(kind, whole.done)
    place, rest = MemoryStore(), CountingEngine()
    stop(kind, whole.tables, place, n_done)
    run = finish(kind, whole.tables, place, rest)
    assert digest(run) == digest(whole.run)
    assert sorted(run.stored) == sorted(whole.run.stored)
    # Finished parts are kept; tasks of one result, such as the draw of a sample, are repeated.
    assert n_done + rest.done.total() - whole.done.total() <= 3


def harm(rng, files):
    """Flip a bit of a file, cut it or take it away; return what was done."""
    path = rng.choice(sorted(path for path in files if path.is_file() and path.stat().st_size))
    content, harmed = path.read_bytes(), rng.choice(("flip", "cut", "remove"))
    if harmed == "remove":
        path.unlink()
    elif harmed == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return f"{harmed} {path}"


@pytest.mark.fast_cases(1)
@by_kind(KINDS)
def test_every_fit__damaged_while_stopped_and_after_its_end(kind, whole, tmp_path):
    # One chunk of all rows, where `whole` has three.
    tables, place, rng = write(kind, tmp_path), tmp_path / "run", random.Random(0)
    _, n_done = stops(kind, whole.done)
    stop(kind, tables, place, n_done)
    harmed = [harm(rng, [path for path in place.rglob("*") if path.parent != place])]
    assert digest(finish(kind, tables, place)) == digest(whole.run), (n_done, harmed)
    harmed += [harm(rng, place.rglob("c/**/*")) for _ in range(4)]
    finish(kind, tables, place)
    assert digest(Run.open(place)) == digest(whole.run), harmed
