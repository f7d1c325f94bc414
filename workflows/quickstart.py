"""Train a network on scikit-learn's digits and evaluate it on rows held back.

The rows are written to chunked Zarr and the fit runs on a local dask cluster, exactly as it would
with a table larger than memory:

    python workflows/quickstart.py
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dask_nrbfn import (
    Dataset,
    EngineOptions,
    Evaluation,
    FitParams,
    Model,
    NRBFNError,
    Run,
    connect,
    evaluate_dataset,
    fit_dataset,
    ingest_arrays,
)
from dask_nrbfn.errors import ExistsError

# Six chunks of training rows, so that the chunks matter.
CHUNK_ROWS = 256
MARKER = ".written-by-quickstart"
PIECES = ("train.zarr", "test.zarr", "run.zarr", "model.zarr")


def main() -> int:
    """Run the example; return 0, or 2 if the output directory is somebody else's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("quickstart-output"), metavar="DIR")
    output = parser.parse_args().output
    try:
        prepare(output)
        train, test = write_datasets(output)
        with connect(EngineOptions(workers=1, bar=True)) as engine:
            # Pixels have one unit, so the kernel is of their Euclidean distances.
            params = FitParams(kernel="gaussian", scale="none")
            run = fit_dataset(train, output / "run.zarr", params, engine)
            model = Model.load(run.location)
            model.save(output / "model.zarr")
            evaluation = evaluate_dataset(output / "model.zarr", test, engine)
    except NRBFNError as error:
        print(error.problem, error.remedy, sep="\n", file=sys.stderr)
        return 2
    print(summary(train, run, model, evaluation, output / "model.zarr"))
    return 0


def prepare(output: Path) -> None:
    """Make the directory, or delete what an earlier quickstart wrote into it."""
    marker = output / MARKER
    if output.exists() and not marker.exists() and not (output.is_dir() and is_empty(output)):
        raise ExistsError(f"{output} was not written by the quickstart.", "Give another --output.")
    output.mkdir(parents=True, exist_ok=True)
    marker.touch()
    for piece in PIECES:
        if (output / piece).exists():
            shutil.rmtree(output / piece)


def is_empty(directory: Path) -> bool:
    """Return whether nothing is in a directory."""
    return next(directory.iterdir(), None) is None


def write_datasets(output: Path) -> tuple[Dataset, Dataset]:
    """Write the digits as two datasets: every fourth row is held back for the test."""
    X, y = load_digits(return_X_y=True)
    held_back = np.arange(len(X)) % 4 == 0
    train, test = (
        ingest_arrays(X[rows], y[rows], output / name, chunk_rows=CHUNK_ROWS)
        for rows, name in ((~held_back, "train.zarr"), (held_back, "test.zarr"))
    )
    return train, test


def summary(train: Dataset, run: Run, model: Model, evaluation: Evaluation, location: Path) -> str:
    """Return what was trained, how good it is and what it took, a line for each."""
    n_chunks = -(-train.n_rows // train.chunk_rows)
    lines = {
        "rows": f"{train.n_rows} x {train.n_features} in {n_chunks} chunks, "
        f"{evaluation.n_rows} more held back",
        "basis size": f"{len(model.basis)} ({len(model.basis) / train.n_rows:.1%} of the rows)",
        "width": f"{model.width:.4g}",
        "eps": f"{model.fitting_error:.4f}",
        "gamma": f"{model.spectral_risk:.3g}",
        "error rate": f"{evaluation.error_rate:.2%} "
        f"({evaluation.n_errors} of the {evaluation.n_rows} rows held back)",
        "seconds": ", ".join(
            f"{stage} {record['seconds']:.2f}" for stage, record in run.stages.items()
        ),
        "model": str(location),
    }
    return "\n".join(f"{name:<12}{value}" for name, value in lines.items())


if __name__ == "__main__":
    sys.exit(main())
