import pytest

from tests.engine.processes import Processes, wait_until
from tests.tables import spirals
from tests.workflows.nights import SETTINGS, Place
from tests.workflows.prefect_server import NEVER, PrefectServer

pytestmark = [pytest.mark.ci, pytest.mark.slow]

STAGES = ["ingest", "check", "fit", "update", "publish", "refresh", "publish"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A place before its first night."""
    place = Place(tmp_path_factory.mktemp("nights"))
    place.write_sources()
    return place


@pytest.fixture(scope="module")
def served(tmp_path_factory, place):
    """A running server and the flow that it waits to run."""
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    with server.serving(place.settings) as deployment:
        (schedule,) = deployment["schedules"]
        assert schedule["schedule"]["cron"] == NEVER
        yield server, deployment


@pytest.fixture(scope="module")
def first_run(served, place):
    """The id of a flow run that publishes."""
    server, deployment = served
    place.bring("one.csv", *spirals(200, seed=10))
    run_id = server.start_run(deployment)
    assert server.finished(run_id)["type"] == "COMPLETED"
    return run_id


def test_flow__publishes(served, place, first_run):
    server, _ = served
    expected = [(stage, "COMPLETED", 1) for stage in STAGES]
    # The server hears of them a little later.
    wait_until(lambda: server.stages(first_run) == expected)
    assert place.n_rows() == 800
    assert place.model_location.exists()
    wait_until(lambda: any(line.startswith("publish: ") for line in server.log(first_run)))


def test_flow__bad_file_is_not_tried_again_and_the_old_model_stays(served, place, first_run):
    server, deployment = served
    before = place.published()
    X, y = spirals(2000, seed=12)
    place.bring("wrong.csv", X, (y + 1) % 3)
    run_id = server.start_run(deployment)
    state = server.finished(run_id)
    assert state["type"] == "FAILED"
    assert "1 of 1 files cannot be used" in state["message"]
    wait_until(lambda: ("update", "FAILED", 1) in server.stages(run_id))
    assert place.published() == before
    assert place.waiting() == []


def test_flow__stage_is_tried_again_when_the_cluster_is_back(served, place, first_run, tmp_path):
    server, deployment = served
    n_rows = place.n_rows()
    with Processes(tmp_path, n_workers=1) as cluster:
        settings = place.settings.with_name("cluster.toml")
        engine = f'scheduler = "{cluster.address}"'
        settings.write_text(SETTINGS.replace("workers = 0\nthreads = 1", engine))
        place.bring("two.csv", *spirals(200, seed=13))
        run_id = server.start_run(deployment, settings=str(settings), retries=20, retry_delay_s=2)
        wait_until(
            lambda: any(stage[:2] == ("fit", "SCHEDULED") for stage in server.stages(run_id))
        )
        cluster.revive()
        assert server.finished(run_id)["type"] == "COMPLETED"
    wait_until(lambda: max(n for name, _, n in server.stages(run_id) if name == "fit") > 1)
    assert place.n_rows() == n_rows + 200
