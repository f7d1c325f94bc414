"""The basis size that a tuning chooses, and its last comparison of combinations."""

from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands import plan
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.spec import Combination, Spec
from dask_nrbfn.stages import cost, search
from dask_nrbfn.stages.resolve import resolve_tuning
from dask_nrbfn.stages.search import SEARCH, Final, finalists, smallest_of, winner_of
from tests.stages.fits import fit_table
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import spirals, surfaces, write_table

PARAMS = FitParams(basis="random", n_neighbors=5, n_parts=2)
QUICK = TuneParams(
    effort="quick", folds=3, alphas=(1e-3, 1e-5), width_factors=(0.5,), features=("plain",)
)


CHEAP = search._CHEAP


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    monkeypatch.setattr(search, "_FIRST_SIZES", (4, 8, 16))
    monkeypatch.setattr(search, "_CHEAP", 4)


def combination(scale="standard", kernel="gaussian", width_factor=1.0):
    return Combination(scale, "random", "uniform", "plain", kernel, width_factor)


def final(losses, *, n_basis=10, smooth=0.0, scale="standard", weights=None):
    weights = np.ones(len(losses)) if weights is None else np.asarray(weights)
    both = np.stack([losses, np.full(len(losses), smooth)])
    return Final(both, weights / weights.sum(), combination(scale), {"n_basis": n_basis})


def tune(X, y, params=PARAMS, tuning=QUICK):
    return fit_table(X, y, params, tuning=tuning)


