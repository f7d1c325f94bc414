"""Runs a script of the repository as its user does: in a fresh process, in an empty directory."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_script(name, *arguments, cwd):
    """Run `name`, a path below the repository's root; return the finished process."""
    # Small work on shared cores: more threads only get in each other's way.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(ROOT / name), *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
