"""What a fit says where float64 ends: systems, weights and columns that it cannot tell apart; and
of columns of unlike sizes."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import IllConditionedWarning, ingest_file
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DataError, IllConditionedError
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.report.facts import find_concerns
from dask_nrbfn.report.finished import FinishedRun
from tests.tables import spirals, write_table

# 100 wide functions on two columns: without a penalty their gram matrix is singular in float64.
WIDE = FitParams(kernel="gaussian", scale="none", basis="random", basis_size=100, width_factor=2.0)
THIN = replace(WIDE, alpha=1e-15)
TUNED = TuneParams(effort="quick", alphas=(1e-3,), width_factors=(1.0,), features=("normalized",))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    X, y = spirals(600, n_features=2)
    return write_table(tmp_path_factory.mktemp("table") / "data", X, y)


def test_fit__paper_penalty_is_silent_and_recorded(table):
    run = fit_dataset(table, MemoryStore(), WIDE, InlineEngine())
    assert 1e-13 < run.stages["weights"]["reciprocal_condition"] < 1e-12
    assert not [each for each in find_concerns(FinishedRun.of(run)) if "condition" in str(each)]


@pytest.mark.slow
def test_fit__small_penalty_warns_once_in_the_process_of_the_user(table, two_workers, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = fit_dataset(table, tmp_path / "run", THIN, two_workers)
        fit_dataset(table, tmp_path / "run", THIN, two_workers)
    own = [each for each in caught if each.category is IllConditionedWarning]
    assert len(own) == 1
    assert "alpha=1e-15 has a reciprocal condition of" in str(own[0].message)
    assert run.stages["weights"]["reciprocal_condition"] < ILL_CONDITIONED


def test_tune__all_penalties_hopeless_names_the_next(table):
    tuning = replace(TUNED, alphas=(0.0, 1e-20), width_factors=(2.0,))
    with pytest.raises(IllConditionedError, match=r"alphas=0, 1e-20 .* Use alphas=1e-1"):
        fit_dataset(table, MemoryStore(), WIDE, InlineEngine(), tuning=tuning)


@pytest.mark.parametrize(("weights", "tuned"), [([1e308, 1e308], False), ([1e200, 1.0], True)])
def test_weights__that_overflow_are_no_damage(weights, tuned):
    X, y = spirals(100)
    dataset = write_table(MemoryStore(), X, y, weights=np.resize(weights, 100))
    tuning = TUNED if tuned else None
    with pytest.raises(DataError, match=r"weights of the rows sum to .* Divide all weights by"):
        fit_dataset(dataset, MemoryStore(), FitParams(), InlineEngine(), tuning=tuning)


def test_weights__that_overflow_in_an_update_leave_the_run():
    store, (X, y) = MemoryStore(), spirals(100)
    run = fit_dataset(write_table(MemoryStore(), X, y), store, FitParams(), InlineEngine())
    weights = np.r_[1e308, np.ones(99)]
    with pytest.raises(DataError, match="weights of the rows sum to 1e"):
        update_run(store, write_table(MemoryStore(), X + 0.1, y, weights=weights), InlineEngine())
    assert not run.attributes.get("versions")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("scale", "column"), [("standard", 1 + 2.0**-52), ("none", 1 + 1e-12), ("standard", 1.001)]
)
def test_columns__that_distances_cannot_see_are_named_once(caplog, scale, column):
    X, y = spirals(120)
    X = np.column_stack([X, np.where(np.arange(120) % 2, 1.0, column)])
    params = FitParams(scale=scale, n_neighbors=5, alpha=1e-4, n_parts=3)
    run = fit_dataset(write_table(MemoryStore(), X, y), MemoryStore(), params, InlineEngine())
    told = [each for each in caplog.messages if "distances in float64 do not see" in each]
    assert len(told) == (column != 1.001)
    assert run.stages["columns"]["unseen"] == ([4] if told else [])
    assert all("column 4 (mean 1, deviation" in each for each in told)


DRAWN = {"scale": "none", "basis": "random", "basis_size": 10, "alpha": 1e-6}


def told_of(tmp_path, caplog, factors, **params):
    """Return the warnings of a fit to a table whose columns are multiplied by `factors`."""
    X, y = spirals(60, n_features=len(factors))
    lines = [",".join(map(str, [*row, label])) for row, label in zip(X * factors, y, strict=True)]
    names = ",".join(f"x{place}" for place in range(len(factors)))
    (tmp_path / "rows.csv").write_text("\n".join([f"{names},label", *lines]))
    dataset = ingest_file(tmp_path / "rows.csv", MemoryStore(), label="label")
    caplog.clear()
    fit_dataset(dataset, MemoryStore(), FitParams(**(DRAWN | params)), InlineEngine())
    return [each for each in caplog.messages if "decide the distances" in each]


@pytest.mark.parametrize("factors", [(1, 1, 1000, 1), (1, 1000, 1000, 1000), (300, 1)])
def test_columns__of_unlike_sizes(tmp_path, caplog, factors):
    (told,) = told_of(tmp_path, caplog, factors)
    largest, least = np.argmax(factors), np.argmin(factors)
    assert told.startswith("the deviation of column 'x")
    assert f"'x{largest}' is " in told or factors.count(1000) > 1
    assert f"and of column 'x{least}' " in told or factors.count(1) > 1
    assert "Use scale='standard'" in told


@pytest.mark.parametrize(
    ("factors", "params"),
    [
        ((1, 10, 1, 1), {}),
        ((1, 1000, 1, 1), {"scale": "standard"}),
        ((1, 1000, 1, 1), {"scale": "auto"}),
        ((1, 1000, 1, 1), {"scale": "unit"}),
        # One of five is less than a quarter; a column that is always 0 does not count.
        ((1, 1000, 1000, 1000, 1000), {}),
        ((0, 1, 1, 1), {}),
    ],
)
def test_columns__without_a_warning(tmp_path, caplog, factors, params):
    assert told_of(tmp_path, caplog, factors, **params) == []
