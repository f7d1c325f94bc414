"""Train on the dataset that ingest wrote, or finish a training that was interrupted."""

import logging
from dataclasses import replace

from settings import Settings

from dask_nrbfn import Dataset, Run, connect, fit_dataset
from dask_nrbfn.errors import RunMismatchError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.storage.group import exists
from dask_nrbfn.storage.run import finish_refresh

logger = logging.getLogger("dask_nrbfn.jobs.fit")


def fit(settings: Settings) -> None:
    """Run the stages that are not finished; a run that was refreshed has no other."""
    location = settings.location("run")
    finish_refresh(location)
    if exists(location) and "refresh" in (run := Run.open(location)).attributes:
        check_refreshed(run, settings)
        return
    train = Dataset.open(settings.location("train"))
    with connect(settings.engine) as engine:
        fit_dataset(train, location, settings.fit, engine, min_recall=settings.limits.min_recall)


def check_refreshed(run: Run, settings: Settings) -> None:
    """Raise RunMismatchError if a refreshed run has other parameters than the settings."""
    schema = Schema.of_record(run.attributes["schema"])
    kind = {"numbers": run.of_numbers, "mixed": schema is not None and not schema.is_plain}
    asked = settings.fit.resolve_auto(**kind, n_rows=run.of_labelled().n_rows)
    begun = run.begun.params
    alpha = begun.alpha if asked.alpha == "auto" else asked.alpha
    if begun != replace(asked, alpha=alpha):
        raise RunMismatchError(
            f"the run {run.location} was refreshed with other parameters than [fit] has.",
            "Give the same parameters, or another directory for a new run.",
        )
    logger.info("fit: %s was refreshed since", run.location)
