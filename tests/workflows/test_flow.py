import numpy as np
import pytest

from tests.engine.processes import Processes, wait_until
from tests.tables import spirals
from tests.workflows.nights import SETTINGS, Place
from tests.workflows.pages import ROOT, blocks_of
from tests.workflows.prefect_server import PrefectServer

pytestmark = [pytest.mark.ci, pytest.mark.slow]

STAGES = ["ingest", "check", "fit", "update", "publish", "refresh", "publish"]
NEVER = "0 0 29 2 *"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A running server."""
    with PrefectServer(tmp_path_factory.mktemp("prefect")).running() as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A place before its first night."""
    place = Place(tmp_path_factory.mktemp("nights"))
    place.write_sources()
    return place


@pytest.fixture(scope="module")
def deployment(server, place):
    """A flow that waits for runs."""
    with server.serving(place.settings, "--cron", NEVER) as served:
        yield served


def stages_in(server, run_id, state):
    """Return the stages of a flow run in a state; the server hears of them a little later."""
    tasks = server.tasks(run_id)
    return [task["name"].rsplit("-", 1)[0] for task in tasks if task["state_type"] == state]


def tries(server, run_id, stage):
    """Return how often a stage was tried."""
    (task,) = [each for each in server.tasks(run_id) if each["name"].startswith(stage)]
    return task["run_count"]


@pytest.fixture(scope="module")
def first_run(server, place, deployment):
    """The id of a flow run that publishes."""
    place.bring("one.csv", *spirals(200, seed=10))
    run_id = server.start_run(deployment)
    assert server.finished(run_id)["type"] == "COMPLETED"
    return run_id


def test_flow__publishes(server, place, first_run):
    wait_until(lambda: stages_in(server, first_run, "COMPLETED") == STAGES)
    assert place.n_rows() == 800
    assert place.model_location.exists()
    wait_until(lambda: any(line.startswith("publish: ") for line in server.log(first_run)))


def bad_file(place):
    X, y = spirals(50, seed=11)
    X[0, 0] = np.inf
    place.bring("bad.csv", X, y)


def wrong_labels(place):
    X, y = spirals(2000, seed=12)
    place.bring("wrong.csv", X, (y + 1) % 3)


@pytest.mark.parametrize(
    ("bring", "stage"), [(bad_file, "ingest"), (wrong_labels, "update")], ids=["bad", "worse"]
)
def test_flow__fails_and_keeps_the_old_model(server, place, deployment, first_run, bring, stage):
    before = place.published()
    bring(place)
    run_id = server.start_run(deployment)
    state = server.finished(run_id)
    assert state["type"] == "FAILED"
    assert "1 of 1 files cannot be used" in state["message"]
    wait_until(lambda: stages_in(server, run_id, "FAILED") == [stage])
    assert tries(server, run_id, stage) == 1
    assert place.published() == before
    assert place.waiting() == []


def test_flow__stage_is_tried_again_when_the_cluster_is_back(
    server, place, deployment, first_run, tmp_path
):
    with Processes(tmp_path, n_workers=1) as cluster:
        settings = place.settings.with_name("cluster.toml")
        engine = f'scheduler = "{cluster.address}"'
        settings.write_text(SETTINGS.replace("workers = 0\nthreads = 1", engine))
        place.bring("two.csv", *spirals(200, seed=13))
        run_id = server.start_run(deployment, settings=str(settings), retries=20, retry_delay_s=2)
        wait_until(lambda: stages_in(server, run_id, "SCHEDULED") == ["fit"])
        cluster.revive()
        assert server.finished(run_id)["type"] == "COMPLETED"
    wait_until(lambda: tries(server, run_id, "fit") > 1)
    assert place.n_rows() == 1000


def test_flow__served_as_the_guide_says(tmp_path):
    place = Place(tmp_path)
    place.write_sources()
    (tmp_path / "workflows").symlink_to(ROOT / "workflows")
    page = ROOT / "workflows/guide/pages/task/schedule.md"
    blocks = [block.text for block in blocks_of(page) if "Prefect server" in (block.reason or "")]
    server = PrefectServer(tmp_path)
    with server.following(blocks, place.settings) as deployment:
        (schedule,) = deployment["schedules"]
        assert schedule["schedule"]["cron"] == "15 2 * * *"
        run_id = server.start_run(deployment)
        assert server.finished(run_id)["type"] == "COMPLETED"
