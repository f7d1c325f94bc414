"""A command runs its tasks in its own process, unless an option asks for workers."""

import json
import os
import subprocess
import sys

import pytest

from dask_nrbfn import Model, Run
from dask_nrbfn.numeric import device
from tests.cli.program import PROGRAM, json_of, refuse, succeed
from tests.stand_in_gpu import StandInGpu
from tests.tables import spirals, write_table

FIT = ("--basis-size", 6, "--alpha", 1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("here") / "data", *spirals(60), chunk_rows=20)


class ClusterStartedError(Exception):
    """Raised where a cluster would start."""


def test_fit__starts_a_cluster_only_for_workers(data, tmp_path, monkeypatch):
    def start(**options):
        raise ClusterStartedError

    monkeypatch.setattr("dask_nrbfn.engine.connection.LocalCluster", start)
    succeed("fit", data.location, tmp_path / "run", *FIT)
    succeed("fit", data.location, tmp_path / "limited", *FIT, "--memory", "1GiB")
    with pytest.raises(ClusterStartedError):
        succeed("fit", data.location, tmp_path / "other", *FIT, "--workers", 1)


@pytest.fixture
def stand_in(monkeypatch):
    gpu = StandInGpu()
    monkeypatch.setattr(device, "open_gpu", lambda: gpu)
    monkeypatch.setattr("dask_nrbfn.engine.connection.open_gpu", lambda: gpu)
    return gpu


def test_device__of_commands_that_compute(data, tmp_path, stand_in):
    run, tuned, out = tmp_path / "run", tmp_path / "tuned", tmp_path / "out.zarr"
    new = write_table(tmp_path / "new", *spirals(30, seed=1)).location
    tuning = ("--effort", "quick", "--folds", 2, "--alphas", "1e-6,1e-4", "--width-factors", 1)
    for command in (
        ("fit", data.location, run, *FIT),
        ("predict", run, data.location, out),
        ("evaluate", run, data.location),
        ("update", run, new),
        ("tune", data.location, tuned, "--basis-size", 6, *tuning),
    ):
        succeed(*command, "--device", "gpu")
        assert stand_in.uploads
        stand_in.uploads.clear()
    assert Run.open(run).stages["moments"]["device"] == "gpu"
    assert Run.open(tuned).stages["validation"]["device"] == "gpu"


@pytest.fixture
def rates(tmp_path):
    """Give a file of rates, so that a plan measures none."""
    names = ("products", "exponentials", "pairs", "bytes")
    (tmp_path / "rates.json").write_text(json.dumps(dict.fromkeys(names, 1e9)))
    return "--rates", tmp_path / "rates.json"


def test_plan__largest_basis_of_the_gpu(data, stand_in, rates):
    gpu = ("--device", "gpu", "--basis-size", 6, *rates)
    # Bytes times the square of r, 8 for each fold, in nine tenths of 1 GiB.
    for options, n_bytes in (
        (("--alpha", 1e-6), 12),
        (("--alpha", 1e-6, "--locality", 0.1), 24),
        (("--tune", "quick"), 40),
    ):
        planned = json_of("plan", data.location, *gpu, *options)
        assert planned["largest_basis"] == int((0.9 * 2**30 / n_bytes) ** 0.5)


def test_plan__without_a_gpu(data, monkeypatch, rates):
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.open_gpu.cache_clear()
    planned = succeed("plan", data.location, "--device", "gpu", *FIT, *rates)
    assert "This machine has no GPU" in planned


def test_device__without_cupy(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.open_gpu.cache_clear()
    problem, fix = refuse("fit", data.location, tmp_path / "run", *FIT, "--device", "gpu")
    assert problem.startswith("--device is gpu, but CuPy or a library of CUDA cannot be loaded")
    assert fix.startswith("Leave --device out")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_fit__has_the_bits_of_a_cluster(data, tmp_path):
    # As a batch system sets it: a cluster takes all cores all the same.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = (*FIT, "--scale", "learned", "--n-parts", "5")
    threads = []
    for name, engine in (("here", ()), ("there", ("--workers", 1))):
        command = (*PROGRAM, "fit", data.location, tmp_path / name, *options, *engine)
        subprocess.run([*map(str, command)], env=environment, check=True)
        threads.append(Run.open(tmp_path / name).attributes["environment"]["threads"])
    assert threads[0] == threads[1]
    assert Model.load(tmp_path / "here").digest() == Model.load(tmp_path / "there").digest()
