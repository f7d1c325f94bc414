"""Runs a script of the repository as its user does: in a fresh process, in an empty directory."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Small work on shared cores: more threads only get in each other's way.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_script(name, *arguments, cwd):
    """Run `name`, a path below the repository's root; return the finished process."""
    return subprocess.run(
        [sys.executable, str(ROOT / name), *map(str, arguments)],
        cwd=cwd,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
