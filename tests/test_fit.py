import numpy as np
import pytest
from zarr.storage import MemoryStore

import dask_nrbfn.fit
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.plan import plan_fit
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.memory import PROCESS_BYTES
from dask_nrbfn.errors import MemoryBudgetError
from dask_nrbfn.fit import STAGES, stages_of
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import PartResult, map_parts
from dask_nrbfn.stages.columns import COLUMNS
from dask_nrbfn.stages.stage import Stage, StageCost
from tests.commands.test_plan import RATES
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import spirals, surfaces, write_table

PARAMS = FitParams(alpha=1e-6, n_neighbors=5, n_parts=3)


def count_part(run, dataset, start, stop):
    codes = np.concatenate([codes for _, codes, _ in dataset.blocks(start, stop, 100)])
    return PartResult({"counts": np.bincount(codes, minlength=dataset.n_classes).tolist()})


def compute_counts(job):
    records = map_parts(job.run, job.dataset, job.engine, stage="counts", task=count_part)
    return {"counts": np.sum([record["counts"] for record in records], axis=0).tolist()}


COUNTS = Stage(
    name="counts",
    compute=compute_counts,
    cost=lambda sizes: StageCost(
        held_bytes=PROCESS_BYTES + 8 * sizes.K, n_tasks=sizes.layout.n_parts
    ),
    wanted=lambda tried: tried.params.prune is None,
)


@pytest.fixture
def with_counts(monkeypatch):
    """A stage is one object and its place in the order."""
    place = STAGES.index(COLUMNS) + 1
    monkeypatch.setattr(dask_nrbfn.fit, "STAGES", (*STAGES[:place], COUNTS, *STAGES[place:]))


@pytest.mark.parametrize("basis", ["sknn", "random"])
@pytest.mark.parametrize(
    "tuning", [None, TuneParams(), TuneParams(effort="quick", width_factors=(1.0,))]
)
def test_stages_of__in_their_order(basis, tuning):
    stages = stages_of(FitParams(basis=basis, basis_size=9), tuning)
    assert stages == [stage for stage in STAGES if stage in stages]
    names = {stage.name for stage in stages}
    assert {"columns", "basis", "width", "moments", "weights", "model"} <= names
    assert names.isdisjoint({"neighbors", "recall", "confidence"}) == (basis == "random")
    assert names.isdisjoint({"path", "validation"}) == (tuning is None)


@pytest.mark.usefixtures("with_counts")
def test_stage__one_more_runs_and_is_resumed_and_planned():
    X, y = spirals(200)
    dataset, place = write_table(MemoryStore(), X, y, chunk_rows=70), MemoryStore()
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, PARAMS, CountingEngine(1, label="counts"))
    engine = CountingEngine()
    run = fit_dataset(dataset, place, PARAMS, engine)
    assert engine.done["counts"] == 2
    assert COUNTS.recorded(run).counts == np.bincount(y).tolist()
    assert list(run.stages)[:2] == ["columns", "counts"]
    planned = plan_fit(dataset, PARAMS, InlineEngine(), RATES)
    assert [stage.name for stage in planned.stages][1] == "counts"


@pytest.mark.usefixtures("with_counts")
def test_stage__one_more_is_left_out_where_it_is_not_wanted():
    X, Y = surfaces(60)
    dataset = write_table(MemoryStore(), X, target=Y)
    params = FitParams(alpha=1e-6, features="plain", prune=5)
    run = fit_dataset(dataset, MemoryStore(), params, InlineEngine())
    assert "counts" not in run.stages


def test_stage__one_that_does_not_fit_is_refused_before_any_task(monkeypatch):
    large = Stage(
        name="large",
        compute=compute_counts,
        cost=lambda sizes: StageCost(held_bytes=2**60),
        remedy=lambda params: "Buy more",
        grows_with_basis=True,
    )
    monkeypatch.setattr(dask_nrbfn.fit, "STAGES", (*STAGES, large))
    engine = CountingEngine(0)
    with pytest.raises(MemoryBudgetError, match="large task needs") as error:
        fit_dataset(write_table(MemoryStore(), *spirals(60)), MemoryStore(), PARAMS, engine)
    assert error.value.remedy.startswith("Buy more")
