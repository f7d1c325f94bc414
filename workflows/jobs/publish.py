"""Publish the run's latest model as model.zarr, if it is good enough on the test rows.

It may make no more errors than [night] allows, and hardly more than the model that is published;
otherwise that one stays.
"""

import logging
from typing import Any

from settings import Settings

from dask_nrbfn import Dataset, Model, connect, evaluate_dataset
from dask_nrbfn.commands.update import Judge
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedDataError, MissingDataError
from dask_nrbfn.storage.group import exists, remove_abandoned

logger = logging.getLogger("dask_nrbfn.jobs.publish")


def publish(settings: Settings) -> dict[str, Any]:
    """Save the latest model, unless it is published; return its figures if it was not."""
    run, published = settings.location("run"), settings.location("model")
    model = Model.load(run)
    now = published_model(settings)
    if now is not None and now.digest() == model.digest():
        logger.info("publish: %s is the latest model", published)
        remove_abandoned(published)
        return {}
    with connect(settings.engine) as engine:
        error_rate = judge_of(settings, engine).error_rate(run, engine)
    model.save(published, overwrite=True)
    logger.info("publish: %s, error rate %.4f", published, error_rate)
    return {"error_rate": error_rate, "published": True}


def published_model(settings: Settings) -> Model | None:
    """Return the model that is published, None if there is none that can be read."""
    published = settings.location("model")
    try:
        return Model.load(published) if exists(published) else None
    except (DamagedDataError, MissingDataError) as error:
        logger.warning("publish: %s It is replaced if the new one is good enough.", error.problem)
        return None


def judge_of(settings: Settings, engine: Engine) -> Judge:
    """Return what tries a model on the test rows, beside the model that is published."""
    night, published = settings.night, settings.location("model")
    test = Dataset.open(settings.location("test"))
    allowed = night.max_error_rate
    if published_model(settings) is not None:
        now = evaluate_dataset(published, test, engine).error_rate
        allowed = min(allowed, now + night.tolerance)
    return Judge(test, allowed)
