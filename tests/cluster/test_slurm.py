"""The batch file, on a Slurm that the test starts."""

import re

import pytest

from dask_nrbfn.storage.model import Model
from tests.cluster.secured import CLUSTER, START, call, secured
from tests.cluster.slurm import MISSING, BatchJob, Slurm
from tests.tables import spirals, write_table

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not installed"),
]

SCRIPT = CLUSTER / "slurm" / "cluster.sbatch"
FIT = ("dask-nrbfn", "fit", "data.zarr", "run.zarr", "--neighbors", "exact")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Slurm(tmp_path_factory.mktemp("slurm")) as daemons:
        yield daemons


@pytest.fixture
def work(tmp_path):
    write_table(tmp_path / "data.zarr", *spirals(6000, n_features=8))
    return tmp_path


def test_slurm__job_that_fails(slurm, work):
    job = BatchJob(slurm, work, SCRIPT, *FIT, "--basis-size", "1000000")
    job.wait_until(lambda: job.field("JobState") not in {"PENDING", "RUNNING", "COMPLETING"})
    assert (job.field("JobState"), job.field("ExitCode")) == ("FAILED", "2:0")
    assert not job.directory.exists()


def test_slurm__cluster_that_stays_up(slurm, work):
    job = BatchJob(slurm, work, SCRIPT)
    certificates = job.directory / "certificates"
    said = re.compile(r"CERTIFICATES=(\S+) \. (\S+)")
    job.wait_until(lambda: job.log.exists() and said.search(job.log.read_text()))
    assert said.search(job.log.read_text()).groups() == (
        str(certificates),
        str(CLUSTER / "tls-environment.sh"),
    )
    command = [START, *FIT, "--basis-size", "50", "--scheduler-file"]
    command.append(job.directory / "scheduler.json")
    process = call(command, patience=2, cwd=work, env=secured(certificates))
    assert process.returncode == 0, process.stderr
    job.cancel()
    job.wait_until(lambda: job.field("JobState") == "CANCELLED" and not job.directory.exists())


def test_slurm__goes_on_when_its_time_is_over(slurm, work):
    job = BatchJob(slurm, work, SCRIPT, *FIT, "--basis-size", "1500", "--n-parts", "64")
    parts = work / "run.zarr" / "moments" / "parts"
    job.wait_until(lambda: len(list(parts.glob("*/zarr.json"))) > 2)
    # What Slurm sends two minutes before the end.
    job.cancel("--batch", "--signal=USR1")
    job.wait_until(lambda: job.field("Restarts") == "1")
    assert job.field("JobState") in {"PENDING", "COMPLETING"}
    job.wait_until(lambda: job.field("JobState") == "COMPLETED")
    log = job.log.read_text()
    assert "parts found" in log
    assert re.search(r"up to [12] tasks at a time on tls://.*, threads of each: 1", log)
    # 4 GiB of a node, without the 2 GiB of scheduler and job, in both starts.
    assert len(re.findall(r"Memory: +2\.00 GiB", log)) in (2, 4)
    assert Model.load(work / "run.zarr" / "model").n_features == 8
    assert not job.directory.exists()
