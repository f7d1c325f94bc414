"""Learn the files that wait and publish the model, or keep the old one if that is better.

The stages are jobs of this directory, each of which finds what it has done before: a night that was
killed goes on where it stopped when it is started again.

    python workflows/jobs/night.py night.toml
"""

import argparse
import logging
import operator
import sys
from collections.abc import Callable
from typing import Any

from check import check
from fit import fit
from incoming import REJECTED, rejected_files
from ingest import ingest
from job import run_job
from publish import publish
from record import read_nights, write_night
from refresh import refresh
from settings import Settings
from update import update

from dask_nrbfn.errors import DataError, plural
from dask_nrbfn.storage.group import locked_run

logger = logging.getLogger("dask_nrbfn.jobs.night")

# A stage may return figures of the night.
Stage = Callable[[Settings], dict[str, Any] | None]

# What an update made is published before a refresh, which takes longer and may be refused.
STAGES: tuple[Stage, ...] = (ingest, check, fit, update, publish, refresh, publish)

# What a line of nights.jsonl says of a night; "problem" ended it before its last stage.
FIGURES = {"learned": [], "rejected": [], "error_rate": None}
FIGURES |= {"published": False, "refreshed": False, "problem": None}


def night(settings: Settings, *, run_stage: Callable[..., Any] = operator.call) -> None:
    """Run all stages, one night at a time; a scheduler may run each as a task of its own."""
    with locked_run(settings.location("night")):
        figures = dict(FIGURES)
        # What a night rejected that was killed, or failed, is named by the next one.
        ended = [night for night in read_nights(settings) if night["problem"] is None]
        known = {name for night in ended for name in night["rejected"]}
        try:
            for stage in STAGES:
                figures |= run_stage(stage, settings) or {}
        except BaseException as error:
            figures["problem"] = str(error) or type(error).__name__
            raise
        finally:
            figures["rejected"] = rejected = sorted(rejected_files(settings) - known)
            write_night(settings, figures)
    if rejected:
        good = plural(sum(file["n_rows"] > 0 for file in figures["learned"]), "file")
        raise DataError(
            f"{plural(len(rejected), 'file')} cannot be used: {', '.join(rejected)}. {good} added.",
            f"The reasons are in {settings.night.directory / REJECTED}. Correct these files and "
            "move them back.",
        )
    if not figures["learned"]:
        logger.info("night: no files waited")


if __name__ == "__main__":
    sys.exit(run_job(night, argparse.ArgumentParser(description=__doc__.splitlines()[0])))
