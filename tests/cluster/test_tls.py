"""The whole pipeline on a cluster with TLS, and nobody there without its certificates."""

import subprocess
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

from dask_nrbfn.storage.run import Run
from tests.cluster.secured import PLAIN, START, call, make_certificates, secured
from tests.engine.processes import PATIENCE_S, free_port, kill_tree, wait_until
from tests.tables import spirals, write_table

pytestmark = pytest.mark.slow

N_ROWS, N_WORKERS = 3000, 2

# Whoever is kept out is told so without delay.
HURRIED = PLAIN | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler and workers: where they are, and their certificates."""
    directory, port, http_port = tmp_path_factory.mktemp("cluster"), free_port(), free_port()
    certificates, path = make_certificates(directory / "certificates"), directory / "cluster.log"
    address = f"tls://127.0.0.1:{port}"
    scheduler = f"scheduler --port {port} --dashboard-address 127.0.0.1:{http_port} --no-dashboard"
    worker = f"worker {address} --nthreads 1 --memory-limit 1GiB --no-dashboard"
    with path.open("ab") as log:
        options = {"cwd": directory, "env": secured(certificates), "stdout": log, "stderr": log}
        processes = [
            subprocess.Popen([str(START), "dask", *command.split()], **options)
            for command in (scheduler, *[worker] * N_WORKERS)
        ]
    try:
        wait_until(lambda: path.read_text().count("Register worker addr") == N_WORKERS)
        yield SimpleNamespace(address=address, http_port=http_port, certificates=certificates)
    finally:
        for process in processes:
            kill_tree(process.pid)
            process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    directory = tmp_path_factory.mktemp("work")
    write_table(directory / "data.zarr", *spirals(N_ROWS), chunk_rows=250)
    make_certificates(directory / "strange")
    return directory


def nrbfn(arguments, directory, environment=PLAIN, start=()):
    command = [*start, "dask-nrbfn", *arguments.split()]
    return call(command, patience=4, cwd=directory, env=environment)


def succeed(process):
    assert process.returncode == 0, process.stderr
    return process.stderr


def test_tls__pipeline_by_the_command_line(cluster, work):
    options = {"environment": secured(cluster.certificates), "start": [str(START)]}
    places = {"remote": f"--scheduler {cluster.address}", "local": f"--workers {N_WORKERS}"}
    for name, where in places.items():
        exact = "--n-parts 12 --neighbors exact"
        fit = f"fit data.zarr {name}.zarr --basis-size 100 {exact} {where}"
        log = succeed(nrbfn(fit, work, **options))
        assert f"up to {N_WORKERS} tasks at a time on tls://" in log
    for name, where in {**places, "local": "--workers 0"}.items():
        succeed(nrbfn(f"predict {name}.zarr data.zarr {name}.csv {where}", work, **options))
    grams = [Run.open(work / f"{name}.zarr").read("moments/packed_gram") for name in places]
    np.testing.assert_array_equal(*grams, strict=True)
    labels = [np.loadtxt(work / f"{name}.csv", str, delimiter=",", usecols=0) for name in places]
    np.testing.assert_array_equal(*labels, strict=True)


@pytest.mark.parametrize(("start", "scheme"), [([], "tcp"), ([str(START)], "tls")])
def test_tls__nobody_without_the_certificates_is_let_in(cluster, work, start, scheme):
    address = cluster.address.replace("tls", scheme)
    environment = secured(work / "strange", HURRIED) if start else HURRIED
    process = nrbfn(f"fit data.zarr no.zarr --scheduler {address}", work, environment, start)
    assert process.returncode == 2, process.stderr
    assert f"no scheduler answers at {address}" in process.stderr
    assert not (work / "no.zarr").exists()


def test_tls__http_tells_only_that_the_scheduler_lives(cluster):
    place = f"http://127.0.0.1:{cluster.http_port}"
    with urllib.request.urlopen(f"{place}/health", timeout=PATIENCE_S) as answer:
        assert answer.status == 200
    for page in ("info/main/workers.html", "json/counts.json"):
        with pytest.raises(urllib.error.HTTPError, match="404") as error:
            urllib.request.urlopen(f"{place}/{page}", timeout=PATIENCE_S)
        error.value.close()
