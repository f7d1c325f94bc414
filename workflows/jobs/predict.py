"""Predict the test rows with the model of the run; old predictions are replaced.

python workflows/jobs/predict.py settings.toml
"""

import argparse
import logging
import sys

from job import run_job
from settings import Settings

from dask_nrbfn import Dataset, connect, predict_dataset

logger = logging.getLogger("dask_nrbfn.jobs.predict")


def predict(settings: Settings) -> None:
    """Write the labels of all test rows."""
    settings.source("test")
    test = Dataset.open(settings.location("test"))
    with connect(settings.engine) as engine:
        predict_dataset(
            settings.location("run"),
            test,
            settings.predictions,
            engine,
            **settings.results,
            overwrite=True,
        )
    logger.info("predict: %d rows into %s", test.n_rows, settings.predictions)


if __name__ == "__main__":
    sys.exit(run_job(predict, argparse.ArgumentParser(description=__doc__.splitlines()[0])))
