"""A scheduler and workers with TLS, started as cluster/README.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.engine.processes import PATIENCE_S, free_port, kill_tree, wait_until

CLUSTER = Path(__file__).parents[2] / "cluster"
START = CLUSTER / "start.sh"

# Nothing of this process's own settings, and the programs of this Python first.
_OWN = re.compile(r"DASK_.*|.*_NUM_THREADS|THREADS|CERTIFICATES")
PLAIN = {name: value for name, value in os.environ.items() if not _OWN.fullmatch(name)} | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": str(CLUSTER.parent),
}


def make_certificates(directory, *names):
    command = [sys.executable, str(CLUSTER / "certificates.py"), str(directory), *names]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return directory


def secured(certificates, environment=PLAIN):
    """Return the environment of somebody who has these certificates."""
    return environment | {"CERTIFICATES": str(certificates), "THREADS": "1"}


class SecuredProcesses:
    """A scheduler and workers."""

    def __init__(self, directory, n_workers):
        self.directory, self.n_workers = directory, n_workers
        self.certificates = make_certificates(directory / "certificates")
        self.port, self.http_port = free_port(), free_port()
        self.address = f"tls://127.0.0.1:{self.port}"
        self._log = (directory / "cluster.log").open("ab")
        self._processes = []

    def __enter__(self):
        file = self.directory / "scheduler.json"
        self.start(
            *("scheduler", "--port", str(self.port), "--scheduler-file", str(file)),
            *("--dashboard-address", f"127.0.0.1:{self.http_port}", "--no-dashboard"),
        )
        wait_until(lambda: file.exists() and file.stat().st_size)
        assert json.loads(file.read_text())["address"].startswith("tls://")
        for _ in range(self.n_workers):
            self.start(
                *("worker", self.address, "--nthreads", "1", "--memory-limit", "1GiB"),
                *("--no-dashboard", "--local-directory", str(self.directory)),
            )
        wait_until(lambda: self.log().count("Register worker addr") == self.n_workers)
        return self

    def __exit__(self, *_):
        for process in self._processes:
            kill_tree(process.pid)
            process.wait(PATIENCE_S)
        self._log.close()

    def start(self, *command):
        self._processes.append(
            subprocess.Popen(
                [str(START), "dask", *command],
                cwd=self.directory,
                env=secured(self.certificates),
                stdout=self._log,
                stderr=self._log,
            )
        )

    def log(self):
        return (self.directory / "cluster.log").read_text()
