import pytest

from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.errors import ClusterError, NRBFNError, ParameterError
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


def test_report__refused_before_the_scheduler_is_asked(tmp_path):
    (tmp_path / "old.html").write_text("old")
    (tmp_path / "run.zarr").mkdir()
    (tmp_path / "run.zarr" / "zarr.json").write_text("{}")
    for name, problem in (
        ("", "is a directory"),
        ("old.html", r"old\.html exists\. Give another path, or overwrite it"),
        ("old.html/page.html", "cannot be written"),
        ("run.zarr/page.html", "is inside the Zarr group"),
    ):
        options = EngineOptions(scheduler="tcp://127.0.0.1:1", performance_report=tmp_path / name)
        with pytest.raises(NRBFNError, match=problem), connect(options):
            pytest.fail("the block must not run")
    assert (tmp_path / "old.html").read_text() == "old"


def test_report__replaces_only_when_told(tmp_path, two_workers, caplog):
    page = tmp_path / "page.html"
    with connect(EngineOptions(performance_report=page), client=two_workers.client):
        # It was not there when the job began.
        page.write_text("mine")
    assert "no performance report" in caplog.text
    assert page.read_text() == "mine"
    options = EngineOptions(performance_report=page, overwrite=True)
    with connect(options, client=two_workers.client):
        assert page.read_text() == "mine"
    assert page.read_text().lstrip().startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_options__nothing_to_overwrite():
    with pytest.raises(ParameterError, match="overwrite is given, but no performance_report"):
        EngineOptions(overwrite=True)
