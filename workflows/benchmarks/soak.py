"""Run nights of workflows/jobs one after another, and kill them at random moments.

Every night a file comes in. A night is killed up to twice and started again until it ends. Other
nights learn the same files, and nobody kills them. Both must leave the same files and the same
model.

    python workflows/benchmarks/soak.py --nights 24
"""

import argparse
import math
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dask_nrbfn import Model

NIGHT = Path(__file__).parents[1] / "jobs" / "night.py"
N_CLASSES, N_FEATURES, TEST_ROWS = 3, 8, 1000
MOST_KILLS = 2

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
    """Kills and seconds of all tries of a night, and the peak memory of the last try."""

    kills: int
    seconds: float
    peak_bytes: int


def main() -> int:
    """Run the nights and print their table; return 1 if a file stayed or the models differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=24)
    parser.add_argument("--rows", type=int, default=20_000, help="rows that come in every night")
    parser.add_argument("--basis-size", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--scratch", help="directory for rows and models; default: the system's")
    options = parser.parse_args()
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
            found = run_night(
                killed, [moments.uniform(0, expected.seconds) for _ in range(MOST_KILLS)]
            )
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


def run_night(directory: Path, moments: list[float]) -> Night:
    """Run a night to its end, and kill its first tries after so many seconds."""
    begun, kills = time.monotonic(), 0
    with (directory / "night.log").open("w+") as log:
        while True:
            command = [sys.executable, str(NIGHT), str(directory / "night.toml")]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            limit_s, peak = moments.pop() if moments else math.inf, 0
            started = time.monotonic()
            while process.poll() is None:
                peak = max(peak, peak_bytes(process.pid))
                if time.monotonic() - started > limit_s:
                    process.kill()
                time.sleep(0.02)
            if process.returncode == 0:
                return Night(kills, time.monotonic() - begun, peak)
            if process.returncode != -signal.SIGKILL:
                log.seek(0)
                raise SystemExit(f"a night ended with {process.returncode}:\n{log.read()}")
            kills += 1


def peak_bytes(pid: int) -> int:
    """Return the largest resident size of a process so far; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


def files(directory: Path) -> Counter[str]:
    """Count all files by their path, with a star for what differs between two places."""
    paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return Counter(OF_ONE_PLACE.sub("*", str(path)) for path in paths)


def disk_bytes(directory: Path) -> int:
    """Return the bytes of the run, the published model and their datasets."""
    return sum(path.stat().st_size for path in (directory / "output").rglob("*") if path.is_file())


def mib(n_bytes: int) -> str:
    """Return bytes in MiB."""
    return f"{n_bytes / 2**20:6.1f}"


if __name__ == "__main__":
    sys.exit(main())
