import json
import logging
import subprocess
import sys

from dask_nrbfn.engine.logs import JsonFormatter

SCRIPT = """
import logging, warnings
from dask_nrbfn.engine import log_json
log_json()
import distributed
logging.getLogger("mine").warning("three %s", "words", extra={"rows": 3})
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


def test_formatter__exception():
    try:
        raise ZeroDivisionError("task 2")
    except ZeroDivisionError:
        made = entry(msg="failed", exc_info=sys.exc_info())
    assert made["exception"].startswith("Traceback")
    assert made["exception"].endswith("ZeroDivisionError: task 2")


def test_log_json__every_logger_and_warnings():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in lines] == ["mine", "distributed.core", "py.warnings"]
    assert lines[0]["rows"] == 3
    assert "beware" in lines[2]["message"]
