"""Bring up a scheduler and workers on this machine, for any number of fits.

The workers are shaped like those that dask_nrbfn starts for itself: one task at a time each, all
their threads to BLAS. Runs until it gets SIGTERM or SIGINT:

    python cluster/local.py --workers 2 --threads 4 --memory 8GiB --scheduler-file scheduler.json
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dask_nrbfn import EngineOptions, NRBFNError
from dask_nrbfn.engine.connection import local_cluster
from dask_nrbfn.errors import ParameterError


def main() -> int:
    """Run the cluster until a signal ends it; return 0, or 2 if an option cannot be used."""
    options = parse_options()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        shape = cluster_shape(options)
    except NRBFNError as error:
        print(error.problem, error.remedy, sep="\n", file=sys.stderr)
        return 2
    path = options.scheduler_file
    with (
        local_cluster(shape, host=options.host, port=options.port) as cluster,
        scheduler_file(path, cluster.scheduler.identity()),
    ):
        print(f"{cluster.scheduler_address}: use --scheduler-file {path}", flush=True)
        stopped.wait()
    return 0


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, help="worker processes; default 1")
    parser.add_argument("--threads", type=int, help="of each worker; default: its share of cores")
    parser.add_argument("--memory", help="limit of each worker, such as 8GiB; default: its share")
    parser.add_argument("--host", help="address to listen on; default: this machine only")
    parser.add_argument("--port", type=int, default=0, help="of the scheduler; default: a free one")
    parser.add_argument("--scheduler-file", type=Path, default=Path("scheduler.json"))
    return parser.parse_args()


def cluster_shape(options: argparse.Namespace) -> EngineOptions:
    """Return the workers that are asked for."""
    if options.workers == 0:
        raise ParameterError(
            "workers is 0.", "Give at least 1; a fit without any needs no cluster."
        )
    return EngineOptions(workers=options.workers, threads=options.threads, memory=options.memory)


@contextmanager
def scheduler_file(path: Path, identity: dict[str, Any]) -> Iterator[None]:
    """Keep a scheduler file at `path`: whole at any moment, and gone when the block ends.

    A file that another scheduler has put there in the meantime stays.
    """
    text = json.dumps(identity, indent=2)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    os.replace(unfinished, path)
    try:
        yield
    finally:
        if path.exists() and path.read_text() == text:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
