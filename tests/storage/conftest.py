"""Places to store things at: a directory, a store in memory behind a URL, and a server of S3."""

import subprocess
import sys
import urllib.request
import uuid
from contextlib import contextmanager

import fsspec
import pytest

from dask_nrbfn.storage.location import RemoteLocation, join
from tests.engine.processes import free_port, wait_until

SECRET = "correct-horse-battery-staple"


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def s3_server():
    """Give the address of a server in a process of its own, with nothing in it."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    port = endpoint.rpartition(":")[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: answers(f"{endpoint}/moto-api/"), process=process)
        yield endpoint
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def endpoint():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/nonexistent")
        with s3_server() as address:
            yield address


@pytest.fixture
def options(endpoint):
    return {"key": "me", "secret": SECRET, "client_kwargs": {"endpoint_url": endpoint}}


@pytest.fixture
def bucket(options):
    """A new bucket."""
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    fsspec.filesystem("s3", **options).mkdir(name)
    return RemoteLocation(f"s3://{name}", options)


S3 = pytest.param("s3", marks=[pytest.mark.ci, pytest.mark.slow])


@pytest.fixture(params=["memory", S3])
def place(request, tmp_path):
    """A directory, if a test asks for one, or a URL, under which nothing is."""
    if request.param == "directory":
        return tmp_path
    if request.param == "s3":
        return join(request.getfixturevalue("bucket"), "place")
    return RemoteLocation(f"memory://place-{uuid.uuid4().hex}", {})
