"""Activations that the passes of another loss keep."""

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages import descents
from dask_nrbfn.stages.refine import REFINE
from dask_nrbfn.storage.model import Model
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import spirals, write_table

PARAMS = FitParams(
    basis="random", basis_size=20, features="plain", width_factor=0.3, alpha=1e-3,
    loss="squared-hinge", n_parts=2,
)  # fmt: skip
ENGINE = InlineEngine()


@pytest.fixture
def dataset():
    X, y = spirals(120)
    X += np.random.default_rng(0).normal(scale=0.4, size=X.shape)
    return write_table(MemoryStore(), X, y)


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(descents, "LEAST_VALUES", 1)
    monkeypatch.setattr(descents, "MAX_PASSES", 4)


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_kept__are_those_of_float32(dataset, tmp_path):
    kept = fit_dataset(dataset, tmp_path / "run", PARAMS, ENGINE)
    computed = fit_dataset(dataset, MemoryStore(), PARAMS, ENGINE)
    decided = [run.decisions["refine"]["keeps_activations"] for run in (kept, computed)]
    assert decided == [True, False]
    objectives = [REFINE.recorded(run).objective for run in (kept, computed)]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-6)
    assert objectives[0] != objectives[1]
    models = [Model.load(run.location) for run in (kept, computed)]
    np.testing.assert_allclose(
        models[0].weights, models[1].weights, atol=1e-4 * np.abs(models[1].weights).max()
    )
    assert not list((tmp_path / "run").glob("refine-*"))


@pytest.mark.usefixtures("kept")
def test_kept__are_read_again(dataset, tmp_path, monkeypatch):
    with pytest.raises(StoppedError):
        fit_dataset(dataset, tmp_path / "run", PARAMS, CountingEngine(2, label="refine"))
    blocks = (tmp_path / "run").glob("refine-activations/parts/*/*/values/c/0/0")
    sizes = {int(chunk.parts[-6]): chunk.stat().st_size for chunk in blocks}
    assert sizes == {0: 4 * 60 * 20 + 4, 60: 4 * 60 * 20 + 4}
    monkeypatch.setattr(RadialFeatures, "activations", None)
    fit_dataset(dataset, tmp_path / "run", PARAMS, ENGINE)


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("damage", ["lost", "short"])
def test_kept__come_to_the_same_bits_if_they_are_lost(dataset, tmp_path, damage):
    expected = fit_dataset(dataset, tmp_path / "whole", PARAMS, ENGINE)
    place = tmp_path / "run"
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, PARAMS, CountingEngine(3, label="refine"))
    (chunk,) = place.glob("refine-activations/parts/60/*/values/c/0/0")
    if damage == "lost":
        (chunk.parents[4] / "zarr.json").unlink()
    else:
        chunk.write_bytes(chunk.read_bytes()[:-9])
    run = fit_dataset(dataset, place, PARAMS, ENGINE)
    assert Model.load(run.location).digest() == Model.load(expected.location).digest()
    assert REFINE.recorded(run) == REFINE.recorded(expected)


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_kept__no_room_on_the_disk(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(descents, "_SHARE_OF_DISK", 0.0)
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, ENGINE)
    assert run.decisions["refine"] == {"keeps_activations": False}


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_kept__a_run_goes_on_as_it_began(dataset, tmp_path, monkeypatch):
    expected = fit_dataset(dataset, tmp_path / "whole", PARAMS, ENGINE)
    with pytest.raises(StoppedError):
        fit_dataset(dataset, tmp_path / "run", PARAMS, CountingEngine(3, label="refine"))
    monkeypatch.setattr(descents, "LEAST_VALUES", 9)
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, ENGINE)
    assert Model.load(run.location).digest() == Model.load(expected.location).digest()
