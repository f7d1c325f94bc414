"""Logs as JSON, one object a line, without messages that repeat an error.

Workers that are started with ``--preload dask_nrbfn.engine.logs`` write such lines too.
"""

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

# Attributes of every record; all others come from `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, with the fields of its `extra`.

    Examples
    --------
    >>> record = logging.makeLogRecord(
    ...     {"msg": "%d rows", "args": (3,), "levelname": "INFO", "created": 0.25, "rows": 3}
    ... )
    >>> made = json.loads(JsonFormatter().format(record))
    >>> made["time"], made["level"], made["message"], made["rows"]
    ('1970-01-01T00:00:00.250+00:00', 'INFO', '3 rows', 3)
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        time = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def log_json() -> None:
    """Make every line of this process's log a JSON object on standard error.

    This includes the lines of other libraries, warnings, and the local workers of this process.
    """
    logging.basicConfig()
    logging.captureWarnings(True)
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        # Some are placeholders and have no handlers.
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                handler.setFormatter(JsonFormatter())
    # Every command sets the log up, and most load no dask.
    import dask

    # The setting is empty until distributed is loaded, unless the user has set it.
    preloads = dask.config.get("distributed.worker.preload", [])
    if __name__ not in preloads:
        dask.config.set({"distributed.worker.preload": [*preloads, __name__]})


def dask_setup(worker: object) -> None:
    """Do the same in a worker; dask calls this."""
    log_json()


def leave_out_echoes() -> None:
    """Keep errors of further zarr requests out of the log.

    Zarr sends several requests at once and raises the error of the first one. asyncio then logs a
    traceback for each of the others, because nobody has retrieved their errors.
    """
    logging.getLogger("asyncio").addFilter(_is_no_echo)


def _is_no_echo(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    task = message.partition(" exception=")[0]
    of_zarr = f"{os.sep}zarr{os.sep}" in task
    return not (of_zarr and message.startswith("Task exception was never retrieved"))
