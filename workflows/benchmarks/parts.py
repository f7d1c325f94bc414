"""Time what parts cost beside the arithmetic: storing their sums, adding them, telling of them.

Each part leaves moments that took no time. "floor" is storing as many sums and reading each
of them once, in one process:

    python workflows/benchmarks/parts.py --basis-size 8787 --n-parts 2 16 64
    python workflows/benchmarks/parts.py --basis-size 10 --n-parts 10000 --workers 2 --slots 500
"""

import argparse
import sys
import tempfile
import time
from functools import cache

import numpy as np
from distributed import Client, LocalCluster

from dask_nrbfn import Dataset, FitParams, Run, connect, ingest_arrays
from dask_nrbfn.engine import Engine, InlineEngine
from dask_nrbfn.numeric.moments import Moments, packed_size
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.weighting import RowReading, RowWeights


class GivenMoments:
    """Moments that nobody computed."""

    def __init__(self, run: Run, dataset: Dataset, start: int, stop: int, n_basis: int) -> None:
        self.reading = RowReading(block_rows=stop - start, weighting=RowWeights(None))
        self._n_basis = n_basis

    def add(self, block: object) -> None:
        """Leave a block alone."""

    def sums(self) -> Sums:
        """Return the moments."""
        given = given_moments(self._n_basis)
        return {"": Moments(*(values.copy() for values in given.arrays().values()))}


@cache
def given_moments(n_basis: int) -> Moments:
    """Return moments of full digits, which no codec makes smaller."""
    rng = np.random.default_rng(0)
    return Moments(rng.random(packed_size(n_basis)), rng.random((3, n_basis)), rng.random((3, 3)))


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--basis-size", type=int, default=2000)
    parser.add_argument("--n-parts", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: this one")
    parser.add_argument("--slots", type=int, default=1, help="tasks at a time of each process")
    parser.add_argument("--scratch", help="directory for the sums; default: the system's")
    options = parser.parse_args()
    print(f"{'parts':>7}{'GiB each':>10}{'seconds':>10}{'floor':>9}{'ratio':>7}")
    with tempfile.TemporaryDirectory(prefix="parts-", dir=options.scratch) as scratch:
        if not options.workers:
            show_all(options, InlineEngine(), scratch)
            return 0
        with (
            LocalCluster(n_workers=options.workers, threads_per_worker=options.slots) as cluster,
            Client(cluster) as client,
            connect(client=client) as engine,
        ):
            show_all(options, engine, scratch)
    return 0


def show_all(options: argparse.Namespace, engine: Engine, scratch: str) -> None:
    """Print a line for each number of parts."""
    for n_parts in options.n_parts:
        rows = np.arange(2.0 * n_parts)[:, None]
        dataset = ingest_arrays(rows, np.arange(2 * n_parts) % 2, f"{scratch}/data-{n_parts}")
        run = Run.start(
            f"{scratch}/run-{n_parts}", dataset, Spec.of(FitParams(n_parts=n_parts)), {}
        )
        context = (options.basis_size,)
        reduction = Reduction("sums", GivenMoments, {"": Moments}, run.layout, context)
        start = time.perf_counter()
        reduce_parts(run, dataset, engine, reduction)
        seconds = time.perf_counter() - start
        gibibytes = 8 * packed_size(options.basis_size) / 2**30
        floor = n_parts * seconds_of_one(run, options.basis_size)
        ratio = seconds / floor
        print(f"{n_parts:>7}{gibibytes:>10.3f}{seconds:>10.2f}{floor:>9.2f}{ratio:>7.2f}")
        run.drop("sums")


def seconds_of_one(run: Run, n_basis: int, repeats: int = 3) -> float:
    """Return the seconds of storing a sum and reading it, in this process."""
    reduction = Reduction("one", GivenMoments, {"": Moments}, PartLayout.of(1))
    given = given_moments(n_basis).arrays()
    start = time.perf_counter()
    for _ in range(repeats):
        run.write_part("one", 0, {}, given)
        read_total(run, reduction)
    seconds = (time.perf_counter() - start) / repeats
    run.drop("one")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
