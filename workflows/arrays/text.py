"""Train on drawn text: rows of 30,000 columns of which about 100 have a value, never made dense.

Documents are drawn as counts of words, most of them words that everybody uses and some that their
class prefers, and written as a sparse matrix. Each step is the command that a person would type,
with its seconds and the peak memory of its largest process. scikit-learn's linear SVM is trained on
the same rows:

    python workflows/arrays/text.py
    python workflows/arrays/text.py --rows 10000 --effort normal
    python workflows/arrays/text.py --rows 1000000 --basis-size 2000 --memory 4GiB
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from dask.utils import parse_bytes
from numpy.typing import NDArray
from scipy.sparse import csr_array, save_npz, vstack
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

N_COLUMNS, N_CLASSES, WORDS_OF_CLASS, WORDS = 30_000, 30, 400, 130

# Rows that are drawn and written at a time.
DRAWN_ROWS = 20_000

# More than these are not fitted in memory by the linear SVM.
SVM_ROWS = 100_000


class Step(NamedTuple):
    """What a command took: its ``seconds``, ``peak_bytes`` and what it printed as ``figures``."""

    seconds: float
    peak_bytes: int
    figures: dict[str, Any]


def main() -> int:
    """Run the example and print its table; return 0, or the exit code of a step that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4000, help="rows to train on")
    parser.add_argument("--basis-size", type=int, default=1000)
    parser.add_argument("--effort", default="quick", help="of tune; none fits without it")
    parser.add_argument("--memory", help="of each worker, such as 4GiB")
    parser.add_argument("--workers", type=int, help="processes")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        output = options.output or Path(scratch)
        output.mkdir(parents=True, exist_ok=True)
        sizes = {"train": options.rows, "test": max(1000, min(options.rows // 5, 20_000))}
        for seed, (name, n_rows) in enumerate(sizes.items()):
            X, y = whole(n_rows, seed=seed)
            save_npz(output / f"{name}.npz", X, compressed=False)
            np.save(output / f"{name}.npy", y)
        try:
            steps = run_commands(output, options)
        except ChildProcessError as error:
            print(error, file=sys.stderr)
            return 1
        print(table(output, sizes, steps))
    return 0


def drawn(n_rows: int, *, seed: int) -> Iterator[tuple[csr_array, NDArray[np.int64]]]:
    """Yield drawn rows, logarithms of the counts of words, with their classes."""
    rng = np.random.default_rng(0)
    common = np.cumsum(1.0 / (np.arange(N_COLUMNS) + 10.0))
    own = rng.integers(0, N_COLUMNS, (N_CLASSES, WORDS_OF_CLASS))
    of_class = np.cumsum(rng.gamma(0.5, size=own.shape), axis=1)
    rng = np.random.default_rng([1, seed])
    for start in range(0, n_rows, DRAWN_ROWS):
        n = min(DRAWN_ROWS, n_rows - start)
        y = rng.integers(0, N_CLASSES, n)
        rows = np.repeat(np.arange(n, dtype=np.int32), rng.poisson(WORDS, n) + 5)
        words = np.searchsorted(common, common[-1] * rng.random(len(rows))).astype(np.int32)
        preferred = rng.random(len(rows)) < rng.beta(1.2, 6, n)[rows]
        for label in range(N_CLASSES):
            chosen = np.flatnonzero(preferred & (y[rows] == label))
            places = np.searchsorted(of_class[label], of_class[label, -1] * rng.random(len(chosen)))
            words[chosen] = own[label, places]
        counts = csr_array((np.ones(len(rows)), (rows, words)), shape=(n, N_COLUMNS))
        counts.sum_duplicates()
        counts.data = np.log1p(counts.data).round(4)
        yield counts, y


def run_commands(output: Path, options: argparse.Namespace) -> dict[str, Step]:
    """Ingest, train, evaluate and predict; return what each took."""
    engine = [f"--memory={options.memory}"] if options.memory else []
    engine += [f"--workers={options.workers}"] if options.workers else []
    training = ["tune", f"--effort={options.effort}", "--scales=unit", "--bases=random"]
    if options.effort == "none":
        training = ["fit", "--alpha=1e-6", "--scale=unit", "--basis=random"]
    basis = f"--basis-size={options.basis_size}"
    commands = {
        "ingest": ["ingest", "train.npz", "train.zarr", "--y=train.npy", "--overwrite"],
        training[0]: [*training, "train.zarr", "run.zarr", basis, *engine],
        "evaluate": ["evaluate", "run.zarr", "test.npz", "--y=test.npy", *engine],
        "predict": ["predict", "run.zarr", "test.npz", "labels.csv", *engine, "--overwrite"],
    }
    return {name: run(command, output) for name, command in commands.items()}


def run(command: list[str], directory: Path) -> Step:
    """Run a command of dask-nrbfn in a process of its own."""
    program = [sys.executable, "-m", "dask_nrbfn"]
    process = subprocess.run(
        [*program, *command, "--json"], cwd=directory, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise ChildProcessError(f"{process.stderr}{' '.join(command)} failed.")
    seconds, peak = re.findall(r"in (\S+) s, peak (.+), exit status 0", process.stderr)[-1]
    return Step(float(seconds), parse_bytes(peak), json.loads(process.stdout))


def table(output: Path, sizes: dict[str, int], steps: dict[str, Step]) -> str:
    """Return the sizes, a line for each step, and the errors of both."""
    stored = sum(file.stat().st_size for file in (output / "train.zarr/X").rglob("*"))
    n_dense = 8 * sizes["train"] * N_COLUMNS
    lines = [
        f"{sizes['train']} x {N_COLUMNS} rows, {stored / 2**20:.1f} MiB stored, "
        f"{n_dense / 2**20:.0f} MiB as an array",
        f"{'':<10}{'seconds':>10}{'peak MiB':>10}",
        *(
            f"{name:<10}{step.seconds:>10.1f}{step.peak_bytes / 2**20:>10.0f}"
            for name, step in steps.items()
        ),
        f"error of the network {100 * steps['evaluate'].figures['error_rate']:.2f} %",
    ]
    if sizes["train"] <= SVM_ROWS:
        lines.append(f"error of LinearSVC {100 * svm_error(sizes):.2f} %")
    return "\n".join(lines)


def svm_error(sizes: dict[str, int]) -> float:
    """Return the least error of a linear SVM on the test rows, over a few of its penalties."""
    train, test = (whole(n_rows, seed=seed) for seed, n_rows in enumerate(sizes.values()))
    train, test = ((normalize(X), y) for X, y in (train, test))
    fitted = (LinearSVC(C=C).fit(*train) for C in (0.03, 0.1, 0.3, 1.0))
    return 1 - max(network.score(*test) for network in fitted)


def whole(n_rows: int, *, seed: int) -> tuple[csr_array, NDArray[np.int64]]:
    """Return drawn rows at once, with their classes."""
    X, y = zip(*drawn(n_rows, seed=seed), strict=True)
    return vstack(X, format="csr"), np.concatenate(y)


if __name__ == "__main__":
    sys.exit(main())
