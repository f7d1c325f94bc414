import asyncio
import gc
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from dask_nrbfn.engine.logs import JsonFormatter, leave_out_echoes

SCRIPT = """
import logging, warnings
from dask_nrbfn.engine import log_json
{before}
log_json()
{after}
logging.getLogger("mine").warning("three %s", "words", extra={{"rows": 3}})
logging.getLogger("distributed.core").warning("dask's")
warnings.warn("beware")
"""


def entry(**attributes):
    return json.loads(JsonFormatter().format(logging.makeLogRecord(attributes)))


def test_formatter__fields():
    made = entry(
        name="a.b", levelname="INFO", msg="%d rows\nin %s", args=(3, "ü"), created=1e9, rows=3
    )
    assert made == {
        "time": "2001-09-09T01:46:40.000+00:00",
        "level": "INFO",
        "logger": "a.b",
        "message": "3 rows\nin ü",
        "rows": 3,
    }


def test_formatter__is_one_line_whatever_comes():
    record = logging.makeLogRecord({"msg": "a\nb", "what": object(), "exc_text": None})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["what"].startswith("<object")


def test_formatter__exception():
    try:
        raise ZeroDivisionError("task 2")
    except ZeroDivisionError:
        made = entry(msg="failed", exc_info=sys.exc_info())
    assert made["exception"].startswith("Traceback")
    assert made["exception"].endswith("ZeroDivisionError: task 2")


@pytest.mark.parametrize("before", [True, False], ids=["loaded before", "loaded after"])
def test_log_json__every_logger_and_warnings(before):
    imports = ("import distributed", "") if before else ("", "import distributed")
    script = SCRIPT.format(before=imports[0], after=imports[1])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["mine", "distributed.core", "py.warnings"]
    assert lines[0]["rows"] == 3
    assert "beware" in lines[2]["message"]


@pytest.fixture
def asyncio_log():
    log = logging.getLogger("asyncio")
    before = list(log.filters)
    log.filters.clear()
    yield log
    log.filters[:] = before


async def forget_failures(place):
    """Begin two requests that fail, and ask neither how it ended."""
    store = LocalStore(place / "file" / "inner")
    path = zarr.storage.StorePath(store, "x")
    value = default_buffer_prototype().buffer.from_bytes(b"1")
    tasks = [asyncio.ensure_future(path.set_if_not_exists(value)) for _ in range(2)]
    await asyncio.wait(tasks)


@pytest.mark.parametrize("left_out", [False, True])
def test_leave_out_echoes__of_zarr(tmp_path, caplog, asyncio_log, left_out):
    Path(tmp_path / "file").write_text("no directory")
    if left_out:
        leave_out_echoes()
        leave_out_echoes()
    sync(forget_failures(tmp_path))
    sync(asyncio.sleep(0))
    gc.collect()
    other = "future: <of something else> exception=OSError('/data/zarr/rows')"
    asyncio_log.error("Task exception was never retrieved\n%s", other)
    echoes = [message for message in caplog.messages if "set_if_not_exists" in message]
    assert len(echoes) == (0 if left_out else 2)
    assert "of something else" in caplog.text
