"""One run of each benchmark, with the line for which it is run."""

import re

import numpy as np
import pytest

from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.sources.options import WriteOptions
from tests.workflows.script import run_here

pytestmark = pytest.mark.slow

# Arguments, and a line that is printed.
PRINTED = {
    "intervals": (
        "even --draws 2 --rows 300 --only-ours",
        r"\| even \| network( \| [\d.]+ ± [\d.]+){5} \| [\d.]+ \|",
    ),
    "moments": ("DATASET --basis-size 300 --threads 1 --repeats 2", r"ratio +[\d.]+  \(.*"),
    "parts": ("--basis-size 10 --n-parts 3", r" +3( +[\d.]+){4}"),
    "plan": (
        "1000 2000 --basis-size 100 --memory 1GiB --n-partitions 4 --neighbors exact --threads 1",
        # Of no stage may the peak be above its plan.
        r"all +[\d.]+ +[\d.]+ +[\d.]+ .* 0\.\d+",
    ),
    "peers": ("wine --test-share 0.4 --peers default,linear", r"\| [\w, ]+ \| \d\.\d+ \|.*"),
    "predict": ("DATASET --basis-size 50", r"ratio +[\d.]+ .*"),
    "tables": ("--bytes 1", r"SQL( +\d+){5}  \w+"),
    "soak": ("--nights 1 --rows 300 --basis-size 20 --scratch .", "same model: yes"),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    X = np.rint(40 + 25 * y[:, None] + 20 * rng.standard_normal((600, 5))).clip(0, 255)
    location = tmp_path_factory.mktemp("benchmarks") / "dataset.zarr"
    ingest_source(ArraySource(X.astype(np.uint8), y), location, WriteOptions(chunk_rows=128))
    return location


def run_benchmark(name, arguments, dataset, cwd):
    words = [dataset if word == "DATASET" else word for word in arguments.split()]
    process = run_here(f"workflows/benchmarks/{name}.py", *words, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_benchmarks__print_figures(tmp_path, dataset, name):
    arguments, line = PRINTED[name]
    out = run_benchmark(name, arguments, dataset, tmp_path)
    assert re.search(f"^{line}$", out, re.MULTILINE), out
    assert list(tmp_path.iterdir()) == []
