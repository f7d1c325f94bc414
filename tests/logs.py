"""Logs of programs that are called in this process."""

import logging
from contextlib import contextmanager

import dask
import distributed  # noqa: F401  brings the configuration

PRELOAD = "distributed.worker.preload"


@contextmanager
def fresh_logging():
    """Let a program set up its log as in a process of its own, and undo that."""
    loggers = [logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)]
    levels = [logger.level for logger in loggers]
    handlers = [handler for logger in loggers[1:] for handler in logger.handlers]
    formatters = [handler.formatter for handler in handlers]
    of_root, logging.root.handlers = logging.root.handlers, []
    try:
        # Put back at the end, because it is set here.
        with dask.config.set({PRELOAD: dask.config.get(PRELOAD)}):
            yield
    finally:
        logging.captureWarnings(False)
        logging.root.handlers = of_root
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for handler, formatter in zip(handlers, formatters, strict=True):
            handler.setFormatter(formatter)
