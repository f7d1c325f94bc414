"""The first search of a process compiles for most of a minute, so all of them are slow."""

import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.exact import exact_neighbors
from tests.neighbors.naive import assert_valid, blobs, naive_distances

pytestmark = pytest.mark.slow


def recall(found, rows):
    exact = exact_neighbors(rows, np.arange(len(rows)), n_neighbors=found.shape[1]).indices
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True)]
    return np.mean(hits) / found.shape[1]


def search(rows, *, n_neighbors, seed=0, threads=2):
    return approximate_neighbors(
        rows.astype(np.float32), n_neighbors=n_neighbors, seed=seed, threads=threads
    )


@pytest.mark.parametrize("k", [1, 30])
def test_approximate_neighbors__recall(k):
    rows = blobs(2000, 8)
    found = search(rows, n_neighbors=k)
    assert_valid(found, np.arange(2000), n_rows=2000, n_neighbors=k)
    assert recall(found, rows.astype(np.float32)) >= 0.95


HARD = {
    "all equal": np.ones((300, 3)),
    "many copies": np.repeat(blobs(4, 3), 100, axis=0),
    "two values": np.random.default_rng(0).integers(0, 2, (500, 2)),
    "one column": np.arange(400.0)[:, None],
    "one row far off": np.concatenate([blobs(200, 3), np.full((1, 3), 1e6)]),
}


@pytest.mark.parametrize("name", HARD)
def test_approximate_neighbors__hard_rows_have_k_other_neighbors(name):
    rows, k = HARD[name], 20
    found = search(rows, n_neighbors=k)
    assert_valid(found, np.arange(len(rows)), n_rows=len(rows), n_neighbors=k)


# NNDescent leaves -1 in these graphs and warns.
INCOMPLETE = [(2, 1), (12, 11)]


@pytest.mark.parametrize(("n_rows", "k"), INCOMPLETE)
def test_approximate_neighbors__repaired_lists_need_no_warning(n_rows, k):
    search(blobs(n_rows, 3), n_neighbors=k)


@pytest.mark.filterwarnings("ignore:Failed to correctly find n_neighbors:UserWarning")
@pytest.mark.parametrize(("n_rows", "k"), [*INCOMPLETE, (5, 3)])
def test_approximate_neighbors__few_rows(n_rows, k):
    rows = blobs(n_rows, 3)
    found = search(rows, n_neighbors=k)
    assert_valid(found, np.arange(n_rows), n_rows=n_rows, n_neighbors=k)
    expected = np.sort(naive_distances(rows), axis=1)[:, :k]
    reached = np.sort(np.take_along_axis(naive_distances(rows), found, axis=1), axis=1)
    np.testing.assert_allclose(reached, expected, rtol=1e-6)


# Numba may have fewer threads than are given.
@pytest.mark.parametrize("threads", [1, 64])
def test_approximate_neighbors__same_seed_and_threads_same_result(threads):
    rows = blobs(2000, 8)
    first, second = (search(rows, n_neighbors=10, seed=3, threads=threads) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_approximate_neighbors__two_threads_at_once():
    rows = blobs(1000, 5)
    expected = search(rows, n_neighbors=5)
    found = [None, None]

    def build(place):
        found[place] = search(rows, n_neighbors=5)

    threads = [threading.Thread(target=build, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], expected)


SEARCH = """
import numpy as np
from dask_nrbfn.neighbors.approximate import approximate_neighbors
approximate_neighbors(np.ones((40, 1), np.float32), n_neighbors=2, seed=0, threads=1)
"""


def test_approximate_neighbors__names_a_cache_that_cannot_be_written(tmp_path):
    # For root too, files in the places of the directories keep numba from writing.
    copy, home = tmp_path / "pynndescent", tmp_path / "home"
    source = Path(find_spec("pynndescent").origin).parent
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    (copy / "__pycache__").touch()
    home.touch()
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    places = {"HOME": home, "XDG_CACHE_HOME": home, "PYTHONPATH": paths}
    kept = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH],
        env=kept | {name: str(place) for name, place in places.items()},
        capture_output=True,
        text=True,
    )
    assert "Set NUMBA_CACHE_DIR to a directory" in done.stderr
