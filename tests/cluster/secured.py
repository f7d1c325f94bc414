"""Certificates and the environment of whoever has them, as cluster/README.md says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.engine.processes import PATIENCE_S

CLUSTER = Path(__file__).parents[2] / "cluster"
START = CLUSTER / "start.sh"

# Nothing of this process's own settings, and the programs of this Python first.
_OWN = re.compile(r"DASK_.*|.*_NUM_THREADS|THREADS|CERTIFICATES")
PLAIN = {name: value for name, value in os.environ.items() if not _OWN.fullmatch(name)} | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": str(CLUSTER.parent),
}


def call(command, *, patience=1, **options):
    """Run a command to its end; return its code and what it prints."""
    options |= {"capture_output": True, "text": True, "timeout": patience * PATIENCE_S}
    return subprocess.run([*map(str, command)], **options)


def make_certificates(directory, *names):
    command = [sys.executable, str(CLUSTER / "certificates.py"), str(directory), *names]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return directory


def secured(certificates, environment=PLAIN):
    """Return the environment of somebody who has these certificates."""
    return environment | {"CERTIFICATES": str(certificates), "THREADS": "1"}
