"""Fit all rows of the run anew, with a basis of their own, if the last update said that it is due.

The old run stays until the new one is complete, and if the new one is worse than publish.py allows.
"""

import logging

from publish import judge_of
from settings import Settings

from dask_nrbfn import Run, connect
from dask_nrbfn.commands.fit import refresh_run
from dask_nrbfn.storage.group import remove_abandoned

logger = logging.getLogger("dask_nrbfn.jobs.refresh")


def refresh(settings: Settings) -> dict[str, bool]:
    """Put a new run in the place of the old one, if that is due and [night] allows it."""
    location = settings.location("run")
    due = is_due(Run.open(location))
    if not (due and settings.night.refresh):
        logger.info("refresh: %s", "due, but [night] refresh is false" if due else "not due")
        remove_abandoned(location)
        return {}
    with connect(settings.engine) as engine:
        judge, limits = judge_of(settings, engine), settings.limits
        refresh_run(location, [], engine, judge=judge, min_recall=limits.min_recall)
    return {"refreshed": True}


def is_due(run: Run) -> bool:
    """Return whether the last update found reasons for a refresh."""
    return bool(run.versions) and run.versions[-1]["refresh_due"]
