"""Run nights of workflows/jobs one after another, and kill them at random moments.

Every night a file comes in. A night is killed several times, each time just before it would have
renamed, removed or made a file or directory, and started again until it ends. Other nights learn
the same files, and nobody kills them. Both must leave the same files and the same model.

    python workflows/benchmarks/soak.py --nights 24
"""

import argparse
import itertools
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dask_nrbfn import Model

NIGHT = Path(__file__).parents[1] / "jobs" / "night.py"
N_CLASSES, N_FEATURES, TEST_ROWS = 3, 8, 1000

# Audit events of Python; what they announce has not happened yet.
CHANGES = {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}

# Parts of names that are drawn for every try, or made from the times of a file.
OF_ONE_PLACE = re.compile(r"[0-9a-f]{32}|(?<=-)[0-9a-f]{8}(?=\.)")

SETTINGS = """
[data]
train = {{ source = "train.npz" }}
test = {{ source = "test.npz" }}

[fit]
basis_size = {basis_size}
alpha = 1e-9

[engine]
workers = 0

[night]
incoming = {{ source = "incoming" }}
max_error_rate = 1.0
tolerance = 1.0
refresh = false

[output]
directory = "output"
"""


class Night(NamedTuple):
    """Kills and seconds of all tries, and changes of files and peak memory of the last one."""

    kills: int
    seconds: float
    changes: int
    peak_bytes: int


def main() -> int:
    """Run the nights and print their table; return 1 if a file stayed or the models differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=24)
    parser.add_argument("--rows", type=int, default=20_000, help="rows that come in every night")
    parser.add_argument("--basis-size", type=int, default=300)
    parser.add_argument("--kills", type=int, default=2, help="most kills of a night")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--scratch", help="directory for rows and models; default: the system's")
    parser.add_argument("--one", help="only run the night of these settings, in this process")
    parser.add_argument("--kill-at", type=int, help="number of a change of files, counted from 1")
    options = parser.parse_args()
    if options.one:
        return run_one(options.one, options.kill_at)
    print(f"{'':5}  {'killed':^31}  {'not killed':^25}\nnight", end="")
    print("  kills  seconds     MiB  disk MiB  seconds     MiB  disk MiB  other files")
    n_more = 0
    with tempfile.TemporaryDirectory(prefix="soak-", dir=options.scratch) as scratch:
        killed, calm = (prepared(Path(scratch) / name, options) for name in ("killed", "calm"))
        moments = random.Random(options.seed)
        for number in range(options.nights):
            rows = Path(scratch) / f"{number}.npz"
            write_rows(rows, options.rows, seed=number + 2)
            for directory in (killed, calm):
                shutil.copyfile(rows, directory / "incoming" / rows.name)
            rows.unlink()
            expected = run_night(calm, [])
            numbers = [moments.randint(1, expected.changes) for _ in range(options.kills)]
            found = run_night(killed, numbers)
            found_files, expected_files = files(killed), files(calm)
            more = (found_files - expected_files) + (expected_files - found_files)
            n_more += more.total()
            print(
                f"{number:5}  {found.kills:5}  {found.seconds:7.1f}  {mib(found.peak_bytes)}  "
                f"{mib(disk_bytes(killed)):>8}  {expected.seconds:7.1f}  "
                f"{mib(expected.peak_bytes)}  {mib(disk_bytes(calm)):>8}  "
                f"{more.total():11}  {' '.join(sorted(more)[:3])}".rstrip(),
                flush=True,
            )
        digests = {Model.load(each / "output/model.zarr").digest() for each in (killed, calm)}
    print(f"same model: {'yes' if len(digests) == 1 else 'no'}")
    return int(n_more > 0 or len(digests) > 1)


def prepared(directory: Path, options: argparse.Namespace) -> Path:
    """Return a directory with the settings and the rows of the first fit."""
    (directory / "incoming").mkdir(parents=True)
    (directory / "night.toml").write_text(SETTINGS.format(basis_size=options.basis_size))
    write_rows(directory / "train.npz", options.rows, seed=0)
    write_rows(directory / "test.npz", TEST_ROWS, seed=1)
    return directory


def write_rows(path: Path, n_rows: int, *, seed: int) -> None:
    """Write rows of overlapping classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(N_CLASSES, size=n_rows)
    np.savez(path, X=rng.standard_normal((n_rows, N_FEATURES)) + y[:, None], y=y)


def run_night(directory: Path, moments: list[int]) -> Night:
    """Run a night to its end, and kill its first tries before these changes of files."""
    begun, kills = time.monotonic(), 0
    command = [sys.executable, __file__, "--one", str(directory / "night.toml")]
    while True:
        limit = [f"--kill-at={moments.pop()}"] if moments else []
        with (directory / "night.log").open("w+") as log:
            process, peak = subprocess.Popen([*command, *limit], stdout=log, stderr=log), 0
            while process.poll() is None:
                peak = max(peak, peak_bytes(process.pid))
                time.sleep(0.02)
            log.seek(0)
            text = log.read()
        if process.returncode == 0:
            changes = int(text.split()[-1])
            return Night(kills, time.monotonic() - begun, changes, peak)
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"a night ended with {process.returncode}:\n{text}")
        kills += 1


def run_one(settings: str, kill_at: int | None) -> int:
    """Run a night, kill this process before a change of files, or print their number."""
    numbers, lock = itertools.count(1), threading.Lock()

    def count(event: str, _: tuple[object, ...]) -> None:
        if event in CHANGES:
            with lock:
                if next(numbers) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.argv = [str(NIGHT), settings]
    sys.path.insert(0, str(NIGHT.parent))
    sys.addaudithook(count)
    try:
        runpy.run_path(str(NIGHT), run_name="__main__")
    except SystemExit as ended:
        print(f"changes of files: {next(numbers) - 1}")
        return int(ended.code or 0)
    return 0


def peak_bytes(pid: int) -> int:
    """Return the largest resident size of a process so far; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


def files(directory: Path) -> Counter[str]:
    """Count files and directories by path, with a star for what differs between two places."""
    paths = (path.relative_to(directory) for path in directory.rglob("*"))
    return Counter(OF_ONE_PLACE.sub("*", str(path)) for path in paths)


def disk_bytes(directory: Path) -> int:
    """Return the bytes of the run, the published model and their datasets."""
    return sum(path.stat().st_size for path in (directory / "output").rglob("*") if path.is_file())


def mib(n_bytes: int) -> str:
    """Return bytes in MiB."""
    return f"{n_bytes / 2**20:6.1f}"


if __name__ == "__main__":
    sys.exit(main())
