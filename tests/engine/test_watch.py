import io
import logging
import re
import sys
import threading
import time

import pytest

from dask_nrbfn.engine import EngineOptions, InlineEngine, Watch, connect
from dask_nrbfn.engine import watch as watch_module
from dask_nrbfn.engine.watch import progress
from tests.engine import work
from tests.engine.processes import Processes, wait_until


@pytest.fixture(params=["inline", "two workers"])
def engine(request):
    if request.param == "inline":
        yield InlineEngine()
    else:
        client = request.getfixturevalue("two_workers").client
        with connect(client=client, watch=Watch()) as engine:
            yield engine


def test_stage__counts_its_tasks(engine):
    engine.run(work.square, [(1,)], label="before")
    with engine.stage("moments", n_rows=300, expected_bytes=2**30) as figures:
        assert figures.in_progress
        engine.run(work.square, [(i,) for i in range(5)], label="moments")
        engine.run(work.square, [(1,)], label="combine")
        so_far = figures.seconds_so_far
    assert list(engine.watch.stages) == ["moments"]
    assert engine.watch.stages["moments"] is figures
    assert (figures.n_rows, figures.n_tasks, figures.n_done) == (300, 6, 6)
    assert (figures.n_starts, figures.n_errors, figures.in_progress) == (1, 0, False)
    assert 0 < so_far <= figures.seconds == figures.seconds_so_far
    assert figures.peak_bytes == engine.peak_bytes == engine.watch.peak_bytes > 0
    assert figures.predicted_bytes == engine.expected_bytes == 2**30


def test_stage__fails_and_is_begun_again(engine):
    with pytest.raises(ZeroDivisionError), engine.stage("width", n_rows=3):
        engine.run(work.fail_on, [(2, 0), (2, 2)], label="width")
    failed = engine.watch.stages["width"]
    assert (failed.n_starts, failed.n_errors, failed.in_progress) == (1, 1, False)
    assert failed.n_done < failed.n_tasks == 2
    with engine.stage("width", n_rows=3):
        engine.run(work.square, [(1,)], label="width")
    again = engine.watch.stages["width"]
    assert (again.n_starts, again.n_errors, again.n_tasks, again.n_done) == (2, 1, 1, 1)


def test_stage__is_seen_from_another_thread_while_it_runs(engine, tmp_path):
    seen, looked, there = [], tmp_path / "looked", tmp_path / "there"
    there.touch()

    def look():
        wait_until(lambda: "moments" in engine.watch.stages)
        figures = engine.watch.stages["moments"]
        wait_until(lambda: figures.n_done == 2)
        seen.append((figures.in_progress, figures.n_done, figures.n_tasks))
        looked.touch()

    thread = threading.Thread(target=look)
    thread.start()
    with engine.stage("moments", n_rows=1):
        tasks = [(str(path),) for path in (there, there, looked, looked)]
        engine.run(work.wait_for, tasks, label="moments")
    thread.join()
    assert seen == [(True, 2, 4)]


@pytest.mark.slow
def test_watch__workers_lost(tmp_path, monkeypatch):
    begun, lost = tmp_path / "begun", tmp_path / "lost"
    asked, seen = [], threading.Event()
    begun.mkdir()

    def kill():
        # The cluster must have been seen with its worker, and then without it.
        seen.wait()
        processes.kill("worker")
        wait_until(lambda: engine.watch.n_workers_lost == 1)
        lost.touch()

    with Processes(tmp_path, n_workers=1) as processes:
        processes.revive()
        thread = threading.Thread(target=kill)
        with connect(EngineOptions(scheduler=processes.address)) as engine:
            nthreads = engine.client.nthreads

            def look():
                threads = nthreads()
                if threads and any(begun.iterdir()):
                    asked.append(threads)
                # A second question means that the first answer was taken in.
                if len(asked) > 1:
                    seen.set()
                return threads

            monkeypatch.setattr(engine.client, "nthreads", look)
            thread.start()
            engine.run(work.mark_and_wait, [(str(begun), 0, str(lost))], label="moments")
            thread.join()
            assert engine.watch.n_workers_lost == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress__lines_in_a_log_while_a_task_runs(monkeypatch, caplog, engine, tmp_path):
    monkeypatch.setattr(watch_module, "_LINE_INTERVAL_S", 0.2)
    there, told, begin = tmp_path / "there", tmp_path / "told", time.monotonic()
    there.touch()

    def end_when_told():
        wait_until(lambda: sum("2 of 3" in message for message in caplog.messages) >= 3)
        told.touch()

    thread = threading.Thread(target=end_when_told)
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        thread.start()
        engine.run(work.wait_for, [(str(p),) for p in (there, there, told)], label="moments")
        thread.join()
    lines = [
        re.fullmatch(r"moments: (\d) of 3 parts done, \d+ s so far", m) for m in caplog.messages
    ]
    assert 3 <= len(lines) <= (time.monotonic() - begin) / 0.2
    assert all(lines)
    assert lines[-1].group(1) == "2"
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_progress__no_line_after_an_error():
    with pytest.raises(ZeroDivisionError):
        InlineEngine().run(work.fail_on, [(1, 1)], label="moments")
    assert not any(thread.name == "progress" for thread in threading.enumerate())


def test_progress__no_line_before_the_interval(caplog):
    with (
        caplog.at_level(logging.INFO, logger="dask_nrbfn"),
        progress("moments", 100, bar=False) as advance,
    ):
        for _ in range(100):
            advance()
    assert caplog.messages == []


@pytest.mark.parametrize("bar", [True, False])
def test_progress__bar_only_when_asked_for(monkeypatch, bar):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("moments", 2, bar=bar) as advance:
        advance()
        advance()
    assert ("moments" in terminal.getvalue()) == bar
    assert ("100%" in terminal.getvalue()) == bar


def test_progress__no_bar_without_a_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("moments", 1, bar=True) as advance:
        advance()
    assert stream.getvalue() == ""
