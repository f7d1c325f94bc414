"""Runs the blocks of a Markdown page in order, in an empty directory.

A block of `bash` or `python` is run, and the `text` that follows it is compared with the output.
All blocks of `python` on a page share their names. A block with a title is a file. A comment before
a block says why it is not run: ``<!-- not run: reason -->``.
"""

import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.workflows.script import ENVIRONMENT, ROOT

GUIDE = ROOT / "workflows/guide/pages"
PAGES = [ROOT / "README.md", *sorted(GUIDE.rglob("*.md"))]
RUN = ("bash", "python")

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n(?:<!-- tests -->\n)?)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)
# Figures whose last digits depend on the kernels of BLAS, by the first word of their line.
_MOVING = ("n_errors", "error_rate", "log_loss", "R2")
# A line of such commands alone needs no shell.
_NEEDS_SHELL = re.compile(r"[|<>&;$*`]")

# Imports take longer than most commands: children are forked from a server that has imported.
_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = ["dask_nrbfn.cli", "dask_nrbfn.estimators.tuned", "dask_nrbfn.report.page", "pandas"]
_PRELOADED += ["sklearn.datasets", "distributed"]
_PRELOADED += [f"dask_nrbfn.commands.{name}" for name in ("evaluate", "fit", "ingest", "update")]


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str
    reason: str | None


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks_of(page):
    return [Block(**found.groupdict()) for found in _BLOCK.finditer(page.read_text())]


class Session:
    def __init__(self, directory):
        self.directory = directory
        self.printed = directory.with_name(f"{directory.name}.printed")
        for name in ("workflows", "cluster"):
            (directory / name).symlink_to(ROOT / name)
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self.environment = {**ENVIRONMENT, "PATH": programs, "PYTHONPATH": paths}
        self.python = self.pipe = None
        self.groups = []

    def run(self, block):
        """Run a block; return what it prints on both streams."""
        self.printed.write_text("")
        if block.language == "python" and "__main__" in block.text:
            self._run_process([sys.executable, "-c", block.text])
        elif block.language == "python":
            self._run_python(block.text)
        else:
            commands, rest = _plain_commands(block.text)
            for command in commands:
                self._run_command(command)
            if rest:
                self._run_process(["bash", "-euo", "pipefail", "-c", rest])
        return self.printed.read_text()

    def close(self):
        """End the processes that are left."""
        if self.python is not None:
            self.pipe.send(None)
            self.python.join()
        # What a block has left in the background.
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)

    def _run_process(self, command):
        with self.printed.open("a") as printed:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=os.environ | self.environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.groups.append(process.pid)
        assert process.wait() == 0, self.printed.read_text()

    def _run_command(self, command):
        process = self._started(_command, command)
        process.join()
        assert process.exitcode == 0, f"{command}\n{self.printed.read_text()}"

    def _run_python(self, text):
        if self.python is None:
            self.pipe, other = _SERVER.Pipe()
            self.python = self._started(_session, other)
        self.pipe.send(text)
        assert self.pipe.recv(), self.printed.read_text()

    def _started(self, target, argument):
        with mock.patch.dict(os.environ, self.environment):
            _SERVER.set_forkserver_preload(_PRELOADED)
            process = _SERVER.Process(
                target=target, args=(self.directory, self.printed, argument), daemon=False
            )
            process.start()
        return process


def _plain_commands(text):
    """Return the arguments of the first lines, dask-nrbfn without a shell, and the other lines."""
    lines, commands = text.replace("\\\n", " ").splitlines(), []
    for place, line in enumerate(lines):
        plain = not _NEEDS_SHELL.search(line.partition(" #")[0])
        command = shlex.split(line, comments=True) if plain else []
        if plain and not command:
            continue
        if command[:1] != ["dask-nrbfn"]:
            return commands, "\n".join(lines[place:])
        commands.append(command)
    return commands, ""


def _enter(directory, printed):
    os.chdir(directory)
    file = os.open(printed, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)


def _command(directory, printed, arguments):
    from dask_nrbfn.cli import main

    _enter(directory, printed)
    sys.argv = arguments
    main()


def _session(directory, printed, pipe):
    _enter(directory, printed)
    names = {"__name__": "__main__"}
    while (text := pipe.recv()) is not None:
        try:
            exec(compile(text, "block", "exec"), names)
        except Exception:
            traceback.print_exc()
            pipe.send(False)
        else:
            sys.stdout.flush()
            pipe.send(True)


def run_page(page, directory):
    """Run all blocks of a page, and compare what is said of their output."""
    session, printed = Session(directory), None
    try:
        for block in blocks_of(page):
            if block.reason is not None:
                printed = None
            elif block.title is not None:
                place = directory / block.title
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block.text)
            elif block.language in RUN:
                printed = session.run(block)
            elif block.language == "text":
                assert printed is not None, f"no block printed {block.text}"
                check_printed(block.text, printed)
    finally:
        session.close()


def check_printed(expected, printed):
    """Check that all lines of a text stand in the output, in this order.

    A line ``...`` stands for any others, and ``...`` at the end of a line for the rest. Blanks
    between words do not count.
    """
    lines = [line.split() for line in printed.splitlines()]
    for words in (line.split() for line in expected.splitlines()):
        if words in ([], ["..."]):
            continue
        place = next((n for n, line in enumerate(lines) if _are_equal(words, line)), None)
        assert place is not None, f"{' '.join(words)!r} is not printed, or not there:\n{printed}"
        del lines[: place + 1]


def _are_equal(words, others):
    if words and words[0] in _MOVING and words[:1] == others[:1] and len(words) == len(others):
        return all(map(_are_near, words[1:], others[1:]))
    if words[-1].endswith("..."):
        return " ".join(others).startswith(" ".join(words).removesuffix("...").rstrip())
    return words == others


def _are_near(word, other):
    try:
        value, found = float(word.replace(",", "")), float(other.replace(",", ""))
    except ValueError:
        return word == other
    return abs(value - found) <= (2 if value.is_integer() else 0.15 * abs(value))


def titles_run(page):
    """Return the titles of Python files of a page that a later block of bash names."""
    blocks = blocks_of(page)
    return {
        block.title
        for n, block in enumerate(blocks)
        if block.title and any(block.title in later.text for later in blocks[n + 1 :])
    }
