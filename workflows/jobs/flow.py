"""Run the night as a Prefect flow, each of its stages as a task, every night.

Registers the schedule with the Prefect server at PREFECT_API_URL and waits for its runs:

    export PREFECT_API_URL=http://127.0.0.1:4200/api PREFECT_LOGGING_EXTRA_LOGGERS=dask_nrbfn
    python workflows/jobs/flow.py night.toml
"""

import argparse
import logging
from pathlib import Path
from typing import Any

from night import Stage, night
from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from settings import Settings, read_settings

from dask_nrbfn import NRBFNError
from dask_nrbfn.errors import ClusterError, StorageError, WorkerLostError

# What may be over when a stage is tried again. What the user has to mend is not.
PASSING = (ClusterError, StorageError, WorkerLostError)


@flow(name="nrbfn-night")
def nrbfn_night(settings: Path, retries: int = 2, retry_delay_s: float = 300) -> None:
    """Learn the files that wait and publish the model, if it is good enough.

    A stage that is tried again goes on where it stopped.
    """
    logging.getLogger("dask_nrbfn").setLevel(logging.INFO)

    def run_as_task(stage: Stage, values: Settings) -> dict[str, Any] | None:
        run = task(
            name=stage.__name__,
            retries=retries,
            retry_delay_seconds=retry_delay_s,
            retry_condition_fn=may_pass,
            cache_policy=NO_CACHE,
        )(stage)
        return run(values)

    night(read_settings(settings), run_stage=run_as_task)


def may_pass(stage: Task[..., Any], task_run: TaskRun, state: State) -> bool:
    """Return whether a stage may end well if it is tried again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, PASSING) or not isinstance(error, NRBFNError)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=Path, help="TOML file, see night.toml")
    parser.add_argument("--cron", default="15 2 * * *", help="when  [default: %(default)s]")
    options = parser.parse_args()
    nrbfn_night.serve(
        name="nightly", cron=options.cron, parameters={"settings": str(options.settings.absolute())}
    )
