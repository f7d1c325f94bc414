"""Time `dask-nrbfn fit` against a plain numpy script of the same steps.

Each is a fresh process, timed from its start to its end: interpreter, imports and the local cluster
are counted, as "outside" of the steps. Repetitions alternate which of the two comes first:

    python workflows/benchmarks/fit.py mnist.zarr
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dask_nrbfn import Run

PLAIN = Path(__file__).with_name("plain.py")
FIT_OPTIONS = {"n-neighbors": None, "confidence-threshold": 0.9, "alpha": "1e-13"}


def main() -> None:
    """Run both fits as often as asked and print a table for each repetition."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="made by dask-nrbfn ingest")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of the worker; default: all cores")
    for name, default in FIT_OPTIONS.items():
        parser.add_argument(f"--{name}", default=default, help="of both fits")
    options = parser.parse_args()
    values = {name: getattr(options, name.replace("-", "_")) for name in FIT_OPTIONS}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    fits = {
        "plain": lambda: time_plain([options.dataset, *given]),
        "dask": lambda: time_dask(options.dataset, given, options.threads),
    }
    order = ["plain", "dask"]
    for _ in range(options.repeats):
        outcomes = {name: fits[name]() for name in order}
        print(f"{order[0]} first, seconds")
        print(table(outcomes["plain"], outcomes["dask"]), flush=True)
        order.reverse()


def timed(command: list[str]) -> tuple[float, str]:
    """Run a process of Python; return its seconds and what it printed."""
    start = time.perf_counter()
    process = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - start, process.stdout.decode()


def time_plain(arguments: list[str]) -> dict[str, Any]:
    """Return seconds and figures of the plain script."""
    seconds, printed = timed([str(PLAIN), *arguments])
    return {**json.loads(printed), "total_s": seconds}


def time_dask(dataset: str, fit_options: list[str], threads: int | None) -> dict[str, Any]:
    """Return seconds and figures of the command on one worker."""
    with tempfile.TemporaryDirectory(prefix="fit-") as scratch:
        command = ["-m", "dask_nrbfn", "fit", dataset, f"{scratch}/run.zarr", *fit_options]
        command += ["--kernel=gaussian", "--scale=none", "--neighbors", "exact", "--workers=1"]
        seconds, _ = timed([*command, *([f"--threads={threads}"] if threads else [])])
        stages = Run.open(f"{scratch}/run.zarr").stages
    return {
        "steps": {stage: record["seconds"] for stage, record in stages.items()},
        "n_basis": stages["basis"]["n_basis"],
        "eps": stages["weights"]["fitting_error"],
        "gamma": stages["weights"]["spectral_risk"],
        "total_s": seconds,
    }


def table(plain: dict[str, Any], dask: dict[str, Any]) -> str:
    """Return seconds per step of both and their ratio, and the figures that must agree."""
    outside = [each["total_s"] - sum(each["steps"].values()) for each in (plain, dask)]
    rows = [
        ("outside", *outside),
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
    return "\n".join(lines)


if __name__ == "__main__":
    main()
