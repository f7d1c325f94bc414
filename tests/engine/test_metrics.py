import logging
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dask_nrbfn.engine import InlineEngine, Watch, exported_metrics
from dask_nrbfn.errors import ParameterError
from tests.engine import work

LAST_SUCCESS = "nrbfn_last_success_timestamp_seconds"


def samples(text):
    """Return value and labels of every sample by its name."""
    return {
        sample.name: (sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def export(textfile, *, run="run.zarr", fails=False):
    engine = InlineEngine()
    with (
        exported_metrics(engine.watch, command="fit", run=run, metrics_file=textfile),
        engine.stage("width", n_rows=30, expected_bytes=2**20),
    ):
        engine.run(work.fail_on, [(1, 0), (1, int(fails))], label="width")


def test_metrics__served_while_the_block_runs(caplog):
    engine = InlineEngine()
    with (
        caplog.at_level(logging.INFO, logger="dask_nrbfn"),
        exported_metrics(engine.watch, command="fit", run="r", metrics=("127.0.0.1", 0)),
    ):
        url = caplog.records[-1].metrics
        with engine.stage("width", n_rows=30, expected_bytes=2**20):
            engine.run(work.square, [(1,), (2,)], label="width")
            found = samples(urlopen(url).read().decode())
    labels = {"command": "fit", "run": "r", "stage": "width"}
    assert found["nrbfn_stage_in_progress"] == (1, labels)
    assert found["nrbfn_stage_tasks"] == found["nrbfn_stage_tasks_done"] == (2, labels)
    assert found["nrbfn_stage_rows"] == (30, labels)
    assert found["nrbfn_stage_predicted_memory_bytes"] == (2**20, labels)
    assert found["nrbfn_stage_peak_memory_bytes"] == (engine.peak_bytes, labels)
    assert found["nrbfn_stage_starts_total"] == (1, labels)
    assert found["nrbfn_job_errors_total"] == (0, {"command": "fit", "run": "r"})
    assert LAST_SUCCESS not in found
    with pytest.raises(OSError, match="refused"):
        urlopen(url)


def test_metrics__names_follow_the_conventions(tmp_path):
    export(tmp_path / "m.prom")
    text = (tmp_path / "m.prom").read_text()
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("nrbfn_")
        assert family.documentation.endswith(".")
        assert all(s.name.endswith("_total") == (family.type == "counter") for s in family.samples)
        if any(unit in family.name for unit in ("memory", "duration", "time")):
            assert family.name.endswith(("_bytes", "_seconds"))


def test_metrics__every_name_type_and_label(tmp_path):
    export(tmp_path / "m.prom")
    found = {}
    for family in text_string_to_metric_families((tmp_path / "m.prom").read_text()):
        (sample,) = family.samples
        found[sample.name] = (family.type, *sample.labels)
    of_job = ("command", "run")
    of_stage = (*of_job, "stage")
    assert found == {
        "nrbfn_stage_in_progress": ("gauge", *of_stage),
        "nrbfn_stage_tasks": ("gauge", *of_stage),
        "nrbfn_stage_tasks_done": ("gauge", *of_stage),
        "nrbfn_stage_rows": ("gauge", *of_stage),
        "nrbfn_stage_duration_seconds": ("gauge", *of_stage),
        "nrbfn_stage_peak_memory_bytes": ("gauge", *of_stage),
        "nrbfn_stage_predicted_memory_bytes": ("gauge", *of_stage),
        "nrbfn_stage_starts_total": ("counter", *of_stage),
        "nrbfn_stage_errors_total": ("counter", *of_stage),
        "nrbfn_task_retries_total": ("counter", *of_job),
        "nrbfn_workers_lost_total": ("counter", *of_job),
        "nrbfn_job_errors_total": ("counter", *of_job),
        "nrbfn_job_start_time_seconds": ("gauge", *of_job),
        LAST_SUCCESS: ("gauge", *of_job),
    }


def test_metrics__textfile_keeps_the_last_success(tmp_path):
    textfile = tmp_path / "m.prom"
    with pytest.raises(ZeroDivisionError):
        export(textfile, fails=True)
    failed = samples(textfile.read_text())
    assert LAST_SUCCESS not in failed
    assert failed["nrbfn_stage_errors_total"][0] == failed["nrbfn_job_errors_total"][0] == 1
    start = time.time()
    export(textfile, run="monday.zarr")
    succeeded = samples(textfile.read_text())
    assert start <= succeeded[LAST_SUCCESS][0] <= time.time()
    assert succeeded[LAST_SUCCESS][1] == {"command": "fit", "run": "monday.zarr"}
    assert succeeded["nrbfn_job_errors_total"][0] == 0
    with pytest.raises(ZeroDivisionError):
        export(textfile, run="tuesday.zarr", fails=True)
    assert samples(textfile.read_text())[LAST_SUCCESS] == succeeded[LAST_SUCCESS]
    assert [path.name for path in tmp_path.iterdir()] == ["m.prom"]


def test_metrics__a_file_that_vanishes_costs_no_result(tmp_path, caplog):
    (tmp_path / "there").mkdir()
    textfile = tmp_path / "there" / "m.prom"
    with exported_metrics(Watch(), command="fit", run="r", metrics_file=textfile):
        textfile.unlink()
        textfile.parent.rmdir()
    assert "metrics could not be written" in caplog.text


def test_metrics__bad_places(tmp_path):
    def problem(**place):
        with (
            pytest.raises(ParameterError) as caught,
            exported_metrics(Watch(), command="fit", run="r", **place),
        ):
            pytest.fail("the block must not run")
        return caught.value.problem

    assert "No such file or directory" in problem(metrics_file=tmp_path / "nowhere" / "m.prom")
    foreign = tmp_path / "foreign.prom"
    foreign.write_text("nrbfn_last_success_timestamp_seconds 3\n")
    assert "does not contain metrics of this program" in problem(metrics_file=foreign)
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("My thesis, in one line.")
    assert "does not contain metrics" in problem(metrics_file=thesis)
    assert thesis.read_text() == "My thesis, in one line."
    others = "# TYPE node_load1 gauge\nnode_load1 0.5\n"
    thesis.write_text(others)
    assert "does not contain metrics" in problem(metrics_file=thesis)
    assert thesis.read_text() == others
    (tmp_path / "empty").touch()
    for place in (tmp_path / "empty", tmp_path, Path("/dev/zero")):
        assert "does not contain metrics" in problem(metrics_file=place)
    (tmp_path / "run.zarr").mkdir()
    (tmp_path / "run.zarr" / "zarr.json").write_text("{}")
    assert "inside the Zarr group" in problem(metrics_file=tmp_path / "run.zarr" / "m.prom")
    assert "metrics cannot be served at no.such.host.invalid:0" in problem(
        metrics=("no.such.host.invalid", 0)
    )
