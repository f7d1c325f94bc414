"""What a tuning tries, in which rounds, and what becomes of a scale or a basis that it chooses."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_wine

from dask_nrbfn.choices import KERNELS, LOSSES
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.spec import ALPHAS_NEXT, TUNES
from dask_nrbfn.stages import search
from dask_nrbfn.stages.columns import METRIC
from dask_nrbfn.stages.resolve import resolve_tuning
from dask_nrbfn.stages.search import SEARCH, planned_rounds
from tests.stages.fits import fit_table
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
    assert meant(SIZED, "normal").scales == ("none", "standard", "learned")
    assert meant(replace(SIZED, scale="standard"), "normal").scales == ("standard", "learned")
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


@pytest.mark.parametrize(("scale", "name"), [("none", "scales"), ("learned", "scale")])
def test_metric__names_what_asks_for_it(scale, name):
    assert f"`{name}`" in METRIC.remedy(replace(SIZED, scale=scale))


def test_rounds__a_third_of_the_rows_half_of_the_basis_and_a_quarter_of_the_rest():
    rounds = planned_rounds(100, 60_000, 1000, 5)
    assert rounds == [(100, 6666, 250, 1), (25, 20_000, 500, 1), (7, 60_000, 1000, 1)]
    assert planned_rounds(49, 3000, 300, 5)[0] == (49, 2000, 250, 2)
    # Five hundred held-out rows are enough.
    assert planned_rounds(13, 7500, 300, 5)[0] == (13, 2500, 250, 1)
    # Rounds on equally many rows would try the same again.
    assert planned_rounds(200, 900, 100, 3) == [(200, 900, 100, 2), (50, 900, 100, 3)]


def test_factors__lie_between_those_that_were_tried_and_beyond_the_ends():
    assert search._factors_next_to(1.0, [4.0, 1.0, 0.25]) == [0.5, 2.0]
    assert search._factors_next_to(4.0, [1.0, 4.0]) == [2.0, 16.0]
    assert search._factors_next_to(0.5, [0.5, 1.0]) == [0.25, 0.707]
    assert search._factors_next_to(3.0, [3.0]) == [3.0, 3.0]


def test_search__the_best_of_each_round_go_on():
    X, y = spirals(4500)
    tuning = replace(
        QUICK,
        width_factors=tuple(0.01 * 2.0**power for power in range(8)),
        features=("plain", "normalized"),
    )
    run = tune(X, y, replace(SIZED, basis="random"), tuning)
    search = run.stages["search"]
    assert [each["n_tried"] for each in search["rounds"]] == [16, 4]
    assert [each["n_rows"] for each in search["rounds"]] == [2000, 4500]
    by_round = [[each for each in search["tried"] if each["round"] == n] for n in (0, 1)]
    assert [len(each) for each in by_round] == [12, 4]
    # The first of two rounds tries every second alpha.
    assert {each["alpha"] for each in by_round[0]} <= {1e-2, None}
    best = min(by_round[1], key=lambda each: (each["error_rate"], each["log_loss"]))
    assert search["chosen"] == {name: best[name] for name in search["chosen"]}


def test_search__the_whole_basis_is_tried_with_the_best_penalty_and_the_alphas_beside_the_best():
    X, y = spirals(400)
    alphas = tuple(10.0**-power for power in range(1, 14))
    tuning = replace(QUICK, alphas=alphas, penalties=("weights", "kernel"))
    run = tune(X, y, replace(SIZED, basis="random"), tuning)
    best = min(
        run.stages["search"]["tried"], key=lambda each: (each["error_rate"], each["log_loss"])
    )
    near = alphas.index(best["alpha"])
    tried = [(each["penalty"], each["alpha"]) for each in run.stages["validation"]["path"]]
    beside = alphas[max(near - ALPHAS_NEXT, 0) : near + ALPHAS_NEXT + 1]
    assert tried == [(best["penalty"], alpha) for alpha in beside]
    assert run.begun.alphas == alphas


def test_search__of_numbers_takes_the_least_error():
    tuning = replace(QUICK, width_factors=(0.01, 0.1, 1.0))
    search = tune(*surfaces(80), replace(SIZED, basis="random"), tuning).stages["search"]
    errors = {each["width_factor"]: each["relative_error"] for each in search["tried"]}
    assert len(set(errors.values())) == 3
    assert search["chosen"]["width_factor"] == min(errors, key=errors.get)


def test_search__refines_the_width_of_the_best():
    X, y = spirals(150)
    tuning = replace(QUICK, width_factors=None, effort="normal", kernels=("gaussian",))
    run = tune(X, y, replace(SIZED, scale="unit", basis="random"), tuning)
    search = run.stages["search"]
    assert len(search["tried"]) == 8
    start, *beside = [each["width_factor"] for each in search["finals"]]
    assert len(beside) in (2, 4)
    assert min(beside[:2]) < start < max(beside[:2])
    best = min(each["error_rate"] for each in search["finals"])
    errors = {each["width_factor"]: each["error_rate"] for each in search["finals"]}
    assert errors[run.chosen_params.width_factor] == best
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


def test_search__values_beyond_single_precision():
    X, y = spirals(200)
    assert tune(X * 2.0**200, y).chosen_params == tune(X, y).chosen_params
