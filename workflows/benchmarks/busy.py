"""Time choosing parameters alone on the machine, and beside processes that keep its cores busy.

The neighbours multiply matrices with one thread each, one for every core unless told otherwise.
Repetitions alternate; the ratio says how much of the slowdown is more than the shared cores:

    python workflows/benchmarks/busy.py --repeats 3
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from prepare import add_options, open_dataset, spread

from dask_nrbfn import (
    Dataset,
    EngineOptions,
    FitParams,
    NRBFNError,
    TuneParams,
    connect,
    tune_dataset,
)
from dask_nrbfn.engine.threads import available_threads

# Prints once it is at work.
_NEIGHBOUR = """
import numpy as np
A = np.random.default_rng(0).random((512, 512))
print(flush=True)
while True:
    A @ A
"""


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=4435, features=36, basis=1000)
    parser.add_argument("--neighbours", type=int, default=available_threads())
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="busy-", dir=options.scratch) as scratch:
        try:
            dataset = open_dataset(options, scratch)
            params = FitParams(basis_size=options.basis_size, neighbors="exact")
            alone, beside = [], []
            for repeat in range(options.repeats):
                alone.append(tune_seconds(dataset, params, f"{scratch}/alone-{repeat}.zarr"))
                with busy_neighbours(options.neighbours):
                    beside.append(tune_seconds(dataset, params, f"{scratch}/beside-{repeat}.zarr"))
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
    print(f"{dataset.n_rows} x {dataset.n_features}, {options.neighbours} neighbours, seconds")
    print(table(alone, beside))
    return 0


def tune_seconds(dataset: Dataset, params: FitParams, location: str) -> dict[str, float]:
    """Return the seconds of every stage of a tuning in this process, and of all."""
    with connect(EngineOptions(workers=0)) as engine:
        run = tune_dataset(dataset, location, params, TuneParams(effort="quick"), engine)
    seconds = {stage: record["seconds"] for stage, record in run.stages.items()}
    return {**seconds, "all": sum(seconds.values())}


@contextmanager
def busy_neighbours(n_neighbours: int) -> Iterator[None]:
    """Keep so many cores busy with products of one thread each."""
    environment = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-c", _NEIGHBOUR]
    neighbours = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        for _ in range(n_neighbours)
    ]
    try:
        for neighbour in neighbours:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.communicate()


def table(alone: list[dict[str, float]], beside: list[dict[str, float]]) -> str:
    """Return the seconds of every stage, the least of the repetitions, and the ratios of all."""
    lines = [f"{'':<12}{'alone':>10}{'beside':>10}"]
    for stage in alone[0]:
        least = [min(seconds[stage] for seconds in each) for each in (alone, beside)]
        lines.append(f"{stage:<12}{least[0]:>10.2f}{least[1]:>10.2f}")
    ratios = [busy["all"] / free["all"] for free, busy in zip(alone, beside, strict=True)]
    return "\n".join([*lines, f"{'ratio':<12}{spread(ratios, '.2f')}"])


if __name__ == "__main__":
    sys.exit(main())
