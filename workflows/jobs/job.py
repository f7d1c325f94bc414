"""How every job starts and ends: its arguments, its log and its exit code."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from settings import read_settings, spelled

from dask_nrbfn import NRBFNError
from dask_nrbfn.engine.watch import leave_out_echoes

DONE, MENDABLE = 0, 2


def run_job(job: Callable[..., None], parser: argparse.ArgumentParser) -> int:
    """Run a job with the settings and options of the command line; return its exit code.

    0 means done, 2 that the user can mend it: one line on standard error says what is wrong and
    one what to do. Any other error ends in a traceback, and Python's exit code 1.
    """
    parser.add_argument("settings", type=Path, help="TOML file, see night.toml")
    options = vars(parser.parse_args())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("dask_nrbfn").setLevel(logging.INFO)
    leave_out_echoes()
    try:
        job(read_settings(options.pop("settings")), **options)
    except NRBFNError as error:
        print(*error.spelled(spelled), sep="\n", file=sys.stderr)
        return MENDABLE
    return DONE
