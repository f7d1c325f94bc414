import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dask_nrbfn import FitParams, InlineEngine, Run, TuneParams, evaluate_dataset, fit_dataset
from tests.tables import spirals, surfaces, write_table

# Each has a meaning in HTML or in its attributes, and the last is none that can be seen.
LABELS = np.array(["</td><script>x", "\"a\" & 'b'", ""])
TARGETS = ["<b>$x$</b> & 'y'", "size"]
FITTED = FitParams(n_neighbors=8, alpha=1e-6, confidence_threshold=0.95, n_parts=3)
TUNED = TuneParams(
    effort="quick",
    folds=3,
    alphas=(1e-2, 1e-4, 1e-6),
    width_factors=(0.3, 1.0),
    kernels=("gaussian", "laplacian"),
    search_basis=30,
)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    X, y = spirals(300)
    return write_table(tmp_path_factory.mktemp("data") / "spirals.zarr", X, LABELS[y])


@pytest.fixture(scope="session")
def fitted(dataset, tmp_path_factory):
    place = tmp_path_factory.mktemp("fitted") / "run.zarr"
    return fit_dataset(dataset, place, FITTED, InlineEngine())


@pytest.fixture(scope="session")
def tuned(dataset, tmp_path_factory):
    place = tmp_path_factory.mktemp("tuned") / "run.zarr"
    return fit_dataset(dataset, place, FITTED, InlineEngine(), tuning=TUNED)


@pytest.fixture(scope="session")
def judged(tmp_path_factory):
    X, Y = surfaces(250, seed=1)
    place = tmp_path_factory.mktemp("judged") / "surfaces.zarr"
    return write_table(place, X, target=pd.DataFrame(Y, columns=TARGETS))


@pytest.fixture(scope="session")
def regression(judged, tmp_path_factory):
    place = tmp_path_factory.mktemp("regression")
    X, Y = surfaces(300)
    dataset = write_table(place / "data.zarr", X, target=pd.DataFrame(Y, columns=TARGETS))
    params = FitParams(basis="kmeans", basis_size=30, features="plain")
    tuning = replace(TUNED, features=("plain",))
    return fit_dataset(
        dataset, place / "run.zarr", params, InlineEngine(), tuning=tuning, validation=judged
    )


@pytest.fixture(scope="session")
def evaluation(regression, judged):
    return evaluate_dataset(regression.location, judged, InlineEngine())


@pytest.fixture
def altered(tmp_path):
    def alter(run, **records):
        copy = Run.open(shutil.copytree(run.location, tmp_path / "altered.zarr"))
        for stage, changes in records.items():
            copy.record(stages=copy.stages | {stage: copy.stages[stage] | changes})
        return copy

    return alter


@pytest.fixture
def unfinished(altered, fitted):
    run = altered(fitted)
    run.forget("model", ())
    return run
