"""Several hosts on one machine: a network namespace of the kernel each, cabled to one switch."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil

from tests.cluster.secured import call
from tests.engine.processes import PATIENCE_S, kill_tree

CONFIGURATION = Path("/etc/netns")


def why_not():
    """Return why there cannot be hosts here, or None."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and ip"
    process = ip("netns", "exec", "none", "true", check=False)
    if "Cannot open network namespace" not in process.stderr:
        return process.stderr.strip()
    probe = f"nrbfn{os.getpid()}-probe"
    if ip("netns", "add", probe, check=False).returncode:
        return "the kernel makes no network namespaces"
    try:
        made = ip("-n", probe, "link", "add", "type", "veth", check=False)
        bridged = ip("-n", probe, "link", "add", "type", "bridge", check=False)
        return (made.stderr + bridged.stderr).strip() or None
    finally:
        ip("netns", "del", probe)


def ip(*arguments, check=True):
    return call(["ip", *arguments], check=check)


def sweep():
    """Remove what tests have left that were killed."""
    names = [line.split()[0] for line in ip("netns", "list").stdout.splitlines() if line]
    own = ((name, re.fullmatch(r"nrbfn(\d+)-.*", name)) for name in names)
    remove(name for name, match in own if match and not psutil.pid_exists(int(match[1])))


def remove(namespaces):
    for name in namespaces:
        for pid in ip("netns", "pids", name, check=False).stdout.split():
            kill_tree(int(pid))
        ip("netns", "del", name, check=False)
        shutil.rmtree(CONFIGURATION / name, ignore_errors=True)


class Network:
    """Hosts that know each other by name, and what runs on them."""

    def __init__(self, *names):
        self._prefix = f"nrbfn{os.getpid()}"
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self._processes = []

    def __enter__(self):
        sweep()
        switch = self._namespace("switch")
        with contextlib.ExitStack() as on_error:
            on_error.push(self.__exit__)
            ip("netns", "add", switch)
            ip("-n", switch, "link", "add", "dev", "bridge", "type", "bridge")
            ip("-n", switch, "link", "set", "dev", "bridge", "up")
            for name in self.addresses:
                self._plug(name, switch)
            on_error.pop_all()
        return self

    def __exit__(self, *_):
        for process in self._processes:
            kill_tree(process.pid)
        remove(self._namespace(name) for name in (*self.addresses, "switch"))
        for process in self._processes:
            process.wait(PATIENCE_S)

    def start(self, host, command, **options):
        there = ["ip", "netns", "exec", self._namespace(host), *command]
        process = subprocess.Popen(there, **options)
        self._processes.append(process)
        return process

    def cut_off(self, host):
        """Pull the cable of a host."""
        ip("-n", self._namespace("switch"), "link", "set", "dev", host, "down")

    def _namespace(self, name):
        return f"{self._prefix}-{name}"

    def _plug(self, name, switch):
        own, address = self._namespace(name), self.addresses[name]
        # What `ip netns exec` puts in the place of the files in /etc.
        files = CONFIGURATION / own
        files.mkdir(parents=True)
        known = "".join(f"{each} {other}\n" for other, each in self.addresses.items())
        (files / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        (files / "resolv.conf").write_text("")
        ip("netns", "add", own)
        ip("-n", own, "link", "set", "lo", "up")
        cable = ("link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", switch)
        ip("-n", own, *cable)
        ip("-n", own, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", own, "link", "set", "eth0", "up")
        # dask finds a host's own address by its route to the world.
        ip("-n", own, "route", "add", "default", "via", "10.77.0.254")
        ip("-n", switch, "link", "set", "dev", name, "master", "bridge", "up")