def noisy(n_rows, flipped):
    """Return two classes on either side of a line, a share of the labels flipped."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 2))
    return X, (X[:, 0] > 0) ^ (rng.random(n_rows) < flipped)


def test_gain__is_of_the_same_rows_and_weighted():
    rng = np.random.default_rng(0)
    weights = rng.random(50)
    first, second = rng.random((2, 50))
    gains, errors = final(first, weights=weights).gains_over(final(second, weights=weights))
    gain, error = gains[0], errors[0]
    shares = weights / weights.sum()
    assert gain == pytest.approx(np.average(second - first, weights=weights))
    variance = np.sum(shares**2 * (second - first - gain) ** 2) / (1 - np.sum(shares**2))
    assert error == pytest.approx(np.sqrt(variance))
    losses = np.stack([first, second])
    errors = final(losses[0]).gains_over(final(losses[1]))[1]
    assert errors[0] == pytest.approx(np.std(losses[1] - losses[0], ddof=1) / np.sqrt(50))


def test_smallest__is_within_one_standard_error():
    losses = np.zeros((3, 100))
    losses[0, :30] = losses[1, 2:13] = losses[2, :10] = 1
    curve = [final(each, n_basis=size) for each, size in zip(losses, (4, 8, 16), strict=True)]
    assert smallest_of(curve) is curve[1]


def test_smallest__up_to_256_rows_only_the_loss_decides(monkeypatch):
    monkeypatch.setattr(search, "_CHEAP", CHEAP)
    losses = np.zeros((4, 100))
    for place, n_wrong in enumerate((12, 11, 10, 9)):
        losses[place, 10 * place : 10 * place + n_wrong] = 1
    curve = [
        final(each, n_basis=size) for each, size in zip(losses, (16, 256, 257, 512), strict=True)
    ]
    assert smallest_of(curve) is curve[1]


def test_smallest__probabilities_are_close_to_the_best_too():
    losses = np.arange(100) % 2
    curve = [final(losses, n_basis=4, smooth=0.2), final(losses, n_basis=8, smooth=0.1)]
    assert smallest_of(curve) is curve[0]
    curve[0].losses[0, 0] = 1
    assert smallest_of(curve) is curve[1]


@pytest.mark.parametrize(("n_wrong", "scale"), [(11, "standard"), (30, "learned")])
def test_winner__equal_columns_unless_learned_ones_gain(n_wrong, scale):
    losses = np.zeros((2, 100))
    losses[0, :10] = losses[1, 2 : 2 + n_wrong] = 1
    learned = final(losses[0], scale="learned", smooth=0.1)
    equal = final(losses[1], smooth=0.2)
    assert winner_of([learned, equal]).combination.scale == scale


def test_finalists__are_the_best_of_each_kind_and_one_of_equal_columns():
    kernels = ("gaussian", "laplacian", "matern32", "matern52")
    learned = [combination("learned", kernel) for kernel in kernels]
    wider = [replace(each, width_factor=2.0) for each in learned]
    equal = [combination("none"), combination("standard")]
    assert finalists([*learned, *wider, *equal]) == [*learned[:3], equal[0]]
    assert finalists([equal[1], *learned]) == [equal[1], *learned[:2]]


def test_size__is_chosen_unless_it_is_said():
    assert resolve_tuning(PARAMS, QUICK).chooses_size
    for changes in ({"basis_size": 9}, {"confidence_threshold": 0.8}, {"components": 3}):
        assert not resolve_tuning(replace(PARAMS, **changes), QUICK).chooses_size
    assert not Spec.of(PARAMS).chooses_size


@pytest.mark.slow
def test_size__few_rows_for_noisy_labels_and_more_for_a_winding_border(monkeypatch):
    monkeypatch.setattr(search, "_FIRST_SIZES", (8, 32, 128))
    flat, winding = tune(*noisy(300, 0.3)), tune(*spirals(300, n_features=2))
    sizes = [run.chosen_params.basis_size for run in (flat, winding)]
    assert sizes == [8, 32]
    assert [each["n_basis"] for each in SEARCH.recorded(winding).curve] == [8, 32, 128]
    assert winding.read("basis/rows").shape == (32,)


DOUBLING = replace(QUICK, effort="normal", scales=("none",), kernels=("gaussian",), folds=2)


def test_size__doubles_while_it_gains():
    run = tune(*spirals(300, n_features=2), tuning=DOUBLING)
    curve = SEARCH.recorded(run).curve
    assert {each["basis"] for each in curve} == {"random"}
    sizes = [each["n_basis"] for each in curve]
    assert sizes == [4 * 2**doublings for doublings in range(len(sizes))]
    assert 32 <= max(sizes) <= 150
    best = min(curve, key=lambda each: each["error_rate"])
    assert run.chosen_params.basis_size <= best["n_basis"]


def test_size__stops_where_two_sizes_have_no_error():
    X, Y = surfaces(300)
    curve = SEARCH.recorded(tune(X, 0 * Y, tuning=DOUBLING)).curve
    assert {each["relative_error"] for each in curve} == {0}
    assert {each["n_basis"] for each in curve} == {4, 8, 16, 32}


def test_time_limit__fits_the_best_network_so_far(caplog):
    caplog.set_level("INFO", logger="dask_nrbfn")
    tuning = replace(QUICK, effort="normal", width_factors=None, search_basis=16)
    (X, y), place = spirals(4100), MemoryStore()
    run = fit_table(X, y, PARAMS, tuning=tuning, place=place, of_fit={"time_limit": 0.0})
    of_search = run.stages["search"]
    assert run.stages["metric"]["stopped"] == of_search["stopped"] == "the time limit"
    assert len({each["round"] for each in of_search["tried"]}) == 1 < len(of_search["rounds"])
    assert run.chosen_params.basis_size == 4
    assert run.stages["cells"]["n_cells"] == 1
    assert not of_search["finals"]
    assert "model" in run.stages
    assert any("s expected: " in each and " systems, " in each for each in caplog.messages)
    # The limit is no part of the identity of the run.
    assert fit_table(X, y, PARAMS, tuning=tuning, place=place).stages == run.stages


def test_time_limit__a_search_ends_within_it_and_one_task(monkeypatch):
    # Every task takes a second, by a clock of its own.
    engine, place, table = CountingEngine(), MemoryStore(), spirals(300, n_features=2)
    for module in (cost, plan):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=engine.done.total))
    options = {"tuning": DOUBLING, "place": place}
    run = fit_table(*table, PARAMS, engine=engine, of_fit={"time_limit": 8.0}, **options)
    seconds = dict(zip(engine.done, accumulate(engine.done.values()), strict=True))
    begun = seconds["measure speed"]
    assert seconds["search, comparing size 64"] <= begun + 8
    assert seconds["search, comparing linear model"] <= begun + 8 + 1
    assert [each["n_basis"] for each in SEARCH.recorded(run).curve] == [4, 8, 16, 32, 64]
    assert fit_table(*table, PARAMS, **options).stages == run.stages


def test_time_limit__a_search_that_is_stopped_goes_on_with_another_limit():
    dataset, place = write_table(MemoryStore(), *spirals(200)), MemoryStore()
    engine = CountingEngine(0, label="search, comparing linear model")
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, PARAMS, engine, tuning=QUICK)
    found = fit_dataset(dataset, place, PARAMS, CountingEngine(), tuning=QUICK, time_limit=0.0)
    assert [each["n_basis"] for each in SEARCH.recorded(found).curve] == [4]
    with pytest.raises(ParameterError, match="time_limit limits a tuning"):
        fit_dataset(dataset, MemoryStore(), PARAMS, CountingEngine(0), time_limit=1.0)
