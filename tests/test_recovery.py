"""Any process may die at any moment; started again, a fit ends with the same bits."""

import os
import random
import subprocess
import sys
import time
from functools import cache

import numpy as np
import pytest

from dask_nrbfn.engine.threads import worker_environment
from dask_nrbfn.storage.run import Run
from tests.engine.processes import PATIENCE_S, Processes, alive, kill_tree, wait_until
from tests.tables import spirals, write_table

pytestmark = pytest.mark.slow

# Options of the fits that are disturbed, in turn.
FITS = (
    ("--neighbors", "exact"),
    ("--neighbors", "exact", "--n-partitions", "6"),
)

MAX_STARTS = 5
# One dies early, mostly while the job connects, the next one anywhere.
VICTIMS = ("nanny", "worker", "scheduler", "job")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Give the path of a dataset."""
    path = tmp_path_factory.mktemp("table") / "data.zarr"
    write_table(path, *spirals(6000, n_features=8))
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Give a cluster for all tests; whoever needs it revives what was killed before."""
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


class Job:
    """``dask_nrbfn fit`` on a cluster, started as often as it takes."""

    def __init__(self, cluster, table, run, options):
        self.cluster, self.run, self.log = cluster, run, run.with_suffix(".log")
        self._command = [
            *(sys.executable, "-m", "dask_nrbfn", "fit", str(table), str(run)),
            *("--basis-size", "200", "--n-parts", "12", *options),
            *("--scheduler", cluster.address),
        ]
        self._process = None

    def start(self):
        environment = os.environ | worker_environment(1)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def kill(self):
        kill_tree(self._process.pid)
        self._process.wait(PATIENCE_S)

    def wait_until(self, condition):
        """Wait for something the job does, and bring back what dies, or was dying before."""
        wait_until(lambda: self.cluster.revive() or condition())

    def is_alive(self):
        return alive(self._process)

    def finish(self):
        """Bring back what dies until the job ends well; return how often it was started."""
        for n_starts in range(1, MAX_STARTS + 1):
            deadline = time.monotonic() + 2 * PATIENCE_S
            while self.is_alive():
                assert time.monotonic() < deadline, self.log.read_text()
                self.cluster.revive()
                time.sleep(0.05)
            if self._process.returncode == 0:
                return n_starts
            # 2 is an error that tells how to mend it, -9 the killed job itself.
            assert self._process.returncode in (2, -9), self.log.read_text()
            self.start()
        raise AssertionError(self.log.read_text())

    def bits(self):
        moments = Run.open(self.run)
        return {name: moments.read(f"moments/{name}") for name in ("packed_gram", "products")}


@pytest.fixture(scope="module")
def undisturbed(cluster, table, tmp_path_factory):
    """Give a function that returns bits and seconds of an undisturbed fit that has begun."""

    @cache
    def fit(options):
        cluster.revive()
        job = Job(cluster, table, tmp_path_factory.mktemp("undisturbed") / "run", options)
        job.start()
        job.wait_until(job.run.exists)
        start = time.monotonic()
        assert job.finish() == 1
        return job.bits(), time.monotonic() - start

    return fit


@pytest.mark.parametrize(("seed", "victim"), [*enumerate(VICTIMS)])
def test_fit__a_random_process_dies(cluster, table, undisturbed, tmp_path, seed, victim):
    options = FITS[seed % 2]
    expected, seconds = undisturbed(options)
    rng = random.Random(seed)
    job = Job(cluster, table, tmp_path / "run", options)
    cluster.revive()
    job.start()
    if seed % 2:
        job.wait_until(job.run.exists)
    time.sleep(rng.uniform(0, seconds))
    if victim == "job":
        job.kill()
    else:
        cluster.kill(victim)
    job.finish()
    for name, values in job.bits().items():
        np.testing.assert_array_equal(values, expected[name], strict=True)
    assert "Traceback" not in job.log.read_text()
