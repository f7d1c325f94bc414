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
from dask_nrbfn.stages.cost import Rates
from dask_nrbfn.stages.finals import (
    Final,
    finalists,
    gains_by_doubling,
    smallest_of,
    winner_of,
)
from dask_nrbfn.stages.resolve import resolve_tuning
from dask_nrbfn.stages.search import SEARCH
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


def final(losses, *, n_basis=10, own=None, weights=None):
    weights = np.ones(len(losses)) if weights is None else np.asarray(weights)
    return Final(losses, weights / weights.sum(), own or combination(), {"n_basis": n_basis})


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
    gain, error = final(first, weights=weights).gain_over(final(second, weights=weights))
    shares = weights / weights.sum()
    assert gain == pytest.approx(np.average(second - first, weights=weights))
    variance = np.sum(shares**2 * (second - first - gain) ** 2) / (1 - np.sum(shares**2))
    assert error == pytest.approx(np.sqrt(variance))
    _, error = final(first).gain_over(final(second))
    assert error == pytest.approx(np.std(second - first, ddof=1) / np.sqrt(50))


def test_gain__of_one_row_has_no_error():
    assert final(np.zeros(1)).gain_over(final(np.ones(1))) == (1.0, 0.0)


def test_smallest__is_within_one_standard_error():
    losses = np.zeros((3, 100))
    losses[0, :30] = losses[1, 2:13] = losses[2, :10] = 1
    curve = [final(each, n_basis=size) for each, size in zip(losses, (4, 8, 16), strict=True)]
    assert smallest_of(curve, 4) is curve[1]


def test_smallest__up_to_256_rows_is_the_largest_that_is_close():
    losses = np.zeros((4, 100))
    for place, n_wrong in enumerate((12, 11, 10, 9)):
        losses[place, 10 * place : 10 * place + n_wrong] = 1
    curve = [
        final(each, n_basis=size) for each, size in zip(losses, (16, 128, 257, 512), strict=True)
    ]
    assert smallest_of(curve, 256) is curve[1]


@pytest.mark.parametrize(("n_wrong", "scale"), [(11, "standard"), (30, "learned")])
def test_winner__equal_columns_unless_learned_ones_gain(n_wrong, scale):
    losses = np.zeros((2, 100))
    losses[0, :10] = losses[1, 2 : 2 + n_wrong] = 1
    learned, equal = final(losses[0], own=combination("learned")), final(losses[1])
    assert winner_of([learned, equal]).combination.scale == scale


