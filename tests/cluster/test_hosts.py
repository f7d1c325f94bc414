"""A cluster of several hosts, as cluster/README.md says, and what cuts off one of them."""

import subprocess
import sys
import time

import numpy as np
import pytest

from tests.cluster.hosts import Network, why_not
from tests.cluster.manifests import CLUSTER
from tests.cluster.secured import PLAIN, START, secured
from tests.engine.processes import PATIENCE_S, wait_until
from tests.tables import spirals

pytestmark = [pytest.mark.slow, pytest.mark.ci]

N_ROWS, N_NEW = 20_000, 2_000
FIT = "--basis-size 1200 --set n_parts=8 --set neighbors=exact"

STORE = {
    "AWS_ENDPOINT_URL": "http://store:5000",
    "AWS_ACCESS_KEY_ID": "me",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "*",
}

# Digest of the moments and weights of a run.
DIGEST = """
import hashlib, sys
from dask_nrbfn.storage.run import Run
run = Run.open(sys.argv[1])
names = ("moments/packed_gram", "moments/products", "weights/values")
print(*(hashlib.sha256(run.read(name).tobytes()).hexdigest() for name in names))
"""

# Return when a scheduler has both workers.
WAIT = """
import sys
from distributed import Client
with Client(sys.argv[1]) as client:
    client.wait_for_workers(2)
"""


def recipe():
    """Return the shell blocks of "On several machines": certificates, scheduler, worker, job."""
    text = (CLUSTER / "README.md").read_text()
    section = text.partition("## On several machines\n")[2].partition("\n## ")[0]
    blocks, block = [], []
    for line in [*section.splitlines(), "end"]:
        if line.startswith("    "):
            block.append(line[4:])
        elif block:
            blocks.append("\n".join(block))
            block = []
    return blocks


class Cluster:
    """A scheduler on node1, workers on node2 and node3, a store, and jobs on desk."""

    def __init__(self, network, shared):
        self.network, self.shared = network, shared
        self.environment = PLAIN | STORE
        certificates, self._scheduler, self._worker, self._job = map(self._here, recipe())
        (make,) = [line for line in certificates.splitlines() if "certificates.py" in line]
        subprocess.run(make, shell=True, cwd=CLUSTER.parent, env=PLAIN, check=True)

    def _here(self, block):
        changes = {"/shared": str(self.shared), "THREADS=8": "THREADS=1", "32GiB": "1GiB"}
        for old, new in changes.items():
            block = block.replace(old, new)
        return block

    def start(self, host, block, name=None):
        """Run a block of shell on a host; its log has the name of the host if no other."""
        with self._log(name or host).open("ab") as log:
            options = {"cwd": CLUSTER.parent, "env": self.environment, "stdout": log, "stderr": log}
            return self.network.start(host, ["sh", "-euc", block], **options)

    def bring_up(self):
        self.start("store", f"exec {sys.executable} -m moto.server -H 0.0.0.0 -p 5000")
        wait_until(lambda: "Running on" in self.log("store"))
        self.finish("import s3fs; s3fs.S3FileSystem().mkdir('data')")
        self.start("node1", self._scheduler)
        for host in ("node2", "node3"):
            self.start(host, self._worker)
        self.wait_for_workers()

    def wait_for_workers(self):
        """Wait until the scheduler has both workers, or has them again."""
        environment = secured(self.shared / "certificates", self.environment)
        command = [str(START), sys.executable, "-c", WAIT, "tls://node1:8786"]
        process = self.network.start("desk", command, env=environment)
        assert process.wait(PATIENCE_S) == 0

    def begin(self, command, name):
        """Start a job by the recipe."""
        return self.start("desk", self._job.replace("fit data.zarr run.zarr", command), name)

    def inline(self, command, name):
        return self.start("desk", f"dask-nrbfn {command} --workers 0 --threads 1", name)

    def finish(self, program, *arguments):
        """Run a program of Python on the desk; return what it prints."""
        process = self.network.start(
            "desk",
            [sys.executable, "-c", program, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        return output

    def bits(self, name):
        return self.finish(DIGEST, f"s3://data/{name}.zarr")

    def log(self, name):
        return self._log(name).read_text() if self._log(name).exists() else ""

    def _log(self, name):
        return self.shared / f"{name}.log"

    def succeed(self, job, name):
        assert job.wait(4 * PATIENCE_S) == 0, self.log(name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    shared = tmp_path_factory.mktemp("shared")
    with Network("node1", "node2", "node3", "desk", "store") as network:
        cluster = Cluster(network, shared)
        cluster.bring_up()
        write_rows(shared / "rows.csv", N_ROWS, seed=0)
        write_rows(shared / "new.csv", N_NEW, seed=1)
        ingest = f"dask-nrbfn ingest {shared}/rows.csv s3://data/rows.zarr --label kind"
        cluster.succeed(cluster.start("desk", ingest, "ingest"), "ingest")
        yield cluster


def write_rows(path, n_rows, *, seed):
    X, y = spirals(n_rows, n_features=8, seed=seed)
    names = [*"abcdefgh", "kind"]
    np.savetxt(path, np.column_stack([X, y]), "%.6f", ",", header=",".join(names), comments="")


@pytest.fixture(scope="module")
def one_machine(cluster):
    """Give the bits of a fit without a cluster."""
    cluster.succeed(
        cluster.inline(f"fit s3://data/rows.zarr s3://data/one.zarr {FIT}", "one"), "one"
    )
    return cluster.bits("one")


def fit_into(name):
    return f"fit s3://data/rows.zarr s3://data/{name}.zarr {FIT}"


def begin_fit(cluster, name):
    """Start a fit; return it when its sums begin."""
    cluster.wait_for_workers()
    job = cluster.begin(fit_into(name), name)
    wait_until(lambda: "width: " in cluster.log(name), process=job)
    time.sleep(1)
    return job


def test_hosts__fit_update_and_prediction(cluster, one_machine):
    job = begin_fit(cluster, "several")
    cluster.succeed(job, "several")
    assert "up to 2 tasks at a time on tls://10.77.0.1:8786" in cluster.log("several")
    assert cluster.bits("several") == one_machine
    for name in ("several", "one"):
        begin = cluster.begin if name == "several" else cluster.inline
        run, new = f"s3://data/{name}.zarr", f"{cluster.shared}/new.csv"
        cluster.succeed(begin(f"update {run} {new}", "update"), "update")
        cluster.succeed(begin(f"predict {run} {new} {cluster.shared}/{name}.csv", "use"), "use")
    several, one = ((cluster.shared / f"{name}.csv").read_text() for name in ("several", "one"))
    assert several == one
    assert len(several.splitlines()) == 1 + N_NEW


def test_hosts__worker_is_gone_for_good(cluster, one_machine):
    job = begin_fit(cluster, "gone")
    try:
        cluster.network.cut_off("node3")
        # Shorter than dask takes to notice.
        time.sleep(5)
        assert job.poll() is None
        cluster.succeed(job, "gone")
        assert cluster.bits("gone") == one_machine
    finally:
        cluster.network.connect("node3")
