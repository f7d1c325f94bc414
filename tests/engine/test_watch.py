import io
import logging
import re
import sys
import threading
import time

import pytest

from dask_nrbfn.engine import InlineEngine, connect
from dask_nrbfn.engine import watch as watch_module
from dask_nrbfn.engine.watch import leave_out_echoes, progress
from tests.engine import work
from tests.engine.processes import wait_until


@pytest.fixture(params=["inline", "two workers"])
def engine(request):
    if request.param == "inline":
        yield InlineEngine()
    else:
        client = request.getfixturevalue("two_workers").client
        with connect(client=client) as engine:
            yield engine


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


@pytest.mark.parametrize("bar", [True, False])
def test_progress__bar_only_when_asked_for(monkeypatch, bar):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("moments", 2, bar=bar) as advance:
        advance()
        advance()
    assert ("moments" in terminal.getvalue()) == bar
    assert ("100%" in terminal.getvalue()) == bar


def test_leave_out_echoes__only_of_zarr(caplog):
    leave_out_echoes()
    lost = "Task exception was never retrieved\nfuture: <Task done coro=<{}:3> exception=E()>"
    echo, other = lost.format("/lib/zarr/core/array.py"), lost.format("/lib/zarrs.py")
    told = "/lib/zarr/core/array.py is slow"
    for message in (echo, other, told):
        logging.getLogger("asyncio").error(message)
    assert caplog.messages == [other, told]
