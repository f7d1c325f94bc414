"""A cluster of several hosts, as cluster/README.md says, and what cuts off one of them."""

import json
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
FIT = "--basis-size 1200 --n-parts 8 --neighbors exact"

# Shorter than dask takes to notice.
AT_ONCE_S = 5

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

# Every port of this host at which somebody listens, and not for this host alone.
PORTS = """
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{name}").read().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, port = local.split(":")
        if state == "0A" and address not in ("0100007F", "00000000000000000000000001000000"):
            print(int(port, 16))
"""

# What a stranger gets there: by TLS without a certificate, by dask's own protocol, by HTTP.
KNOCK = """
import json, socket, ssl, sys, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
host, *ports = sys.argv[1:]
context = ssl._create_unverified_context()
pages = ("health", "metrics", "status", "info/main/workers.html", "json/counts.json")

def first_byte(port, wrap):
    try:
        with socket.create_connection((host, port), 5) as plain, wrap(plain) as line:
            line.settimeout(5)
            return "silent" if line.recv(1) == b"" else "answered"
    except OSError:
        return "refused"

def status(port, page):
    try:
        return str(urllib.request.urlopen(f"http://{host}:{port}/{page}", timeout=5).status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError:
        return "refused"

def knock(port):
    answers = {page: status(port, page) for page in pages}
    answers["tls"] = first_byte(port, context.wrap_socket)
    answers["plain"] = first_byte(port, lambda plain: plain)
    return port, answers

with ThreadPoolExecutor() as pool:
    print(json.dumps(dict(pool.map(knock, map(int, ports)))))
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

    def begin(self, command, name, *, host="desk"):
        """Start a job by the recipe."""
        return self.start(host, self._job.replace("fit data.zarr run.zarr", command), name)

    def inline(self, command, name):
        return self.start("desk", f"dask-nrbfn {command} --workers 0 --threads 1", name)

    def finish(self, program, *arguments, host="desk"):
        """Run a program of Python on a host; return what it prints."""
        process = self.network.start(
            host,
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


def cut_off(cluster, host, job):
    """Cut off a host while a job runs, which does not end at once."""
    cluster.network.cut_off(host)
    time.sleep(AT_ONCE_S)
    assert job.poll() is None


def test_hosts__worker_is_gone_for_good(cluster, one_machine):
    job = begin_fit(cluster, "gone")
    try:
        cut_off(cluster, "node3", job)
        cluster.succeed(job, "gone")
        assert cluster.bits("gone") == one_machine
    finally:
        cluster.network.connect("node3")


def test_hosts__strangers_are_refused_at_every_port(cluster):
    cluster.wait_for_workers()
    served = {"health": "200", "metrics": "200"}
    n_ports = 0
    for host in ("node1", "node2", "node3"):
        ports = cluster.finish(PORTS, host=host).split()
        for port, answers in json.loads(cluster.finish(KNOCK, host, *ports)).items():
            assert answers.pop("tls") == "refused", (host, port)
            assert answers.pop("plain") in ("refused", "silent"), (host, port)
            for page, answer in answers.items():
                assert answer in ("refused", served.get(page, "404")), (host, port, page)
            n_ports += 1
    # The scheduler and its HTTP; of each of two hosts a nanny, a worker and its HTTP.
    assert n_ports >= 8
