"""What a fit is: requests are resolved, stored, narrowed by records, and asked for again."""

import json
import pickle
from dataclasses import replace

import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.params import FitParams, Option, TuneParams
from dask_nrbfn.spec import TUNES, Spec
from dask_nrbfn.stages.resolve import resolve
from tests.stages.fits import ENGINE
from tests.tables import spirals, write_table

SIZED = FitParams(basis_size=20, n_neighbors=5)
REQUESTS = {
    "fit": (FitParams(), None),
    "fit with an alpha": (FitParams(alpha=1e-6), None),
    "cells": (FitParams(basis_size=9, cells=3), None),
    "tuning": (FitParams(), TuneParams()),
    "quick": (FitParams(scale="unit"), TuneParams(effort="quick", kernels=("matern32",))),
    "thorough, sized": (SIZED, TuneParams(effort="thorough", bases=("random", "sknn"))),
    "one combination": (
        SIZED,
        TuneParams(effort="quick", kernels=("laplacian",), width_factors=(0.5,), scales=("none",)),
    ),
    "components": (SIZED, TuneParams(components=(3, 5), localities=(0.1, 0.0, 0.1))),
}


@pytest.fixture(scope="module")
def table():
    return write_table(MemoryStore(), *spirals(120))


@pytest.mark.parametrize("name", REQUESTS)
def test_spec__is_stored_and_read_with_the_same_values(table, name):
    spec = resolve(table, *REQUESTS[name])
    stored = json.loads(json.dumps(spec.to_dict()))
    assert Spec.from_dict(stored) == spec == pickle.loads(pickle.dumps(spec))
    assert hash(Spec.from_dict(stored)) == hash(spec)


def test_spec__of_a_fit_that_chooses_nothing_has_one_of_everything(table):
    spec = resolve(table, FitParams(alpha=1e-6, kernel="laplacian"))
    assert all(
        getattr(spec, name) == (getattr(spec.params, of_fit),) for name, of_fit in TUNES.items()
    )
    assert len(spec.combinations) == 1
    assert spec.ridges == [Ridge("weights", 1e-6)]
    assert (spec.n_folds, spec.n_held_out, spec.is_judged) == (1, 0, False)


def test_narrowed__a_search_leaves_its_combination_and_the_ridges_next_to_its_best(table):
    spec = resolve(table, FitParams(), TuneParams(effort="thorough"))
    chosen = {"scale": "standard", "basis": "random", "basis_rule": "uniform", "features": "plain"}
    chosen |= {"kernel": "laplacian", "width_factor": 0.5, "basis_size": 32}
    left = {"penalties": ["kernel"], "alphas": [1e-3, 1e-4]}
    after = spec.narrowed({"chosen": chosen, "narrowed": left, "seconds": 1.0})
    assert {name: getattr(after.params, name) for name in chosen} == chosen
    assert after.ridges == [Ridge("kernel", 1e-3), Ridge("kernel", 1e-4)]
    assert (len(after.combinations), after.chooses_size, after.is_searched) == (1, False, False)
    assert (after.losses, after.folds, after.mode) == (spec.losses, spec.folds, "tune")


def test_narrowed__a_chosen_ridge_keeps_its_place_among_those_that_were_tried(table):
    spec = resolve(table, FitParams())
    after = spec.narrowed({"chosen": {"alpha": 1e-5, "penalty": "weights"}})
    assert (after.ridges, after.params.alpha) == (spec.ridges, 1e-5)
    assert after.narrowed({"n_rows": 3}) is after


def test_changes__name_what_was_given_once():
    spec = Spec.of(SIZED.resolve_auto(numbers=False), mode="tune")
    other = spec.choosing(scale="standard").trying(alphas=(0.1,))
    assert spec.changes(spec) == []
    assert spec.changes(other) == ["`scale`=none (now standard)", "`alphas`=['auto'] (now [0.1])"]
    asked = replace(spec, params=spec.params.with_checked(n_parts=3))
    assert asked.changes(spec) == []
    assert spec.changes(asked) == ["`n_parts`=None (now 3)"]


def test_run__its_spec_follows_its_records(table):
    run = fit_dataset(table, MemoryStore(), FitParams(basis_size=9), ENGINE)
    alpha = run.stages["weights"]["chosen"]["alpha"]
    assert (run.begun.params.alpha, run.spec.params.alpha) == ("auto", alpha)
    run.forget("weights", ())
    run.record(stages={name: each for name, each in run.stages.items() if name == "columns"})
    assert run.spec == run.begun


def test_fit__checks_every_option_about_once(table, monkeypatch):
    checked, check = [], Option.check

    def count(self, name, value):
        checked.append(name)
        check(self, name, value)

    monkeypatch.setattr(Option, "check", count)
    fit_dataset(table, MemoryStore(), FitParams(), ENGINE)
    assert len(checked) <= 100


def test_resolve__a_tuning_of_an_embedding_is_refused(table):
    with pytest.raises(ParameterError, match="learns nothing to tune by"):
        resolve(table, FitParams(), TuneParams(), embeds=True)
