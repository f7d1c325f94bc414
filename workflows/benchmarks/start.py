"""Time how long commands take to start against the imports that they cannot do without.

Each command runs in a fresh process beside one that only imports, in turn, a few times. A time is
the median, in seconds; a ratio is the median of those of each turn, of elapsed time and of CPU
time. The CPU time is what the process itself computed and the system did for it:

    python workflows/benchmarks/start.py run.zarr
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import NamedTuple

from prepare import open_dataset

from dask_nrbfn import FitParams, InlineEngine, NRBFNError, Run, fit_dataset

PROGRAM = str(Path(sysconfig.get_path("scripts"), "dask-nrbfn"))


class Took(NamedTuple):
    """What a process took."""

    elapsed_s: float
    cpu_s: float


class Measured(NamedTuple):
    """What a command and the import beside it took, turn by turn."""

    command: str
    floor: str
    pairs: list[tuple[Took, Took]]


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", help="made by dask-nrbfn fit; default: one of drawn rows")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scratch", help="directory for the drawn run; default: the system's")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    with tempfile.TemporaryDirectory(prefix="start-", dir=options.scratch) as scratch:
        try:
            run = str(Run.open(options.run or drawn_run(scratch)).location)
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
        cases = {
            "--help": (["--help"], "import click"),
            "fit --help": (["fit", "--help"], "import click"),
            "inspect RUN": (["inspect", run], "import numpy, zarr"),
        }
        measured = [beside(name, *case, options.repeats) for name, case in cases.items()]
    print(table(measured))
    return 0


def drawn_run(scratch: str) -> str:
    """Fit a few drawn rows in this process; return where the run is."""
    drawn = argparse.Namespace(dataset=None, rows=2000, features=8)
    params = FitParams(basis="random", basis_size=50)
    fit_dataset(open_dataset(drawn, scratch), f"{scratch}/run.zarr", params, InlineEngine())
    return f"{scratch}/run.zarr"


def beside(name: str, arguments: Sequence[str], floor: str, repeats: int) -> Measured:
    """Run a command and the import in turn, once before the clock so that all files are read."""
    command, imports = [PROGRAM, *arguments], [sys.executable, "-c", floor]
    took(command), took(imports)
    pairs = [(took(command), took(imports)) for _ in range(repeats)]
    return Measured(f"dask-nrbfn {name}", f'python -c "{floor}"', pairs)


def took(command: Sequence[str]) -> Took:
    """Run a process to its end."""
    before, start = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    elapsed_s, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return Took(elapsed_s, user_s + system_s)


def table(measured: Sequence[Measured]) -> str:
    """Return a line for each command and each import."""
    lines = [f"{'':<36}{'seconds':>9}{'CPU s':>9}{'ratio':>9}{'of CPU':>9}"]
    for command, floor, pairs in measured:
        ratios = [
            f"{median(ours[field] / theirs[field] for ours, theirs in pairs):>9.2f}"
            for field in range(2)
        ]
        commands, imports = zip(*pairs, strict=True)
        lines.append(f"{command:<36}{medians(commands)}{''.join(ratios)}")
        lines.append(f"{floor:<36}{medians(imports)}")
    return "\n".join(lines)


def medians(times: Sequence[Took]) -> str:
    """Return the medians as columns."""
    return "".join(f"{median(took[field] for took in times):>9.3f}" for field in range(2))


if __name__ == "__main__":
    sys.exit(main())
