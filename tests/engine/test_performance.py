import pytest

from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.errors import ClusterError, ParameterError
from tests.engine import work
from tests.engine.processes import Processes


def test_report__of_a_client_also_if_the_work_fails(tmp_path, two_workers):
    page = tmp_path / "page.html"
    options = EngineOptions(performance_report=page)
    with (
        pytest.raises(ZeroDivisionError),
        connect(options, client=two_workers.client) as engine,
    ):
        engine.run(work.fail_on, [(3, i) for i in range(5)], label="fail")
    assert page.read_text().lstrip().startswith("<!DOCTYPE html>")


def lose_scheduler(processes, engine):
    processes.kill("scheduler")
    engine.run(work.sleep, [(1,)] * 5, label="moments")


@pytest.mark.slow
def test_report__of_a_lost_scheduler_hides_no_error(tmp_path, caplog):
    page = tmp_path / "page.html"
    with Processes(tmp_path, n_workers=1) as processes:
        processes.revive()
        options = EngineOptions(scheduler=processes.address, performance_report=page)
        with pytest.raises(ClusterError, match="is lost"), connect(options) as engine:
            lose_scheduler(processes, engine)
    assert "no performance report: " in caplog.text
    assert not page.exists()


def test_report__path_that_cannot_be_written(tmp_path, two_workers):
    for path in (tmp_path, tmp_path / "nowhere" / "page.html"):
        with (
            pytest.raises(ParameterError, match="cannot be written"),
            connect(EngineOptions(performance_report=path), client=two_workers.client),
        ):
            pytest.fail("the block must not run")
