"""Commands with a few seconds of work start no cluster, unless an option asks for one."""

import os
import shutil
import subprocess

import pytest

from dask_nrbfn.cli import job
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.cli.program import PROGRAM, succeed
from tests.scenes import drawn_scene, write_scene
from tests.tables import spirals, write_table

FIT = ("--basis-size", 6, "--alpha", 1e-6)
QUICK = ("--effort", "quick", "--folds", 2, "--alphas", "1e-6", "--width-factors", "0.5,1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("small")
    write_table(place / "data", *spirals(60), chunk_rows=20)
    write_table(place / "more", *spirals(30, seed=1), chunk_rows=20)
    write_table(place / "further", *spirals(30, seed=2), chunk_rows=20)
    succeed("fit", place / "data", place / "run", *FIT, "--workers", 0)
    return place


class ClusterStartedError(Exception):
    """Raised where a cluster would start."""


@pytest.fixture
def no_cluster(monkeypatch):
    def start(**options):
        raise ClusterStartedError

    monkeypatch.setattr("dask_nrbfn.engine.connection.LocalCluster", start)


@pytest.mark.usefixtures("no_cluster")
def test_commands__start_no_cluster_for_small_work(place, tmp_path):
    succeed("fit", place / "data", tmp_path / "run", *FIT)
    shutil.copytree(tmp_path / "run", tmp_path / "site")
    for command in (
        ("tune", place / "data", tmp_path / "tuned", *QUICK, *FIT[:2]),
        ("embed", place / "data", tmp_path / "embedded", *FIT[:2]),
        ("predict", tmp_path / "run", place / "data", tmp_path / "labels.csv"),
        ("evaluate", tmp_path / "run", place / "data"),
        ("report", place / "run", "--out", tmp_path / "page.html", "--evaluate", place / "data"),
        ("update", tmp_path / "run", place / "more"),
        ("update", tmp_path / "site", place / "further"),
        ("update", tmp_path / "site", place / "data", "--forget"),
        ("merge", tmp_path / "run", tmp_path / "site"),
        ("refresh", tmp_path / "run"),
    ):
        succeed(*command)


@pytest.mark.usefixtures("no_cluster")
def test_predict__starts_no_cluster_for_a_small_scene(tmp_path):
    scene = write_scene(drawn_scene(), tmp_path / "scene.zarr")
    where = ("--variable", "reflectance", "--feature-dim", "band")
    succeed("ingest", scene, tmp_path / "pixels", *where, "--label", "cover")
    succeed("fit", tmp_path / "pixels", tmp_path / "run", *FIT)
    succeed("predict", tmp_path / "run", scene, tmp_path / "map.zarr", *where)


@pytest.mark.slow
def test_fit__has_the_bits_of_a_cluster(place, tmp_path):
    # As a batch system sets it: a cluster takes all cores all the same.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = (*FIT, "--scale", "learned", "--n-parts", 5)
    threads = []
    for name, asked in (("here", ()), ("there", ("--workers", 1))):
        command = (*PROGRAM, "fit", place / "data", tmp_path / name, *options, *asked)
        subprocess.run([*map(str, command)], env=environment, check=True)
        threads.append(Run.open(tmp_path / name).attributes["environment"]["threads"])
    assert threads[0] == threads[1]
    assert Model.load(tmp_path / "here").digest() == Model.load(tmp_path / "there").digest()


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize("option", [(), ("--workers", 1), ("--memory", "1GiB")])
def test_fit__on_a_cluster_if_asked_or_if_the_work_is_not_small(
    place, tmp_path, monkeypatch, option
):
    if not option:
        monkeypatch.setattr(job, "SMALL_WORK_S", 0.0)
    with pytest.raises(ClusterStartedError):
        succeed("fit", place / "data", tmp_path / "run", *FIT, *option)
