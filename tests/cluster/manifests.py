"""The YAML files of cluster/ and the commands in them."""

import shlex
from pathlib import Path

import yaml
from distributed.cli import dask_scheduler, dask_worker

from dask_nrbfn.cli import commands

CLUSTER = Path(__file__).parents[2] / "cluster"

PROGRAMS = {
    ("dask", "scheduler"): dask_scheduler.main,
    ("dask", "worker"): dask_worker.main,
} | {("dask-nrbfn", name): command for name, command in commands.commands.items()}


def documents(name):
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def parse(command):
    """Return the options of a command line; click raises if it does not know one."""
    words = shlex.split(command) if isinstance(command, str) else command
    main = PROGRAMS[tuple(words[:2])]
    with main.make_context(" ".join(words[:2]), words[2:]) as context:
        return context.params
