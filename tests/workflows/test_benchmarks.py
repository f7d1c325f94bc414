import re

import numpy as np
import pytest

from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.sources import ArraySource
from tests.workflows.script import run_here

# What they print is told apart from noise by repeating it.
pytestmark = pytest.mark.slow


def run_benchmark(name, *arguments, cwd):
    process = run_here(f"workflows/benchmarks/{name}.py", *arguments, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Location of 600 whole-numbered rows of three overlapping classes."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    X = np.rint(40 + 25 * y[:, None] + 20 * rng.standard_normal((600, 5))).clip(0, 255)
    location = tmp_path_factory.mktemp("benchmarks") / "dataset.zarr"
    ingest_source(ArraySource(X.astype(np.uint8), y), location, chunk_rows=128)
    return location


# Arguments, and the beginning of a line that is printed.
PRINTED = {
    "moments": ("DATASET --basis-size 300 --threads 1 --repeats 2", r"ratio +[\d.]+  \("),
    "distances": ("--features 5 9 --basis-size 40 --threads 1 --repeats 1", r" *9( +[\d.]+){5}"),
    "predict": ("DATASET --basis-size 50", r"ratio +[\d.]+ "),
    "workers": ("DATASET --basis-size 50 --n-parts 2 --products 1", r"moments +[\d.]+ "),
    "update": ("DATASET --basis-size 20 --share 0.1", r"ratio +[\d.e+-]+"),
    "files": ("--rows 3000 --basis-size 50", r"ratio +[\d.]+ "),
    "cells": ("--cells 600 --basis-size 50", r"predict +[\d.]+ "),
}


@pytest.mark.parametrize("name", PRINTED)
def test_benchmarks__print_figures(tmp_path, dataset, name):
    arguments, line = PRINTED[name]
    words = [dataset if word == "DATASET" else word for word in arguments.split()]
    out = run_benchmark(name, *words, cwd=tmp_path)
    assert re.search(f"^{line}", out, re.MULTILINE), out


def test_fit__both_give_the_same_network(tmp_path, dataset):
    arguments = (dataset, "--first", "dask", "--alpha", "1e-9", "--threads", 1)
    out = run_benchmark("fit", *arguments, cwd=tmp_path)
    rows = {line[:15].strip(): line[15:].split() for line in out.splitlines()[2:-1]}
    assert list(rows)[:2] == ["process", "cluster start"]
    assert rows["cluster start"][0] == rows["model"][0] == "-"
    for figure in ("n_basis", "eps", "gamma"):
        plain, dask = rows[figure]
        assert plain == dask
    assert 50 < int(rows["n_basis"][0]) < 550
    for step in ("neighbors", "width", "moments", "weights", "total"):
        assert len(rows[step]) in (2, 3)
    assert re.fullmatch(r"ratio of the totals: [\d.]+", out.splitlines()[-1])


def test_plan__shows_every_stage_beside_its_plan(tmp_path):
    arguments = (1000, 2000, "--basis-size", 100, "--memory", "1GiB", "--n-partitions", 4)
    out = run_benchmark("plan", *arguments, "--neighbors", "exact", "--threads", 1, cwd=tmp_path)
    assert "1000 rows, 100 basis rows, exact neighbours in 4 partitions" in out
    for stage in ("columns", "neighbors", "recall", "moments", "model", "all"):
        line = rf"^{stage} +[\d.]+ +[\d.]+ +[\d.]+ .* ([\d.]+)$"
        shares = [float(share) for share in re.findall(line, out, re.MULTILINE)]
        assert len(shares) == 2
        assert all(0 < share < 1 for share in shares)
    assert re.search(r"^us of a row +1,000 +2,000$", out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_files__prints_the_ratio(tmp_path):
    out = run_benchmark("files", "--rows", 3000, "--basis-size", 50, cwd=tmp_path)
    assert out.startswith("3000 x ")
    assert re.search(r"^ratio +[\d.]+ ", out, flags=re.MULTILINE)


def test_tables__prints_rates_and_one_digest(tmp_path):
    out = run_benchmark("tables", "--bytes", 1, cwd=tmp_path)
    header, *lines = (line.split() for line in out.splitlines())
    assert [line[0] for line in lines] == ["CSV", "Parquet", "SQL"]
    assert all(len(line) == len(header) for line in lines)
    assert all(float(figure) > 0 for line in lines for figure in line[1:-1])
    assert len({line[-1] for line in lines}) == 1
    assert list(tmp_path.iterdir()) == []


def test_onnx_models__are_the_networks(tmp_path):
    kinds = ("laplacian plain", "numbers", "coordinates")
    arguments = ("--basis-size", 40, "--repeats", 1, "--only", *kinds)
    lines = run_benchmark("onnx_models", *arguments, cwd=tmp_path).splitlines()[2:]
    for kind, line in zip(kinds, lines, strict=True):
        difference, others, ties, *times = map(float, line.removeprefix(kind).split())
        assert difference < 1e-6
        assert others == ties
        assert len(times) == 3


def test_soak__nights_leave_what_nights_that_nobody_kills_leave(tmp_path):
    arguments = ("--nights", 2, "--rows", 500, "--basis-size", 40, "--scratch", tmp_path)
    out = run_benchmark("soak", *arguments, cwd=tmp_path)
    *_, first, second, same = out.splitlines()
    assert same == "same model: yes"
    n_kills = 0
    for number, line in enumerate((first, second)):
        night, kills, *figures, more = line.split()
        assert int(night) == number
        n_kills += int(kills)
        assert min(map(float, figures)) > 0
        assert more == "0"
    assert n_kills > 0
