"""A cluster of several hosts, as cluster/README.md says, and what cuts off one of them."""

import re
import subprocess
import textwrap
import time

import numpy as np
import pytest

from dask_nrbfn.storage.run import Run
from tests.cluster.hosts import Network, why_not
from tests.cluster.secured import CLUSTER, PLAIN
from tests.engine.processes import PATIENCE_S, wait_until
from tests.tables import spirals, write_table

pytestmark = [pytest.mark.slow, pytest.mark.ci]

FIT = "--basis-size 1200 --n-parts 8 --neighbors exact"


def recipe(shared):
    """Return the shell blocks of "On several machines": certificates, scheduler, worker, job."""
    text = (CLUSTER / "README.md").read_text().partition("## On several machines\n")[2]
    for old, new in {"/shared": str(shared), "THREADS=8": "THREADS=1", "32GiB": "1GiB"}.items():
        text = text.replace(old, new)
    blocks = re.findall(r"(?:^    .+\n)+", text.partition("\n## ")[0], re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks]


@pytest.fixture(scope="module")
def network():
    if reason := why_not():
        pytest.skip(reason)
    with Network("node1", "node2", "node3", "desk") as network:
        yield network


class Hosts:
    def __init__(self, network, shared):
        self._network, self._shared = network, shared
        certificates, scheduler, worker, self._job = recipe(shared)
        (make,) = [line for line in certificates.splitlines() if "certificates.py" in line]
        subprocess.run(make, shell=True, cwd=CLUSTER.parent, env=PLAIN, check=True)
        for host, block in (("node1", scheduler), ("node2", worker), ("node3", worker)):
            self.start(host, block)
        wait_until(lambda: self.log("node1").count("Register worker addr") == 2)

    def start(self, host, block):
        """Run a block of shell on a host, whose log has its name."""
        with (self._shared / f"{host}.log").open("ab") as log:
            options = {"cwd": CLUSTER.parent, "env": PLAIN, "stdout": log, "stderr": log}
            return self._network.start(host, ["sh", "-euc", block], **options)

    def begin(self, command):
        return self.start("desk", self._job.replace("fit data.zarr run.zarr", command))

    def log(self, host):
        return (self._shared / f"{host}.log").read_text()


def moments(place):
    return [Run.open(place).read(f"moments/{name}") for name in ("packed_gram", "products")]


def test_hosts__worker_is_gone_for_good(network, tmp_path):
    write_table(tmp_path / "data", *spirals(20_000, n_features=8))
    hosts = Hosts(network, tmp_path)
    job = hosts.begin(f"fit {tmp_path}/data {tmp_path}/several {FIT}")
    wait_until(lambda: "width: " in hosts.log("desk"), process=job)
    time.sleep(1)
    network.cut_off("node3")
    # Shorter than dask takes to notice.
    time.sleep(5)
    assert job.poll() is None
    assert job.wait(4 * PATIENCE_S) == 0, hosts.log("desk")
    assert "up to 2 tasks at a time on tls://10.77.0.1:8786" in hosts.log("desk")
    one = f"dask-nrbfn fit {tmp_path}/data {tmp_path}/one {FIT} --workers 0 --threads 1"
    assert hosts.start("desk", one).wait(4 * PATIENCE_S) == 0
    for found, expected in zip(
        moments(tmp_path / "several"), moments(tmp_path / "one"), strict=True
    ):
        np.testing.assert_array_equal(found, expected, strict=True)
