"""Train on the dataset that ingest wrote, or finish a training that was interrupted.

python workflows/jobs/fit.py settings.toml
"""

import argparse
import sys

from job import run_job
from settings import Settings

from dask_nrbfn import Dataset, connect, fit_dataset


def fit(settings: Settings, options: argparse.Namespace) -> None:
    """Run the stages that are not finished."""
    train = Dataset.open(settings.location("train"))
    with connect(settings.engine) as engine:
        fit_dataset(train, settings.location("run"), settings.fit, engine)


if __name__ == "__main__":
    sys.exit(run_job(fit, argparse.ArgumentParser(description=__doc__.splitlines()[0])))
