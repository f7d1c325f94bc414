"""Print how the model of the run does on the labelled test rows, as one line of JSON.

python workflows/jobs/evaluate.py settings.toml
"""

import argparse
import json
import sys

from job import run_job
from settings import Settings

from dask_nrbfn import Dataset, connect, evaluate_dataset


def evaluate(settings: Settings) -> None:
    """Print rows, errors and error rate."""
    settings.source("test")
    test = Dataset.open(settings.location("test"))
    with connect(settings.engine) as engine:
        evaluation = evaluate_dataset(settings.location("run"), test, engine)
    print(
        json.dumps(
            {
                "rows": evaluation.n_rows,
                "errors": evaluation.n_errors,
                "error_rate": evaluation.error_rate,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(run_job(evaluate, argparse.ArgumentParser(description=__doc__.splitlines()[0])))
