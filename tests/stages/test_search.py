"""What a tuning tries, in which rounds, and what becomes of a scale or a basis that it chooses."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_wine

from dask_nrbfn.choices import KERNELS, LOSSES
from dask_nrbfn.errors import DataError
from dask_nrbfn.fit import planned
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.spec import MOST_LEFT, TUNES
from dask_nrbfn.stages import search, trials, units
from dask_nrbfn.stages.columns import METRIC
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.resolve import resolve_tuning
from dask_nrbfn.stages.search import (
    ALPHAS_BEYOND,
    ALPHAS_LARGER,
    ALPHAS_SMALLER,
    SEARCH,
    planned_rounds,
)
from dask_nrbfn.stages.trials import Folds
from tests.stages.fits import ENGINE, fit_table, write
from tests.tables import spirals, surfaces

SIZED = FitParams(basis_size=20, n_neighbors=8)
QUICK = TuneParams(
    effort="quick", folds=2, alphas=(1e-2, 1e-5), width_factors=(0.5, 1.0), features=("plain",)
)


def tune(X, y, params=SIZED, tuning=QUICK, **options):
    return fit_table(X, y, params, tuning=tuning, **options)


def meant(params, effort, *, numbers=False, **given):
    tuning = TuneParams(effort=effort, **given)
    targets = "numbers" if numbers else "classes"
    return resolve_tuning(params.resolve_auto(numbers=numbers), tuning, targets=targets)


def test_effort__is_about_what_is_not_given():
    tuning = meant(SIZED, "thorough")
    assert (tuning.kernels, tuning.losses) == (tuple(KERNELS), tuple(LOSSES))
    assert tuning.bases == ("sknn", "random", "kmeans")
    assert "clusters" in tuning.penalties
    assert meant(SIZED, "normal").scales == ("none", "standard", "rank", "learned")
    assert meant(replace(SIZED, scale="standard"), "normal").scales == (
        "standard",
        "rank",
        "learned",
    )
    given = {"kernels": ("matern32",), "scales": ("unit",), "losses": ("squared",)}
    assert tuning.trying(**given) == meant(SIZED, "thorough", **given)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"scale": "unit"}, "scales"),
        ({"basis": "kmeans"}, "bases"),
        ({"basis_size": None}, "basis_rules"),
        ({"loss": "hinge"}, "losses"),
        ({"penalty": "kernel", "features": "plain"}, "penalties"),
        ({"components": 5}, "penalties"),
        ({"components": 5}, "losses"),
    ],
)
def test_effort__leaves_what_the_fit_says(changes, name):
    spec = meant(replace(SIZED, **changes), "thorough")
    assert getattr(spec, name) == (getattr(spec.params, TUNES[name]),)


def test_effort__penalties_are_for_some_combination():
    assert meant(SIZED, "normal", features=("normalized",)).penalties == ("weights",)
    assert meant(SIZED, "thorough", bases=("random",)).penalties == ("kernel", "weights")


def test_bases__those_that_are_tried_say_what_is_needed():
    X, y = spirals(30)
    tuning = replace(QUICK, bases=("random", "kmeans"))
    assert not resolve_tuning(SIZED, tuning).by_confidence
    # No neighbours are searched, so there need not be so many rows.
    run = tune(X, y, replace(SIZED, n_neighbors=100), replace(tuning, width_factors=(1.0,)))
    assert "neighbors" not in run.stages


def test_bases__sources_are_compared_with_the_best_combination_alone():
    X, y = spirals(150)
    found = tune(X, y, tuning=replace(QUICK, bases=("sknn", "kmeans"))).stages["search"]
    # Others have drawn rows, and say so.
    assert {each["basis"] for each in found["tried"]} == {"random"}
    *others, sknn, kmeans = found["finals"]
    assert {each["basis"] for each in others} == {"random"}
    assert (sknn["basis"], sknn["basis_rule"]) == ("sknn", "uniform")
    assert kmeans["basis"] == "kmeans"
    best = min((sknn, kmeans), key=lambda each: each["brier_score"])
    assert found["chosen"] == {name: best[name] for name in found["chosen"]}
    with_drawn = replace(QUICK, bases=("sknn", "random"))
    found = tune(X, y, tuning=with_drawn).stages["search"]
    drawn = min(found["tried"], key=lambda each: each["brier_score"])
    best = min((drawn, found["finals"][-1]), key=lambda each: each["brier_score"])
    assert found["finals"][-1]["basis"] == "sknn"
    assert found["chosen"]["basis"] == best["basis"]


@pytest.mark.parametrize(("scale", "name"), [("none", "scales"), ("learned", "scale")])
def test_metric__names_what_asks_for_it(scale, name):
    assert f"`{name}`" in METRIC.remedy(replace(SIZED, scale=scale))


WIDTHS = tuple(0.01 * 2.0**power for power in range(10))
MANY = replace(QUICK, width_factors=WIDTHS, kernels=("gaussian",), features=("plain", "normalized"))


SIZES = {"_FIRST": (60, 8, 30), "_SECOND": (120, 12, 60), "_KINDS": (240, 16, 60)}


@pytest.fixture
def small_rounds(monkeypatch):
    """Rows, basis rows and held-out rows of the rounds that suit small tables."""
    monkeypatch.setattr(trials, "_FEW_JUDGED", 50)
    for name, size in SIZES.items():
        monkeypatch.setattr(search, name, size)


def sizes_of(rounds):
    return [(each["n_tried"], each["n_rows"], each["n_basis"]) for each in rounds]


def test_factors__lie_between_those_that_were_tried_and_beyond_the_ends():
    assert search._factors_next_to(1.0, [4.0, 1.0, 0.25]) == [0.5, 2.0]
    assert search._factors_next_to(4.0, [1.0, 4.0]) == [2.0, 16.0]
    assert search._factors_next_to(0.5, [0.5, 1.0]) == [0.25, 0.707]
    assert search._factors_next_to(3.0, [3.0]) == [3.0, 3.0]


def test_folds__a_quick_tuning_holds_out_one_part_and_others_several_fifths():
    spec = resolve_tuning(SIZED.resolve_auto(numbers=False), QUICK, targets="classes")
    other = replace(spec, effort="normal")
    sizes = (1000, 1500, 4000, 6000, 50_000)
    assert [Folds.of(n, spec) for n in sizes] == [
        (5, 200),
        (1, 500),
        (1, 1000),
        (1, 1200),
        (1, 3000),
    ]
    assert [Folds.of(n, other) for n in sizes] == [
        (5, 200),
        (2, 300),
        (2, 800),
        (1, 1200),
        (1, 3000),
    ]


def test_search__the_best_widths_of_each_kind_go_on(small_rounds):
    X, y = spirals(400)
    run = tune(X, y, replace(SIZED, basis="random"), MANY)
    record = run.stages["search"]
    # Two widths of two kinds; then one width of each kind, of those that are not clearly worse.
    (first, second, kinds), n_kinds = sizes_of(record["rounds"]), record["rounds"][2]["n_tried"]
    assert (first, second, kinds) == ((20, 60, 8), (4, 120, 12), (n_kinds, 240, 16))
    by_round = [[each for each in record["tried"] if each["round"] == n] for n in range(3)]
    assert [len(each) for each in by_round] == [16, 4 - n_kinds, n_kinds]
    later = [each["features"] for each in (*by_round[1], *by_round[2])]
    assert sorted(later) == ["normalized"] * 2 + ["plain"] * 2
    best = min(by_round[2], key=lambda each: each["brier_score"])
    assert record["chosen"] == {name: best[name] for name in record["chosen"]}


def test_search__few_combinations_need_no_first_round(small_rounds):
    tuning = replace(MANY, features=("plain",))
    rounds = tune(*spirals(400), replace(SIZED, basis="random"), tuning).stages["search"]["rounds"]
    assert sizes_of(rounds)[0] == (10, 120, 12)


@pytest.mark.parametrize("n_rows", [400, 100])
def test_rounds__are_planned_as_they_run(small_rounds, n_rows):
    (X, y), params = spirals(n_rows), replace(SIZED, basis="random")
    context = FitContext.resolve(write(X, y), params, ENGINE, MANY)
    n_folds = Folds.of(n_rows, context.spec).n_folds
    assert n_folds == (1 if n_rows == 400 else 5)
    steps = planned_rounds(planned(context).labelled_sizes, n_rows, SIZED.basis_size)
    found = sizes_of(tune(X, y, params, MANY).stages["search"]["rounds"])
    expected = [(each.n_tried // n_folds, each.n_rows, each.n_basis) for each in steps]
    assert found[0] == expected[0]
    assert [each[1:] for each in found] == [each[1:] for each in expected[:3]]
    # A plan does not know how many kinds are clearly worse.
    assert all(own[0] <= most[0] for own, most in zip(found, expected, strict=False))


def test_search__the_whole_basis_is_tried_with_the_best_penalty_and_the_alphas_beside_the_best():
    X, y = spirals(400)
    alphas = tuple(10.0**-power for power in range(1, 14))
    tuning = replace(QUICK, alphas=alphas, penalties=("weights", "kernel"))
    run = tune(X, y, replace(SIZED, basis="random"), tuning)
    of_search = run.stages["search"]
    best = min([*of_search["tried"], *of_search["finals"]], key=lambda each: each["brier_score"])
    place = alphas.index(best["alpha"])
    tried = [(each["penalty"], each["alpha"]) for each in run.stages["validation"]["path"]]
    n_smaller = ALPHAS_BEYOND if best["alpha"] == 1e-7 else ALPHAS_SMALLER
    beside = alphas[max(place - ALPHAS_LARGER, 0) : place + n_smaller + 1]
    assert tried == [(best["penalty"], alpha) for alpha in beside]
    assert run.begun.alphas == alphas


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(1e-1, range(1, 4)), (1e-4, range(3, 7)), (1e-7, range(6, 12)), (1e-13, range(12, 14))],
)
def test_alphas__of_the_end_lie_next_to_the_best_and_further_beyond_float32(alpha, expected):
    alphas = [10.0**-power for power in range(1, 14)]
    left = search._left_at_end(alphas, {"penalty": "kernel", "alpha": alpha})
    assert left == {"penalties": ["kernel"], "alphas": [10.0**-power for power in expected]}
    assert len(left["alphas"]) <= MOST_LEFT
    # The order of those that are given stays.
    left = search.left_next_to(alphas[::-1], {"penalty": "kernel", "alpha": 1e-3}, 1, 2)
    assert left["alphas"] == [1e-5, 1e-4, 1e-3, 1e-2]


@pytest.mark.parametrize("alphas", [(1e-9,), (1e-5, 1e-9, 1e-11)])
def test_search__alphas_beyond_single_precision_alone(alphas):
    run = tune(*spirals(200), SIZED, replace(QUICK, alphas=alphas))
    assert {each["alpha"] for each in run.stages["search"]["tried"]} <= {*alphas}
    assert run.chosen_params.alpha in alphas


def test_search__of_numbers_takes_the_least_error():
    tuning = replace(QUICK, width_factors=(0.01, 0.1, 1.0))
    search = tune(*surfaces(80), replace(SIZED, basis="random"), tuning).stages["search"]
    errors = {each["width_factor"]: each["relative_error"] for each in search["tried"]}
    assert len(set(errors.values())) == 3
    assert search["chosen"]["width_factor"] == min(errors, key=errors.get)


def test_search__refines_the_width_of_the_best():
    X, y = spirals(150)
    tuning = replace(
        QUICK, width_factors=None, effort="normal", kernels=("gaussian",), penalties=("weights",)
    )
    run = tune(X, y, replace(SIZED, scale="unit", basis="random"), tuning)
    search = run.stages["search"]
    assert len(search["tried"]) == 8
    start, *beside = [each["width_factor"] for each in search["finals"]]
    assert len(beside) in (2, 4)
    assert min(beside[:2]) < start < max(beside[:2])
    losses = {each["width_factor"]: each["brier_score"] for each in search["finals"]}
    assert losses[run.chosen_params.width_factor] == min(losses.values())
    assert search["stopped"].startswith(("no width next to", "the limit of 2 refinements"))


def test_search__given_widths_are_not_refined():
    X, y = spirals(80)
    run = tune(X, y, replace(SIZED, basis="random"))
    assert len(SEARCH.recorded(run).tried) == 2
    assert SEARCH.recorded(run).stopped is None


def test_search__says_when_a_linear_model_is_better(caplog):
    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_normal((300, 8)), np.ones(300)]
    Y = X @ rng.standard_normal((9, 2))
    run = tune(X, Y, replace(SIZED, basis="random"))
    assert "A linear model of the same columns does better" in caplog.text
    assert run.stages["search"]["linear"] < 1e-10


def test_search__is_silent_about_a_linear_model_with_two_wrong_rows_less(caplog):
    X, y = load_wine(return_X_y=True)
    wine = replace(SIZED, basis="random", basis_size=64, scale="standard", random_state=2)
    found = tune(X, y, wine).stages["search"]
    assert found["linear"] < min(each["error_rate"] for each in found["finals"])
    assert "linear" not in caplog.text


@pytest.mark.parametrize("n_distinct", [1, 2, 4])
def test_search__all_basis_rows_in_one_held_out_fold(n_distinct):
    X, Y = surfaces(300)
    tuning = replace(QUICK, folds=5)
    sized = tune(X, Y, replace(SIZED, basis="random", basis_size=n_distinct), tuning)
    few = np.minimum(np.arange(300), n_distinct)[:, None]
    drawn = tune(few, Y, FitParams(basis="random"), tuning)
    assert all(each["alpha"] for each in SEARCH.recorded(sized).tried)
    # Without the only other row the systems of a fold are singular.
    assert "weights" in drawn.stages


def test_search__constant_rows_are_refused():
    with pytest.raises(DataError, match="all rows of X are equal"):
        tune(np.ones((300, 2)), spirals(300)[1], FitParams(basis="random"))


@pytest.mark.parametrize(
    ("params", "tried"),
    [
        ({"basis": "random"}, {"penalties": ("kernel", "weights")}),
        ({}, {"penalties": ("clusters", "weights"), "bases": ("random", "kmeans")}),
    ],
)
def test_search__the_order_of_penalties_drops_no_combination(params, tried):
    tuning = replace(QUICK, features=("normalized", "plain"), **tried)
    for penalties in (tuning.penalties, tuning.penalties[::-1]):
        found = SEARCH.recorded(
            tune(*spirals(150), replace(SIZED, **params), replace(tuning, penalties=penalties))
        )
        assert found.stopped is None
        assert all(each["alpha"] for each in found.tried)


def test_search__singular_systems_leave_as_many_ridges_as_planned(monkeypatch):
    monkeypatch.setattr(
        units, "try_networks", lambda table, scaling, networks, **_: [None] * len(networks)
    )
    run = tune(*spirals(150), tuning=replace(QUICK, alphas=TuneParams.alphas))
    assert SEARCH.recorded(run).stopped == "singular systems"
    assert len(run.stages["path"]["path"]) <= MOST_LEFT


def test_search__values_beyond_single_precision():
    X, y = spirals(200)
    assert tune(X * 2.0**200, y).chosen_params == tune(X, y).chosen_params
