"""A scheduler and workers with nannies as processes of their own, to be killed and brought back."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
from distributed import Client

from dask_nrbfn.engine.threads import worker_environment

# What a machine that is busy with other tests may take to start a process and to notice a dead one.
PATIENCE_S = 180

# Whatever the directory they start in, processes find the tests' tasks.
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}


class Processes:
    """A cluster whose members die one by one."""

    def __init__(self, directory, n_workers=2):
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._directory, self._log = directory, (directory / "cluster.log").open("ab")
        self._scheduler, self._nannies = None, [None] * n_workers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in filter(None, [self._scheduler, *self._nannies]):
            kill_tree(process.pid)
            process.wait(PATIENCE_S)
        self._log.close()

    def revive(self):
        """Start what does not run."""
        if not alive(self._scheduler):
            options = ("--port", self.address.rsplit(":")[-1], "--no-dashboard")
            self._scheduler = self._start("dask_scheduler", *options)
        for number, nanny in enumerate(self._nannies):
            if not alive(nanny):
                options = ("--nthreads", "1", "--memory-limit", "1GiB", "--no-dashboard")
                self._nannies[number] = self._start("dask_worker", self.address, *options)

    def answers(self):
        """Return whether the scheduler has a worker."""
        try:
            with Client(self.address, timeout=1, set_as_default=False) as client:
                return bool(client.nthreads())
        except OSError:
            return False

    def kill(self, victim, signal_number=signal.SIGKILL):
        """Kill the scheduler, a nanny, or the worker of a nanny, if it runs."""
        if victim == "scheduler":
            self._scheduler.send_signal(signal_number)
        elif victim == "nanny":
            self._nannies[0].kill()
        else:
            for process in workers_of(self._nannies[0].pid):
                process.kill()

    def kill_workers(self):
        """Kill all nannies; their workers follow them."""
        for nanny in self._nannies:
            nanny.kill()

    def _start(self, module, *options):
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *options],
            cwd=self._directory,
            env=os.environ | worker_environment(1) | ENVIRONMENT,
            stdout=self._log,
            stderr=self._log,
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def alive(process):
    return process is not None and process.poll() is None


def workers_of(nanny_pid):
    """Return the worker processes of a nanny, which may be about to start one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(nanny_pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return []


def kill_tree(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        family = [*process.children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)


def wait_until(condition, timeout_s=PATIENCE_S, *, process=None):
    """Wait until a condition holds, which a process that ends can no longer bring about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process is None or process.poll() is None, "the process ended"
        time.sleep(0.02)
