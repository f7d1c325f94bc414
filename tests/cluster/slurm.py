"""A Slurm of two nodes on this machine, from the distribution's packages."""

import contextlib
import getpass
import re
import secrets
import shutil
import socket
import subprocess

from tests.cluster.secured import PLAIN, call
from tests.engine.processes import PATIENCE_S, free_port, kill_tree, wait_until

MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]

# Without cgroups and systemd, as in a container: processes are found by their parents.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1} CPUs=4 RealMemory=8000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2} CPUs=4 RealMemory=8000
PartitionName=all Nodes=ALL Default=YES
"""


class Slurm:
    def __init__(self, directory):
        self.directory = directory
        self.configuration = directory / "slurm.conf"
        self.environment = PLAIN | {"SLURM_CONF": str(self.configuration)}
        self._daemons = []

    def __enter__(self):
        ports = {name: free_port() for name in ("control_port", "port_1", "port_2")}
        self.configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().split(".")[0],
                user=getpass.getuser(),
                directory=self.directory,
                **ports,
            )
        )
        (self.directory / "state").mkdir()
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {
            "key-file": key,
            "socket": self.directory / "munge.socket",
            "pid-file": self.directory / "munged.pid",
            "log-file": self.directory / "munged-own.log",
            "seed-file": self.directory / "munge.seed",
        }
        try:
            # By force: it wants directories that others may search.
            self._start(
                "munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in files.items())
            )
            wait_until(files["socket"].exists)
            self._start("slurmctld", "-D")
            for node in ("node1", "node2"):
                self._start("slurmd", "-D", "-N", node)
            wait_until(lambda: self.run("sinfo", "--noheader", "-o", "%T %D") == "idle 2")
        except BaseException as error:
            self.__exit__()
            error.add_note(self.logs())
            raise
        return self

    def __exit__(self, *_):
        # Jobs do not end with the daemons.
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--me")
            wait_until(lambda: not self.run("squeue", "--noheader"))
        for process in reversed(self._daemons):
            process.terminate()
        for process in self._daemons:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                kill_tree(process.pid)
                process.wait()

    def _start(self, program, *arguments):
        with (self.directory / "daemons.log").open("ab") as log:
            command = [shutil.which(program), *arguments]
            options = {"env": self.environment, "stdout": log, "stderr": log}
            self._daemons.append(subprocess.Popen(command, **options))

    def logs(self):
        return (self.directory / "daemons.log").read_text()

    def run(self, *command, **options):
        process = call(command, env=self.environment, **options)
        return process.stdout.strip() or process.stderr.strip()


class BatchJob:
    def __init__(self, slurm, directory, script, *command):
        self._slurm, self.log = slurm, directory / "job.log"
        size = "--nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=4G --time=10"
        submit = ("sbatch", "--parsable", *size.split(), f"--output={self.log}")
        answer = slurm.run(*submit, str(script), *command, cwd=directory)
        assert answer.isdigit(), answer
        self.number = answer
        self.directory = directory / f"nrbfn-{self.number}"

    def field(self, name):
        """Return what Slurm says of the job; None if its controller is too busy to answer."""
        shown = self._slurm.run("scontrol", "show", "job", self.number)
        found = re.search(rf"\b{name}=(\S+)", shown)
        return found and found[1]

    def cancel(self, *options):
        self._slurm.run("scancel", *options, self.number)

    def wait_until(self, condition, timeout_s=4 * PATIENCE_S):
        try:
            wait_until(condition, timeout_s)
        except AssertionError as error:
            error.add_note(self.log.read_text() if self.log.exists() else self._slurm.logs())
            raise
