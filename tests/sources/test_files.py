"""Sources behind URLs: a web server and an object store on loopback."""

import functools
import http.server
import os
import threading
import uuid

import fsspec
import numpy as np
import pytest

from dask_nrbfn.errors import MissingDataError, NRBFNError, ParameterError, StorageError
from dask_nrbfn.numeric.rows import dense, stacked
from dask_nrbfn.sources.files import File
from tests.opened import open_source
from tests.sources.tables import N, as_csv, as_feather, as_parquet, people

WRITERS = {
    "d.csv": as_csv,
    "d.tsv.gz": as_csv,
    "d.parquet": as_parquet,
    "d.arrow": as_feather,
    "d.npy": lambda table, path: np.save(path, table[["size"]].to_numpy()),
}


def content(path):
    """Write people to a file; return its bytes."""
    WRITERS[path.name](people(), path)
    return path.read_bytes()


def options_of(name):
    return {} if name.endswith(".npy") else {"label": "y"}


class Whole(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def send_head(self):
        if self.path.startswith("/secret"):
            return self.send_error(http.HTTPStatus.FORBIDDEN)
        return super().send_head()


class Parts(Whole):
    def do_GET(self):
        wanted = self.headers.get("Range")
        if wanted is None:
            super().do_GET()
            return
        with open(self.translate_path(self.path), "rb") as file:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            size = file.seek(0, os.SEEK_END)
            file.seek(first)
            part = file.read(last + 1 - first)
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{size}")
        self.end_headers()
        self.wfile.write(part)


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Say nothing of clients that have seen enough of a file."""


@pytest.fixture(scope="module", params=[Whole, Parts])
def web(request, tmp_path_factory):
    """Address of a server, the directory that it shows, and whether it sends parts."""
    directory = tmp_path_factory.mktemp("web")
    handler = functools.partial(request.param, directory=str(directory))
    with pytest.MonkeyPatch.context() as patch, Quiet(("127.0.0.1", 0), handler) as server:
        patch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", directory, request.param is Parts
        server.shutdown()
        thread.join()


@pytest.fixture
def memory():
    return f"memory://{uuid.uuid4().hex}"


def rows_of(source):
    blocks = list(source.blocks(7))
    labels = None if source.y_dtype is None else np.concatenate([b.y for b in blocks])
    return dense(stacked([b.X for b in blocks])), labels


@pytest.mark.parametrize("name", WRITERS)
def test_url__gives_the_rows_of_the_file(web, memory, name):
    address, directory, sends_parts = web
    with fsspec.open(f"{memory}/{name}", "wb") as file:
        file.write(content(directory / name))
    expected = rows_of(open_source(directory / name, **options_of(name)))
    urls = [f"{memory}/{name}", f"{address}/{name}"]
    if name in ("d.parquet", "d.arrow") and not sends_parts:
        with pytest.raises(NRBFNError, match="server doesn't appear to support range requests"):
            open_source(urls.pop(), **options_of(name))
    for url in urls:
        X, y = rows_of(open_source(url, **options_of(name)))
        np.testing.assert_array_equal(X, expected[0])
        np.testing.assert_array_equal(y, expected[1])


@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_url__directory(tmp_path, memory, name):
    for part in ("part-1-", "part-2-", "_"):
        with fsspec.open(f"{memory}/rows/{part}{name}", "wb") as file:
            file.write(content(tmp_path / name))
    source = open_source(f"{memory}/rows", label="y")
    assert len(rows_of(source)[0]) == 2 * N


@pytest.mark.parametrize("web", [Parts], indirect=True)
def test_url__query_is_no_part_of_the_suffix(web):
    address, directory, _ = web
    content(directory / "d.csv")
    assert open_source(f"{address}/d.csv?token=1.2", label="y").n_rows == N


def test_url__that_cannot_be_read(web, memory):
    for url in (f"{web[0]}/none.csv", f"{memory}/none.csv"):
        with pytest.raises(MissingDataError, match=rf"{url} does not exist or is not served"):
            open_source(url)
    with pytest.raises(StorageError, match=r"secret.csv cannot be read \(.*403.*Forbidden"):
        open_source(f"{web[0]}/secret.csv")
    with pytest.raises(StorageError, match=r"d.csv cannot be read \(.*connect"):
        open_source("http://127.0.0.1:1/d.csv")
    with pytest.raises(ParameterError, match=r"abc://d.csv cannot be opened"):
        open_source("abc://d.csv")


@pytest.mark.ci
def test_url__options_appear_in_no_error():
    options = {
        "key": "me",
        "secret": "swordfish",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:1"},
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    with pytest.raises(StorageError) as caught:
        open_source(File("s3://bucket/d.csv", options))
    assert "s3://bucket/d.csv cannot be read" in caught.value.problem
    assert "swordfish" not in str(caught.value)
