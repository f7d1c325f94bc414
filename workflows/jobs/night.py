"""Learn the files that wait and publish the model, or keep the old one if that is better.

The stages are jobs of this directory, each of which finds what it has done before: a night that was
killed goes on where it stopped when it is started again.

    python workflows/jobs/night.py night.toml
"""

import argparse
import sys
from collections.abc import Callable

from check import check
from fit import fit
from incoming import REJECTED, rejected_files
from ingest import ingest
from job import run_job
from publish import publish
from refresh import refresh
from settings import Settings
from update import update

from dask_nrbfn.errors import DataError, plural
from dask_nrbfn.storage.group import locked_run

Stage = Callable[[Settings], None]

# What an update made is published before a refresh, which takes longer and may be refused.
STAGES: tuple[Stage, ...] = (ingest, check, fit, update, publish, refresh, publish)


def run_here(stage: Stage, settings: Settings) -> None:
    """Run a stage."""
    stage(settings)


def night(settings: Settings, *, run_stage: Callable[[Stage, Settings], None] = run_here) -> None:
    """Run all stages, one night at a time; a scheduler may run each as a task of its own."""
    with locked_run(settings.location("night")):
        before = rejected_files(settings)
        for stage in STAGES:
            run_stage(stage, settings)
        rejected = sorted(name for name, _ in rejected_files(settings) - before)
    if rejected:
        raise DataError(
            f"{plural(len(rejected), 'file')} cannot be used: {', '.join(rejected)}. All others "
            "were added.",
            f"The reasons are in {settings.night.directory / REJECTED}. Correct these files and "
            "move them back.",
        )


if __name__ == "__main__":
    sys.exit(run_job(night, argparse.ArgumentParser(description=__doc__.splitlines()[0])))
