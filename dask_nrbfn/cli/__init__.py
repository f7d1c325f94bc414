"""The command line: ``dask-nrbfn``, ``python -m dask_nrbfn`` and ``dask nrbfn``."""

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from glob import glob
from typing import NoReturn

import click

from dask_nrbfn.cli import data, train, update, use
from dask_nrbfn.cli.group import EXIT_MENDABLE, Commands, logged_warnings, spelling
from dask_nrbfn.cli.job import EXITS_STOPPED, Job
from dask_nrbfn.engine.watch import leave_out_echoes
from dask_nrbfn.errors import Advice

# To add a command: write a `Command` in a module of this package, and list it here. If an error
# names an option that its own command lacks, the first command with this option is named too.
# Import what a command needs inside its function, so that the other commands start fast.
COMMANDS = (
    data.ingest,
    train.fit,
    train.plan,
    train.tune,
    train.embed,
    train.report,
    update.update,
    update.refresh,
    update.merge,
    use.evaluate,
    use.predict,
    use.export,
    data.inspect,
)


@click.group(
    "nrbfn",
    cls=Commands,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--quiet", "-q", is_flag=True, help="Only warnings and errors on standard error.")
@click.version_option(package_name="dask-nrbfn")
@click.pass_obj
def commands(job: Job, quiet: bool) -> None:
    """Train and use normalized RBF networks on tables larger than memory.

    Exit codes: 0 success; 2 an error that you can correct, with a remedy; 130 stopped by Ctrl-C,
    143 by SIGTERM; 1 any other error.
    """
    job.bar = not quiet
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(partial(_spelled, spelling(click.get_current_context())))
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", handlers=[handler])
    logging.getLogger("dask_nrbfn").setLevel(logging.WARNING if quiet else logging.INFO)
    leave_out_echoes()
    click.get_current_context().with_resource(logged_warnings())


def _spelled(spell: Callable[[str], str], record: logging.LogRecord) -> bool:
    """Name parameters as the command line does; leave out INFO records of dask's processes."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            each.spelled(spell) if isinstance(each, Advice) else each for each in record.args
        )
    return record.levelno >= logging.WARNING or record.name.startswith("dask_nrbfn")


def main() -> None:
    """Run the command line and exit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell starts what it runs in the background with SIGINT ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    # Libraries read these variables when they are loaded: see `worker_environment`.
    os.environ.setdefault("NUMBA_THREADING_LAYER", "threadsafe")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "14")
    try:
        commands(prog_name="dask-nrbfn")
    except SystemExit as ended:
        if ended.code in (EXIT_MENDABLE, *EXITS_STOPPED):
            _end_at_once(ended.code)
        raise


def _stop(number: int, _: object) -> NoReturn:
    """End the command and remove its unfinished files; the same signal again ends it at once."""
    signal.signal(number, signal.SIG_DFL)
    Job.stop_code = 128 + number
    # dask logs what it misses of workers that are stopped.
    for handler in logging.root.handlers:
        handler.addFilter(logging.Filter("dask_nrbfn"))
    sys.exit(Job.stop_code)


def _end_at_once(code: int) -> NoReturn:
    """End the process without the destructors of libraries, but for their scratch directories.

    They warn of what was not finished: zarr of coroutines, dask of workers.
    """
    for scratch in glob(os.path.join(tempfile.gettempdir(), f"dask-nrbfn-{os.getpid()}-*")):
        shutil.rmtree(scratch, ignore_errors=True)
    logging.shutdown()
    # The reader of the output may be gone.
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
