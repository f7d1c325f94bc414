"""Time a whole fit on dask against a plain numpy script of the same steps.

Each is a fresh process, timed from its start to its end: interpreter, imports and, on dask, the
local cluster are counted. Repetitions alternate which of the two comes first:

    python workflows/benchmarks/fit.py mnist.zarr
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIT_OPTIONS = ("n-neighbors", "confidence-threshold", "alpha")
DASK_OPTIONS = ("neighbors", "workers", "threads", "scratch")


def main() -> None:
    """Run both fits as often as asked and print a table for each repetition."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="made by dask-nrbfn ingest")
    parser.add_argument("--first", choices=("plain", "dask"), default="plain")
    parser.add_argument("--repeats", type=int, default=1)
    for names, help_text in ((FIT_OPTIONS, "of the fit"), (DASK_OPTIONS, "on dask only")):
        for name in names:
            parser.add_argument(f"--{name}", help=help_text)
    options = parser.parse_args()
    fit_options = given(options, FIT_OPTIONS)
    commands = {
        "plain": ["plain.py", options.dataset, *fit_options],
        "dask": ["on_dask.py", options.dataset, *fit_options, *given(options, DASK_OPTIONS)],
    }
    order = ["plain", "dask"] if options.first == "plain" else ["dask", "plain"]
    for _ in range(options.repeats):
        outcomes = {name: time_process(commands[name]) for name in order}
        print(f"{order[0]} first, seconds")
        print(table(outcomes["plain"], outcomes["dask"]), flush=True)
        order.reverse()


def given(options: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    """Return the options among `names` that were given, as on a command line."""
    values = {name: getattr(options, name.replace("-", "_")) for name in names}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def time_process(command: list[str]) -> dict[str, Any]:
    """Run a script in a fresh process; return what it prints and the seconds it took in all."""
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, str(HERE / command[0]), *command[1:]], stdout=subprocess.PIPE, check=True
    )
    return {**json.loads(process.stdout), "total_s": time.perf_counter() - start}


def table(plain: dict[str, Any], dask: dict[str, Any]) -> str:
    """Return seconds per step of both and their ratio, and the figures that must agree."""
    rows = [
        ("process", *(outside_steps(outcome) for outcome in (plain, dask))),
        ("cluster start", None, dask["startup_s"]),
        *((step, plain["steps"].get(step), seconds) for step, seconds in dask["steps"].items()),
        ("total", plain["total_s"], dask["total_s"]),
    ]
    lines = [f"{'':<15}{'plain':>10}{'dask':>10}{'dask/plain':>12}"]
    for step, *seconds in rows:
        cells = "".join(f"{'-' if s is None else format(s, '.2f'):>10}" for s in seconds)
        ratio = f"{seconds[1] / seconds[0]:.3f}" if all(seconds) else ""
        lines.append(f"{step:<15}{cells}{ratio:>12}".rstrip())
    for name, form in (("n_basis", "d"), ("eps", ".4f"), ("gamma", ".3g")):
        lines.append(f"{name:<15}{plain[name]:>10{form}}{dask[name]:>10{form}}")
    lines.append(f"ratio of the totals: {dask['total_s'] / plain['total_s']:.3f}")
    return "\n".join(lines)


def outside_steps(outcome: dict[str, Any]) -> float:
    """Return the seconds of interpreter, imports, and closing."""
    return outcome["total_s"] - outcome.get("startup_s", 0.0) - sum(outcome["steps"].values())


if __name__ == "__main__":
    main()
