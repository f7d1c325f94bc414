"""What asyncio says of failures that were told already."""

import logging
import os


def leave_out_echoes() -> None:
    """Keep out of the log what zarr's other requests of the same moment failed of.

    Zarr makes several at once and raises the error of the first; asyncio then tells of each of the
    others, with a traceback, that nobody has asked for its error.
    """
    logging.getLogger("asyncio").addFilter(_is_no_echo)


def _is_no_echo(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    task = message.partition(" exception=")[0]
    of_zarr = f"{os.sep}zarr{os.sep}" in task
    return not (of_zarr and message.startswith("Task exception was never retrieved"))
