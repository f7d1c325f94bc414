"""The whole pipeline on a cluster with TLS, and nobody there without its certificates."""

import subprocess
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

from dask_nrbfn.storage.run import Run
from tests.cluster.secured import PLAIN, START, make_certificates, secured
from tests.engine.processes import PATIENCE_S, free_port, kill_tree, wait_until
from tests.tables import spirals, write_table

pytestmark = pytest.mark.slow

N_ROWS, N_WORKERS = 3000, 2

# Whoever is kept out is told so without delay.
HURRIED = PLAIN | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler and workers: where they are, their certificates and their log."""
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
        yield SimpleNamespace(
            address=address, http_port=http_port, certificates=certificates, log=path
        )
    finally:
        for process in processes:
            kill_tree(process.pid)
            process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Give a directory with a dataset, and the certificates of another cluster."""
    directory = tmp_path_factory.mktemp("work")
    write_table(directory / "data.zarr", *spirals(N_ROWS), chunk_rows=250)
    make_certificates(directory / "strange")
    return directory


def nrbfn(arguments, directory, environment=PLAIN, start=()):
    return subprocess.run(
        [*start, "dask-nrbfn", *arguments.split()],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )


def succeed(process):
    assert process.returncode == 0, process.stderr
    return process.stderr


def test_tls__pipeline_by_the_command_line(cluster, work):
    options = {"environment": secured(cluster.certificates), "start": [str(START)]}
    runs = {"remote": f"--scheduler {cluster.address}", "inline": "--workers 0 --threads 1"}
    for name, where in runs.items():
        exact = "--n-parts 12 --neighbors exact"
        fit = f"fit data.zarr {name}.zarr --basis-size 100 {exact} {where}"
        log = succeed(nrbfn(fit, work, **options))
        assert (f"up to {N_WORKERS} tasks at a time on tls://" in log) == (name == "remote")
        succeed(nrbfn(f"predict {name}.zarr data.zarr {name}.csv {where}", work, **options))
    grams = [Run.open(work / f"{name}.zarr").read("moments/packed_gram") for name in runs]
    np.testing.assert_array_equal(*grams, strict=True)
    labels = [np.loadtxt(work / f"{name}.csv", str, delimiter=",", usecols=0) for name in runs]
    np.testing.assert_array_equal(*labels, strict=True)


def test_tls__local_cluster_of_a_fit_too(cluster, work):
    environment = secured(cluster.certificates)
    fit = "fit data.zarr local.zarr --basis-size 50 --neighbors exact --workers 2"
    log = succeed(nrbfn(fit, work, environment, start=[str(START)]))
    assert "on tls://" in log


STRANGERS = pytest.mark.parametrize(("start", "scheme"), [([], "tcp"), ([str(START)], "tls")])


@STRANGERS
def test_tls__client_without_the_certificates_is_kept_out(cluster, work, start, scheme):
    address = cluster.address.replace("tls", scheme)
    environment = secured(work / "strange", HURRIED) if start else HURRIED
    process = nrbfn(f"fit data.zarr no.zarr --scheduler {address}", work, environment, start)
    assert process.returncode == 2, process.stderr
    assert f"no scheduler answers at {address}" in process.stderr
    assert not (work / "no.zarr").exists()


@STRANGERS
def test_tls__worker_without_the_certificates_is_kept_out(cluster, work, start, scheme):
    address = cluster.address.replace("tls", scheme)
    worker = f"dask worker {address} --nthreads 1 --death-timeout 5"
    environment = secured(work / "strange", HURRIED) if start else HURRIED
    process = subprocess.run(
        [*start, *worker.split()],
        cwd=work,
        env=environment,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert process.returncode != 0
    assert cluster.log.read_text().count("Register worker addr") == N_WORKERS


def test_tls__http_tells_only_that_the_scheduler_lives(cluster):
    statuses = {}
    for page in ("health", "info/main/workers.html", "json/counts.json"):
        try:
            url = f"http://127.0.0.1:{cluster.http_port}/{page}"
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                statuses[page] = answer.status
        except urllib.error.HTTPError as error:
            with error:
                statuses[page] = error.code
    assert list(statuses.values()) == [200, 404, 404]
