"""Print how the model of the run does on the labelled test rows, as one line of JSON.

python workflows/jobs/evaluate.py settings.toml
"""

import argparse
import json
import sys

from job import run_job
from settings import Settings

from dask_nrbfn import Dataset, connect, evaluate_dataset

# Of classes or of numbers, by the names that an evaluation has for them.
KEYS = {
    "n_rows": "rows",
    "n_errors": "errors",
    "error_rate": "error_rate",
    "target_names": "targets",
    "r2": "r2",
    "rmse": "rmse",
    "mae": "mae",
}


def evaluate(settings: Settings) -> None:
    """Print rows, errors and error rate; of numbers R2, RMSE and MAE."""
    settings.source("test")
    test = Dataset.open(settings.location("test"))
    with connect(settings.engine) as engine:
        evaluation = evaluate_dataset(settings.location("run"), test, engine)
    figures = evaluation.figures()
    print(json.dumps({key: figures[name] for name, key in KEYS.items() if name in figures}))


if __name__ == "__main__":
    sys.exit(run_job(evaluate, argparse.ArgumentParser(description=__doc__.splitlines()[0])))
