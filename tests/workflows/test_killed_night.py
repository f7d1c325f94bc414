"""A night may be killed at any moment; started again it comes to the same bits."""

import contextlib
import random
import shutil
import signal
import time

import numpy as np
import pytest

from dask_nrbfn.storage.layout import parts_in
from tests.engine.processes import wait_until
from tests.tables import spirals
from tests.workflows.nights import SETTINGS, Place

pytestmark = pytest.mark.slow

# A part is 24,576 rows, and takes long enough that a kill falls between two.
N_PARTS, PART_ROWS, BASIS_SIZE = 6, 24_576, 600
ARRAYS = (
    SETTINGS.replace(', label = "class"', "")
    .replace(".csv", ".npz")
    .replace("basis_size = 60", f"basis_size = {BASIS_SIZE}")
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Give the directory of a night without files, with a file of all parts that waits."""
    place = Place(tmp_path_factory.mktemp("prepared"), ARRAYS)
    for seed, (name, n_rows) in enumerate((("train", 2000), ("test", 500))):
        write_arrays(place.directory / f"{name}.npz", n_rows, seed)
    process = place.night()
    assert process.returncode == 0, process.stderr
    write_arrays(place.incoming / "tonight.npz", N_PARTS * PART_ROWS, seed=2)
    return place.directory


def copied(prepared, directory):
    """Return a place of its own after that night."""
    return Place(shutil.copytree(prepared, directory), ARRAYS)


def write_arrays(path, n_rows, seed):
    X, y = spirals(n_rows, seed=seed)
    np.savez(path, X=X, y=y)


def finished_parts(place):
    """Return when each part of the update, or sum of some, was finished, in nanoseconds."""
    finished = {}
    # A night that is nearly over removes them.
    with contextlib.suppress(FileNotFoundError):
        for path in place.run_location.glob("update-*/parts/*/zarr.json"):
            if '"record"' in path.read_text():
                finished[path.parent.name] = path.stat().st_mtime_ns
    return finished


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory):
    """Give digest of the model and seconds of a night that nothing happens to."""
    place = copied(prepared, tmp_path_factory.mktemp("undisturbed") / "place")
    start = time.monotonic()
    process = place.night()
    assert process.returncode == 0, process.stderr
    return place.model().digest(), time.monotonic() - start


def test_killed_night__finds_its_parts_and_lets_no_other_in(tmp_path, prepared, undisturbed):
    place = copied(prepared, tmp_path / "place")
    before = place.published()
    with place.killed_night() as night:
        wait_until(lambda: len(finished_parts(place)) >= 2)
        # Stopped, it is still there when the second one starts.
        night.send_signal(signal.SIGSTOP)
        second = place.night()
    assert second.returncode == 2
    assert f"process {night.pid} on " in second.stderr
    found = finished_parts(place)
    n_found = len({part for name in found for part in parts_in(name)})
    assert 2 <= n_found < N_PARTS
    assert place.published() == before
    assert place.waiting() == ["tonight.npz"]

    seen = {}
    with place.killed_night() as night:
        wait_until(lambda: seen.update(finished_parts(place)) or night.poll() is not None)
    log = (place.directory / "night.log").read_text()
    assert night.returncode == 0, log
    assert f"{n_found} of {N_PARTS} parts found" in log
    assert log.count("is complete") == 3
    assert found.items() <= seen.items()
    assert place.model().digest() == undisturbed[0]
    assert place.waiting() == []


def test_killed_night__at_any_moment(tmp_path, prepared, undisturbed):
    digest, seconds = undisturbed
    moments = random.Random(0)
    place = copied(prepared, tmp_path / "place")
    for _ in range(3):
        with place.killed_night():
            time.sleep(moments.uniform(0, seconds))
    process = place.night()
    assert process.returncode == 0, process.stderr
    assert place.model().digest() == digest
    assert len(place.versions()) == 1
    assert place.moved_to("done") == ["tonight"]
