"""One job at a time on a run: with second processes that live or are killed."""

import os
import subprocess
import sys
import uuid

import pytest
from zarr.storage import LocalStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import RunBusyError
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.group import locked_run
from dask_nrbfn.storage.location import RemoteLocation
from tests.storage.replacing import files
from tests.tables import spirals, write_table

HOLD = """
import sys, time
from dask_nrbfn.storage.group import locked_run
with locked_run(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(100)
"""


@pytest.fixture(params=["path", "store of a path"])
def place(request, tmp_path):
    return {
        "path": tmp_path / "run",
        "store of a path": LocalStore(tmp_path / "run"),
    }[request.param]


@pytest.fixture
def url():
    return f"memory://lock-{uuid.uuid4().hex}/run"


def refuse(place):
    with pytest.raises(RunBusyError) as caught, locked_run(place):
        pytest.fail("two jobs on one run")
    return caught.value


def test_locked_run__second_is_refused_until_the_first_is_done(place):
    with locked_run(place):
        error = refuse(place)
        assert f"process {os.getpid()} on " in error.problem
        assert "Wait until the other job is finished" in error.remedy
    with locked_run(place):
        pass


def test_locked_run__of_a_process_that_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        error = refuse(tmp_path / "run")
        assert f"process {holder.pid} on " in error.problem
        assert ", since 20" in error.problem
        assert f"works on {tmp_path}/run" in error.problem
    finally:
        holder.kill()
        holder.communicate()
    with locked_run(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_locked_run__one_run_by_any_name(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs/run")
    with locked_run(tmp_path / "link"):
        refuse(f"file://{tmp_path}/runs/run")
        refuse(tmp_path / "runs/../runs/run")


def test_locked_run__of_an_object_store_belongs_to_the_job_that_began_last(url, caplog):
    with locked_run(url) as check_first:
        check_first()
        with locked_run(url) as check_second:
            assert f"process {os.getpid()} on " in caplog.text
            check_second()
            with pytest.raises(RunBusyError, match=f"process {os.getpid()} on .* works on {url}"):
                check_first()
        with pytest.raises(RunBusyError, match="another job works on"):
            check_first()
    assert files(RemoteLocation(url.removesuffix("/run"))) == {}


# The fit


def test_fit__is_refused_while_another_job_works_on_the_run(tmp_path):
    dataset = write_table(tmp_path / "data", *spirals(80))
    params = FitParams(alpha=1e-4, n_neighbors=5, n_parts=2)
    with locked_run(tmp_path / "run"), pytest.raises(RunBusyError):
        fit_dataset(dataset, tmp_path / "run", params, InlineEngine())
    run = fit_dataset(dataset, tmp_path / "run", params, InlineEngine())
    assert "model" in run.stages
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "run"]
