"""Plans: what is said before a fit, for this machine or for one that need not exist."""

import json
import shutil
from dataclasses import asdict, fields, replace

import pytest

from dask_nrbfn import EngineOptions, FitParams, InlineEngine, fit_dataset
from dask_nrbfn.commands.plan import describe_plan, plan_fit, plan_on_options, read_rates
from dask_nrbfn.errors import MemoryBudgetError, ParameterError
from dask_nrbfn.stages.cost import Rates
from tests.cli.program import json_of, refuse, run, succeed
from tests.tables import spirals, write_table

PARAMS = FitParams(basis_size=40, alpha=1e-6, neighbors="exact")
RATES = Rates(**{field.name: 1e9 for field in fields(Rates)})


@pytest.fixture
def dataset(tmp_path):
    return write_table(tmp_path / "data", *spirals(400), chunk_rows=100)


@pytest.fixture
def rates(tmp_path):
    (tmp_path / "rates.json").write_text(json.dumps(asdict(RATES)))
    return tmp_path / "rates.json"


def cluster(n_workers, **options):
    engine = InlineEngine(n_workers=n_workers, **options)
    engine.memory_bytes = 2**36
    return engine


def seconds(planned):
    return sum(stage.seconds for stage in planned.stages)


def test_plan__of_a_tuning(dataset, tmp_path, rates):
    given = ("plan", tmp_path / "data", "--rates", rates, "--basis-size", "40")
    tunings = ((), ("--tune", "quick"), ("--tune", "normal"))
    planned = [json_of(*given, *tuning) for tuning in tunings]
    names = [{stage["stage"] for stage in each["stages"]} for each in planned]
    assert "search" not in names[0]
    assert {"search", "path"} <= names[1] <= names[2]
    assert planned[0]["seconds"] < planned[1]["seconds"] < planned[2]["seconds"]
    of_path = next(stage for stage in planned[1]["stages"] if stage["stage"] == "path")
    # Five folds and all rows, a penalty, and at most six of the alphas.
    assert of_path["systems"] == 6 * 6


def test_plan_fit__says_what_the_fit_records(dataset, tmp_path):
    planned = plan_fit(dataset, PARAMS, InlineEngine(), RATES)
    fitted = fit_dataset(dataset, tmp_path / "run", PARAMS, InlineEngine())
    held = {stage.name: stage.cost.held_bytes for stage in planned.stages}
    assert held == {name: record["predicted_bytes"] for name, record in fitted.stages.items()}


def test_plan_fit__does_not_fit_where_the_fit_is_refused(dataset, tmp_path):
    planned = plan_fit(dataset, PARAMS, InlineEngine(), RATES)
    most = max(stage.cost.held_bytes for stage in planned.stages)
    for memory_bytes, fits in ((most, True), (most - 1, False)):
        engine = InlineEngine(memory_bytes=memory_bytes)
        assert plan_fit(dataset, PARAMS, engine, RATES).fits is fits
        place = tmp_path / str(memory_bytes)
        if fits:
            fit_dataset(dataset, place, PARAMS, engine)
        else:
            with pytest.raises(MemoryBudgetError):
                fit_dataset(dataset, place, PARAMS, engine)
            assert not place.exists()


def test_plan_fit__more_workers_and_faster_ones_take_less(dataset):
    params = replace(PARAMS, n_parts=8)
    large = dataset.with_n_rows(10**7)
    one, eight = (plan_fit(large, params, cluster(n), RATES) for n in (1, 8))
    assert 6 < seconds(one) / seconds(eight) < 8.01
    doubled = Rates(**{name: 2 * rate for name, rate in asdict(RATES).items()})
    half = plan_fit(large, params, cluster(1), doubled)
    assert seconds(half) == pytest.approx(seconds(one) / 2, rel=0.02)


@pytest.mark.parametrize("neighbors", ["exact", "approximate"])
def test_plan_on_options__rows_like_those_at_hand(dataset, tmp_path, rates, neighbors):
    params = replace(PARAMS, neighbors=neighbors, candidates="all")
    options = EngineOptions(workers=4, threads=16, memory="4GiB")
    X, y = spirals(3000)
    real = write_table(tmp_path / "real", X, y, chunk_rows=100)
    planned = plan_on_options(real, params, options, rates=rates)
    # Not a row is read.
    shutil.rmtree(tmp_path / "data" / "X" / "c")
    assert plan_on_options(dataset, params, options, rates=rates, n_rows=3000) == planned
    larger = plan_on_options(dataset, params, options, rates=rates, n_rows=10**8)
    assert describe_plan(larger)["fits"]
    assert larger.n_partitions > 1


@pytest.mark.slow
def test_plan_on_options__measures_where_no_rates_are_given(dataset):
    options = EngineOptions(workers=2, threads=8, memory="4GiB")
    planned = plan_on_options(dataset, PARAMS, options)
    assert all(rate > 0 for rate in asdict(planned.rates).values())
    assert (planned.n_workers, planned.threads) == (2, 8)


def test_read_rates__wrong_files(tmp_path):
    path, rates = tmp_path / "rates.json", asdict(RATES)
    changed = ({**rates, "pairs": 0}, {**rates, "pairs": "fast"})
    for content in ("{", "[]", '{"pairs": 1}', *map(json.dumps, changed)):
        path.write_text(content)
        with pytest.raises(ParameterError, match="does not hold numbers above 0 for products, ex"):
            read_rates(path)
    with pytest.raises(ParameterError, match="No such file"):
        read_rates(tmp_path / "none.json")


def test_cli_plan__an_object_for_each_stage(tmp_path, dataset, rates):
    arguments = (
        *("plan", tmp_path / "data", "--basis-size", 40, "--n-rows", 10**6),
        *("--workers", 64, "--threads", 16, "--memory", "8GiB"),
    )
    out = json_of(*arguments, "--rates", rates)
    assert out["seconds"] == pytest.approx(sum(s["seconds"] for s in out["stages"]), abs=0.1)
    # What it prints is what --rates reads.
    (tmp_path / "again.json").write_text(json.dumps(out))
    assert json_of(*arguments, "--rates", tmp_path / "again.json") == out
    assert "64 workers x 16 threads" in succeed(*arguments, "--rates", rates)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.json", "data", "rates.json"]


def test_cli_plan__exits_with_2_where_memory_is_too_small(tmp_path, dataset, rates):
    arguments = ("plan", tmp_path / "data", "--basis-size", 300, "--rates", rates, "--workers", 1)
    code, out, _ = run(*arguments, "--memory", "350MiB")
    assert code == 2
    assert "more than a worker has" in out
    problem, _ = refuse("plan", tmp_path / "data", "--n-rows", -1, "--rates", rates)
    assert "--n-rows is -1" in problem
