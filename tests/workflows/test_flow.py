"""The night as a Prefect flow, on a server of its own that ends with it."""

import os
import re
import subprocess
import sys

import pytest

from tests.engine.processes import PATIENCE_S, Processes, wait_until
from tests.tables import spirals
from tests.workflows.nights import SETTINGS, Place
from tests.workflows.script import ENVIRONMENT, ROOT

pytestmark = [pytest.mark.ci, pytest.mark.slow]

# The process of the tests imports nothing of Prefect.
PROGRAM = f"""
import sys
from pathlib import Path
from prefect.testing.utilities import prefect_test_harness
sys.path.insert(0, {str(ROOT / "workflows/jobs")!r})
from flow import nrbfn_night
with prefect_test_harness(server_startup_timeout={PATIENCE_S}):
    state = nrbfn_night(Path(sys.argv[1]), retries=20, retry_delay_s=2, return_state=True)
print(state.type.value, state.message)
"""
QUIET = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}


class FlowRun:
    def __init__(self, settings, directory):
        self.log, out = directory / "flow.log", subprocess.PIPE
        environment = os.environ | ENVIRONMENT | QUIET | {"PREFECT_HOME": str(directory / "home")}
        command = [sys.executable, "-c", PROGRAM, str(settings)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=log)

    def end(self):
        printed, _ = self.process.communicate(timeout=5 * PATIENCE_S)
        assert self.process.returncode == 0, self.log.read_text()
        return printed.decode().splitlines()[-1]

    def is_tried_again(self):
        assert self.process.poll() is None, self.log.read_text()
        return re.search(r"Retry \d+/20", self.log.read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("nights"))
    place.write_sources()
    place.bring("one.csv", *spirals(200, seed=10))
    assert FlowRun(place.settings, tmp_path_factory.mktemp("first")).end().startswith("COMPLETED")
    return place


def test_flow__publishes(place):
    assert place.n_rows() == 800
    assert place.model_location.exists()


def test_flow__bad_file_is_not_tried_again_and_the_old_model_stays(place, tmp_path):
    before = place.published()
    X, y = spirals(2000, seed=12)
    place.bring("wrong.csv", X, (y + 1) % 3)
    run = FlowRun(place.settings, tmp_path)
    end = run.end()
    assert end.startswith("FAILED")
    assert "1 file cannot be used" in end
    assert "Retry 1/" not in run.log.read_text()
    assert place.published() == before
    assert place.waiting() == []


def test_flow__stage_is_tried_again_when_the_cluster_is_back(place, tmp_path):
    n_rows = place.n_rows()
    with Processes(tmp_path, n_workers=1) as cluster:
        settings = place.settings.with_name("cluster.toml")
        engine = f'scheduler = "{cluster.address}"'
        settings.write_text(SETTINGS.replace("workers = 0\nthreads = 1", engine))
        place.bring("two.csv", *spirals(200, seed=13))
        run = FlowRun(settings, tmp_path)
        wait_until(run.is_tried_again)
        cluster.revive()
        assert run.end().startswith("COMPLETED")
    assert place.n_rows() == n_rows + 200
