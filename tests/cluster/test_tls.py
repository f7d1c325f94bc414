"""The whole pipeline on a cluster with TLS, and nobody there without its certificates."""

import contextlib
import http.client
import socket
import ssl
import subprocess

import numpy as np
import pytest

from dask_nrbfn.storage.run import Run
from tests.cluster.secured import PLAIN, START, SecuredProcesses, make_certificates, secured
from tests.engine.processes import PATIENCE_S
from tests.tables import spirals

pytestmark = pytest.mark.slow

N_ROWS, N_WORKERS = 3000, 3

# Whoever is kept out is told so without delay.
HURRIED = PLAIN | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with SecuredProcesses(tmp_path_factory.mktemp("cluster"), N_WORKERS) as processes:
        yield processes


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Give the certificates of another cluster."""
    return make_certificates(tmp_path_factory.mktemp("strangers") / "certificates")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Give a directory with a table and its dataset."""
    directory = tmp_path_factory.mktemp("work")
    table = np.column_stack(spirals(N_ROWS, n_features=4))
    header, formats = "a,b,c,d,kind", ["%.6f"] * 4 + ["%d"]
    np.savetxt(directory / "rows.csv", table, formats, ",", header=header, comments="")
    succeed(nrbfn("ingest rows.csv data.zarr --label kind --chunk-rows 250", directory))
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
    return process.stdout, process.stderr


def test_tls__pipeline_by_the_command_line(cluster, work):
    def run(arguments, where):
        options = {"environment": secured(cluster.certificates), "start": [str(START)]}
        return succeed(nrbfn(f"{arguments} {where}", work, **options))

    runs = {"remote": f"--scheduler {cluster.address}", "inline": "--workers 0 --threads 1"}
    for name, where in runs.items():
        fit = f"fit data.zarr {name}.zarr --basis-size 100 --n-parts 12 --neighbors exact"
        _, log = run(fit, where)
        assert (f"up to {N_WORKERS} tasks at a time on tls://" in log) == (name == "remote")
        out, _ = run(f"evaluate {name}.zarr data.zarr", where)
        assert "error_rate" in out
        run(f"predict {name}.zarr data.zarr {name}.csv", where)
    grams = [Run.open(work / f"{name}.zarr").read("moments/packed_gram") for name in runs]
    np.testing.assert_array_equal(*grams, strict=True)
    labels = [np.loadtxt(work / f"{name}.csv", str, delimiter=",", usecols=0) for name in runs]
    np.testing.assert_array_equal(*labels, strict=True)
    assert len(labels[0]) == 1 + N_ROWS


def test_tls__local_cluster_of_a_fit_too(cluster, work):
    environment = secured(cluster.certificates)
    fit = "fit data.zarr local.zarr --basis-size 50 --neighbors exact --workers 2"
    _, log = succeed(nrbfn(fit, work, environment, start=[str(START)]))
    assert "on tls://" in log


@pytest.mark.parametrize(("who", "scheme"), [("nobody", "tcp"), ("stranger", "tls")])
def test_tls__client_is_kept_out(cluster, strangers, work, who, scheme):
    address = f"{scheme}://127.0.0.1:{cluster.port}"
    stranger = {"environment": secured(strangers, HURRIED), "start": [str(START)]}
    options = {"nobody": {"environment": HURRIED}, "stranger": stranger}[who]
    process = nrbfn(f"fit data.zarr no.zarr --scheduler {address}", work, **options)
    assert process.returncode == 2, process.stderr
    assert f"no scheduler answers at {address}" in process.stderr
    assert not (work / "no.zarr").exists()


@pytest.mark.parametrize(("who", "scheme"), [("nobody", "tcp"), ("stranger", "tls")])
def test_tls__worker_is_kept_out(cluster, strangers, tmp_path, who, scheme):
    address = f"{scheme}://127.0.0.1:{cluster.port}"
    worker = ["dask", "worker", address, "--nthreads", "1", "--death-timeout", "5"]
    stranger = {"args": [str(START), *worker], "env": secured(strangers, HURRIED)}
    options = {"nobody": {"args": worker, "env": HURRIED}, "stranger": stranger}[who]
    before = cluster.log().count("Register worker addr")
    process = subprocess.run(
        **options, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert process.returncode != 0, process.stderr
    assert cluster.log().count("Register worker addr") == before == N_WORKERS


def test_tls__trusting_the_authority_is_not_enough(cluster):
    context = ssl.create_default_context(cafile=cluster.certificates / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT

    def greet():
        address = ("127.0.0.1", cluster.port)
        with (
            socket.create_connection(address, timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            return connection.recv(1)

    with pytest.raises(ssl.SSLError, match="certificate required"):
        greet()
    files = (cluster.certificates / name for name in ("cert.pem", "key.pem"))
    context.load_cert_chain(*files)
    assert greet()


def test_tls__http_tells_only_that_the_scheduler_lives(cluster):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", cluster.http_port)) as plain:
        statuses = {}
        for page in ("/health", "/info/main/workers.html", "/json/counts.json"):
            plain.request("GET", page)
            answer = plain.getresponse()
            answer.read()
            statuses[page] = answer.status
    assert statuses.pop("/health") == 200
    assert set(statuses.values()) == {404}
