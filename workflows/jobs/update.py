"""Add the rows of the files that wait to the run, at its basis and width.

A file is rejected, and the run is as if it had never come, in two cases: with its rows the model
would become worse than publish.py allows, or the model has more errors on them than [night] allows.
"""

import logging
from functools import partial
from typing import Any

from incoming import IncomingFile, for_each_file, waiting_files
from publish import judge_of
from record import learned_files
from settings import Settings

from dask_nrbfn import Dataset, connect
from dask_nrbfn.commands.update import Judge, update_run
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import AlreadyAddedError, DataError, IllConditionedError, WorseModelError

logger = logging.getLogger("dask_nrbfn.jobs.update")


def update(settings: Settings) -> dict[str, Any]:
    """Add file after file; one that a killed update had added is only moved away."""
    if waiting_files(settings):
        with connect(settings.engine) as engine:
            add = partial(add_incoming, settings, engine, judge_of(settings, engine))
            for_each_file(settings, add, bad=(DataError, IllConditionedError, WorseModelError))
    return {"learned": learned_files(settings)}


def add_incoming(settings: Settings, engine: Engine, judge: Judge, file: IncomingFile) -> None:
    """Add the rows of one file."""
    dataset = Dataset.open(settings.location(file.dataset))
    try:
        update_run(
            settings.location("run"),
            dataset,
            engine,
            judge=judge,
            max_new_error=settings.night.max_new_error,
        )
    except AlreadyAddedError as error:
        logger.warning("update: %s", error.problem)
    file.finish()
