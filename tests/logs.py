"""Logs of programs that are called in this process."""

import logging
from contextlib import contextmanager


@contextmanager
def fresh_logging():
    """Let a program set up its log as in a process of its own, and undo that."""
    loggers = [logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)]
    levels = [logger.level for logger in loggers]
    of_root, logging.root.handlers = logging.root.handlers, []
    try:
        yield
    finally:
        logging.root.handlers = of_root
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
