import io
import logging
import sys

import pytest

from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine import progress as progress_module
from dask_nrbfn.engine.progress import progress
from tests.engine import work


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress__lines_in_a_log(monkeypatch, caplog):
    monkeypatch.setattr(progress_module, "_LINE_INTERVAL_S", 0.0)
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        InlineEngine().run(work.square, [(i,) for i in range(4)], label="moments")
    assert caplog.messages == [f"moments: {done} of 4 parts done" for done in (1, 2, 3)]
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_progress__lines_of_a_cluster(monkeypatch, caplog, two_workers):
    monkeypatch.setattr(progress_module, "_LINE_INTERVAL_S", 0.0)
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        two_workers.run(work.square, [(i,) for i in range(4)], label="width")
    assert caplog.messages == [f"width: {done} of 4 parts done" for done in (1, 2, 3)]


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