def of_means(means, combinations):
    """Return finals with these mean losses, in which 100 rows differ by a deviation of one."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(len(means), 100))
    noise = (noise - noise.mean(axis=1, keepdims=True)) / noise.std(axis=1, keepdims=True)
    return [
        final(mean + own, own=each)
        for mean, own, each in zip(means, noise, combinations, strict=True)
    ]


def test_finalists__are_the_best_of_each_kind_and_one_of_equal_columns():
    kernels = ("gaussian", "laplacian", "matern32", "matern52")
    learned = [combination("learned", kernel) for kernel in kernels]
    wider = [replace(each, width_factor=2.0) for each in learned]
    equal = [combination("none"), combination("standard")]
    means = [0.001 * place for place in range(10)]
    judged = of_means(means, [*learned, *wider, *equal])
    assert finalists(judged, 3) == [*judged[:3], judged[8]]
    judged = of_means(means[:5], [equal[1], *learned])
    assert finalists(judged, 3) == judged[:3]
    # The best width of a kind, wherever it stands.
    judged = of_means([0.2, 0.1, 0.3], [learned[0], wider[0], equal[0]])
    assert finalists(judged, 3) == judged[1:]


def test_finalists__without_kinds_that_are_clearly_worse():
    kernels = ("gaussian", "laplacian", "matern32")
    kinds = [combination(kernel=kernel) for kernel in kernels]
    # Differences of two drawn rows have a deviation of about 1.4, their means one of 0.14.
    judged = of_means([0.0, 0.6, 0.2], kinds)
    assert finalists(judged, 3) == [judged[0], judged[2]]
    judged = of_means([0.0, 9.0], [combination("learned"), combination()])
    assert finalists(judged, 3) == judged


@pytest.mark.parametrize(
    ("n_wrong", "goes_on"), [((30, 12, 10), False), ((30, 25, 10), True), ((0, 0, 0), False)]
)
def test_curve__goes_on_while_the_largest_gains_a_standard_error(n_wrong, goes_on):
    losses = np.zeros((3, 100))
    for place, n in enumerate(n_wrong):
        losses[place, 3 * place : 3 * place + n] = 1
    curve = [final(each, n_basis=size) for each, size in zip(losses, (4, 8, 16), strict=True)]
    assert gains_by_doubling(curve) is goes_on
    # Another order of the sizes, a single size, and none.
    assert gains_by_doubling(curve[::-1]) is goes_on
    assert gains_by_doubling(curve[:1])
    assert not gains_by_doubling([])


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
    assert sizes == [32, 128]
    assert [each["n_basis"] for each in SEARCH.recorded(winding).curve] == [8, 32, 128]
    assert winding.read("basis/rows").shape == (128,)


DOUBLING = replace(QUICK, effort="normal", scales=("none",), kernels=("gaussian",), folds=2)


def test_size__doubles_while_it_gains():
    run = tune(*spirals(300, n_features=2), tuning=DOUBLING)
    curve = SEARCH.recorded(run).curve
    assert {each["basis"] for each in curve} == {"random"}
    sizes = [each["n_basis"] for each in curve]
    assert sizes == [4 * 2**doublings for doublings in range(len(sizes))]
    assert 32 <= max(sizes) <= 150
    best = min(curve, key=lambda each: each["brier_score"])
    assert run.chosen_params.basis_size <= best["n_basis"]


def test_search__many_rows_try_wider_kernels(monkeypatch):
    """Few rows, with which other steps compare widths, need narrower kernels."""
    X, y = spirals(600, n_features=2)
    tuning = replace(DOUBLING, width_factors=None, kernels=("laplacian",))
    few = SEARCH.recorded(tune(X, y, tuning=tuning))
    monkeypatch.setattr(search, "_MANY", 480)
    many = SEARCH.recorded(tune(X, y, tuning=tuning))
    factor, n_before = many.curve[0]["width_factor"], len(few.finals)
    wider = [each for each in many.finals if each["width_factor"] in (2 * factor, 4 * factor)]
    assert len(many.finals) >= n_before + 2
    assert [each["width_factor"] for each in wider[-2:]] == [2 * factor, 4 * factor]
    assert {each["n_basis"] for each in wider[-2:]} <= {each["n_basis"] for each in many.curve}
    monkeypatch.setattr(search, "_MANY", 481)
    assert len(SEARCH.recorded(tune(X, y, tuning=tuning)).finals) == n_before


def test_size__stops_where_no_size_has_an_error():
    X, Y = surfaces(300)
    curve = SEARCH.recorded(tune(X, 0 * Y, tuning=DOUBLING)).curve
    assert {each["relative_error"] for each in curve} == {0}
    assert {each["n_basis"] for each in curve} == {4, 8, 16}


def test_time_limit__fits_the_best_network_so_far(caplog):
    caplog.set_level("INFO", logger="dask_nrbfn")
    tuning = replace(QUICK, effort="normal", width_factors=None, search_basis=16)
    (X, y), place = spirals(4100), MemoryStore()
    run = fit_table(X, y, PARAMS, tuning=tuning, place=place, of_fit={"time_limit": 0.0})
    of_search = run.stages["search"]
    assert run.stages["metric"]["stopped"] == of_search["stopped"] == "the time limit"
    # So many combinations would need two rounds.
    assert [each["n_tried"] for each in of_search["rounds"]] == [len(of_search["tried"])] == [42]
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
    assert seconds["search, trials size 64"] <= begun + 8
    assert seconds["search, trials linear model"] <= begun + 8 + 1
    assert [each["n_basis"] for each in SEARCH.recorded(run).curve] == [4, 8, 16, 32, 64]
    assert fit_table(*table, PARAMS, **options).stages == run.stages


def test_time_limit__a_search_that_is_stopped_goes_on_with_another_limit():
    dataset, place = write_table(MemoryStore(), *spirals(200)), MemoryStore()
    engine = CountingEngine(0, label="search, trials linear model")
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, PARAMS, engine, tuning=QUICK)
    found = fit_dataset(dataset, place, PARAMS, CountingEngine(), tuning=QUICK, time_limit=0.0)
    assert [each["n_basis"] for each in SEARCH.recorded(found).curve] == [4]
    with pytest.raises(ParameterError, match="time_limit limits a tuning"):
        fit_dataset(dataset, MemoryStore(), PARAMS, CountingEngine(0), time_limit=1.0)


@pytest.mark.parametrize(("limit", "largest"), [(60, 256), (240, 256), (400, 512)])
def test_time_limit__keeps_free_the_least_fit_and_each_trial_not_the_usual_fit(
    monkeypatch, limit, largest
):
    monkeypatch.setattr(search, "_CHEAP", CHEAP)
    monkeypatch.setattr(search, "_FIRST_SIZES", (128, 256))
    # No work takes time, but products are expected to.
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: 0.0))
    slow = Rates(products=1e7, exponentials=1e12, pairs=1e12, bytes=1e12)
    monkeypatch.setattr(plan, "measure_rates", lambda *_, **__: slow)
    X, y = spirals(4100)
    run = fit_table(X, y, PARAMS, tuning=QUICK, of_fit={"time_limit": limit})
    found = SEARCH.recorded(run)
    assert found.stopped != "the time limit"
    assert max(each["n_basis"] for each in found.curve) == largest


def test_time_limit__keeps_no_time_for_a_neighbour_search_that_a_drawn_basis_does_not_need(
    monkeypatch,
):
    monkeypatch.setattr(search, "_FIRST_SIZES", (16, 32))
    monkeypatch.setattr(cost, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: 0.0))
    # Only pairs of rows are expected to take time: 300^2 in a search for neighbours.
    slow = Rates(products=1e15, exponentials=1e15, pairs=1e3, bytes=1e15)
    monkeypatch.setattr(plan, "measure_rates", lambda *_, **__: slow)
    params = replace(PARAMS, basis="sknn")
    run = fit_table(*spirals(300), params, tuning=DOUBLING, of_fit={"time_limit": 30})
    found = SEARCH.recorded(run)
    assert max(each["n_basis"] for each in found.curve) >= 64
    assert {each["basis"] for each in found.finals} == {"random"}
    assert "neighbors" not in run.stages
    tuning = replace(DOUBLING, bases=("sknn", "random"))
    sized = replace(params, basis_size=32)
    run = fit_table(*spirals(300), sized, tuning=tuning, of_fit={"time_limit": 30})
    assert SEARCH.recorded(run).stopped != "the time limit"
