"""The log without messages that repeat an error."""

import logging
import os


def leave_out_echoes() -> None:
    """Keep errors of further zarr requests out of the log: zarr raises that of the first one."""
    logging.getLogger("asyncio").addFilter(_is_no_echo)


def _is_no_echo(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    task = message.partition(" exception=")[0]
    of_zarr = f"{os.sep}zarr{os.sep}" in task
    return not (of_zarr and message.startswith("Task exception was never retrieved"))
