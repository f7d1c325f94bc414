"""Runs a script of the repository, in an empty directory."""

import contextlib
import io
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

from tests.logs import fresh_logging

ROOT = Path(__file__).parents[2]

# Small work on shared cores: more threads only get in each other's way.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_script(name, *arguments, cwd):
    """Run `name`, a path below the repository's root, as its user does; return the process."""
    return subprocess.run(
        [sys.executable, str(ROOT / name), *map(str, arguments)],
        cwd=cwd,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def run_here(name, *arguments, cwd):
    """Run `name` in this process, which has loaded its libraries; return what `run_script` does.

    For scripts that end in an error of their own or well: no traceback is made of others.
    """
    out, errors = io.StringIO(), io.StringIO()
    command = [str(ROOT / name), *map(str, arguments)]
    with (
        _this_process(command),
        fresh_logging(),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            runpy.run_path(command[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(command, code, out.getvalue(), errors.getvalue())


@contextlib.contextmanager
def _this_process(command):
    """Give a script its arguments and its neighbours; take away the modules that it loaded."""
    arguments, path, loaded = sys.argv, sys.path, set(sys.modules)
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    directory = str(Path(command[0]).parent)
    sys.argv, sys.path = command, [directory, *path]
    try:
        yield
    finally:
        sys.argv, sys.path = arguments, path
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        for key in set(sys.modules) - loaded:
            if (getattr(sys.modules[key], "__file__", None) or "").startswith(directory):
                del sys.modules[key]
