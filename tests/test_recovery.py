"""Any process may die at any moment; started again, a fit ends with the same bits."""

import os
import random
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from distributed import Client

from dask_nrbfn.engine.threads import worker_environment
from dask_nrbfn.storage.layout import parts_in
from dask_nrbfn.storage.run import Run
from tests.engine.processes import PATIENCE_S, Processes, alive, kill_tree, wait_until
from tests.tables import spirals, write_table

pytestmark = pytest.mark.slow

# Options of the fits that are disturbed, in turn.
FITS = (
    ("--set", "neighbors=exact"),
    ("--set", "neighbors=exact", "--set", "n_partitions=6"),
)

N_ROWS, N_PARTS, BASIS_SIZE = 6000, 12, 200
MAX_STARTS = 5
# One dies early, mostly while the job connects, the next one anywhere.
VICTIMS = ("nanny", "worker", "scheduler", "job")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Give the path of a dataset."""
    path = tmp_path_factory.mktemp("table") / "data.zarr"
    write_table(path, *spirals(N_ROWS, n_features=8))
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Give a cluster for all tests; whoever needs it revives what was killed before."""
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


class Job:
    """``dask_nrbfn fit`` on a cluster, started as often as it takes."""

    def __init__(self, cluster, table, run, options, basis_size=BASIS_SIZE, n_parts=N_PARTS):
        self.cluster, self.run, self.log = cluster, run, run.with_suffix(".log")
        self._command = [
            *(sys.executable, "-m", "dask_nrbfn", "fit", str(table), str(run)),
            *("--basis-size", str(basis_size), "--set", f"n_parts={n_parts}", *options),
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
    done = {}

    def fit(options, **size):
        key = (options, *size.values())
        if key not in done:
            cluster.revive()
            run = tmp_path_factory.mktemp("undisturbed") / "run"
            job = Job(cluster, table, run, options, **size)
            job.start()
            job.wait_until(job.run.exists)
            start = time.monotonic()
            assert job.finish() == 1
            done[key] = job.bits(), time.monotonic() - start
        return done[key]

    return fit


def assert_same_bits(job, expected):
    for name, values in job.bits().items():
        np.testing.assert_array_equal(values, expected[name], strict=True)


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
    assert_same_bits(job, expected)
    assert "Traceback" not in job.log.read_text()


# Large enough that each stage lasts long enough to be killed in its middle.
LARGE = {"basis_size": 1200, "n_parts": 40}


def test_fit__bytes_of_finished_parts_flip(cluster, table, undisturbed, tmp_path):
    options = ("--set", "neighbors=exact")
    expected, _ = undisturbed(options, **LARGE)
    rng = random.Random(0)
    job = Job(cluster, table, tmp_path / "run", options, **LARGE)
    cluster.revive()
    job.start()
    parts = job.run / "moments" / "parts"
    job.wait_until(lambda: len(parts_written(parts)) > 5)
    job.kill()
    wait_until(lambda: is_idle(cluster))
    files = rng.sample(files_of_finished_parts(parts), 2)
    flipped = [flip_byte(rng, path) for path in files]
    job.log.unlink()
    job.start()
    assert job.finish() == 1
    assert_same_bits(job, expected)
    assert re.search(r"damaged|checksum|cannot be read", job.log.read_text()), flipped
    assert re.search(r"(done|computed) again", job.log.read_text()), flipped


def is_idle(cluster):
    """Return whether no task of a job that is gone still runs, which may use what is damaged."""
    with Client(cluster.address, set_as_default=False) as client:
        return not any(client.run(n_executing).values())


def n_executing(dask_worker):
    return len(dask_worker.state.executing)


def parts_written(parts):
    """Return the parts that are there, alone or in a sum."""
    names = (path.parent.name for path in parts.glob("*/zarr.json"))
    return {part for name in names for part in parts_in(name)}


def files_of_finished_parts(parts):
    records = parts.glob("*/zarr.json")
    finished = [path.parent.name for path in records if '"record"' in path.read_text()]
    assert finished, "moments were not killed in their middle"
    # Nor a part that a finished sum contains: it is deleted.
    finished = [name for name in finished if not is_contained(name, finished)]
    directories = [parts / index for index in finished]
    files = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    # Nobody reads the metadata of the group of one attempt, parts/3/0f3a.../zarr.json.
    return sorted(path for path in files if path.name != "zarr.json" or path.parents[2] != parts)


def is_contained(name, others):
    """Return whether a part, or a sum of parts, is in the sum of more."""
    own = {*parts_in(name)}
    return any(own < {*parts_in(other)} for other in others)


def flip_byte(rng, path):
    content = bytearray(path.read_bytes())
    # Without the key "configuration" zarr takes its defaults, which are what was written, and the
    # format of a group it does not look at: what is read is as it was.
    ignored = re.finditer(rb'configuration|"zarr_format": 3', content)
    spans = [match.span() for match in ignored]
    position = rng.choice([i for i in range(len(content)) if not any(a <= i < b for a, b in spans)])
    content[position] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bit of byte {position} of {path}"


def test_fit__ends_with_its_scheduler_and_goes_on_when_started_again(cluster, table, tmp_path):
    job = Job(cluster, table, tmp_path / "run", ("--set", "neighbors=exact"), **LARGE)
    cluster.revive()
    job.start()
    job.wait_until((job.run / "neighbors" / "parts").exists)
    cluster.kill("scheduler")
    wait_until(lambda: not job.is_alive())
    log = job.log.read_text()
    assert "Traceback" not in log
    problem, remedy, summary = log.splitlines()[-3:]
    assert summary.endswith("exit status 2")
    assert problem == f"error: the connection to the scheduler {cluster.address} is lost."
    assert remedy == "  fix: Start the scheduler and the job again: finished parts are kept."
    job.start()
    assert job.finish() == 1
    assert "parts found" in job.log.read_text()
