import dataclasses
import random

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, Model, NRBFNClassifier, fit_dataset, plan_fit
from dask_nrbfn.errors import (
    DamagedDataError,
    DataError,
    MissingDataError,
    ParameterError,
    RunMismatchError,
)
from dask_nrbfn.neighbors.plan import SearchedRows
from tests.commands.test_plan import RATES
from tests.reference import reference_fit
from tests.stages.stopping import CountingEngine, StoppedError
from tests.storage.written import flip_byte
from tests.tables import spirals, write_table

# A penalty at which the weights do not amplify the order of the sums.
SMOOTH = FitParams(
    alpha=1e-4, n_neighbors=10, confidence_threshold=0.9, kernel="gaussian", scale="none"
)


def fit_in_memory(X, y, params=SMOOTH, **options):
    dataset = write_table(MemoryStore(), X, y, **options)
    return fit_dataset(dataset, MemoryStore(), params, InlineEngine())


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_fit__equals_the_reference(offset):
    X, y = spirals(300)
    run = fit_in_memory(X + offset, y)
    expected = reference_fit(X, y, n_neighbors=10, alpha=1e-4)
    model = Model.load(run.location)
    np.testing.assert_array_equal(run.read("basis/rows"), expected.basis_rows)
    np.testing.assert_allclose(run.read("confidence/values"), expected.confidence, rtol=1e-6)
    np.testing.assert_allclose(model.width, expected.width, rtol=1e-8)
    np.testing.assert_allclose(model.weights, expected.weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.fitting_error, expected.fitting_error, rtol=1e-6)
    np.testing.assert_allclose(model.spectral_risk, expected.spectral_risk, rtol=1e-4)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int32", "int64", "f4", "f8"])
def test_fit__any_dtype_gives_the_same_network(dtype):
    X, y = spirals(150)
    whole = np.clip(np.rint(20 * X + 60), 0, 127)
    runs = [fit_in_memory(whole.astype(kind), y) for kind in (dtype, "f8")]
    assert runs[0].read("basis/rows").tolist() == runs[1].read("basis/rows").tolist()
    np.testing.assert_allclose(*(Model.load(run.location).weights for run in runs), rtol=1e-6)


def test_fit__string_labels_give_the_network_of_their_codes():
    X, y = spirals(150)
    names = np.array(["außen", "b", ""])[y]
    order = np.argsort(np.array(["außen", "b", ""]))
    coded, named = fit_in_memory(X, y), fit_in_memory(X, names)
    model = Model.load(named.location)
    assert model.classes.tolist() == ["", "außen", "b"]
    # The rows of cross stand in another order, so its products may be rounded otherwise; alpha=1e-4
    # raises that from 1e-16 to at most 1e-12.
    weights = Model.load(coded.location).weights[order]
    np.testing.assert_allclose(model.weights, weights, rtol=1e-9, atol=1e-11 * weights.max())


def test_fit__float16_gives_the_bits_of_the_same_values():
    X, y = spirals(200)
    X = X.astype(np.float16)
    datasets = [write_table(MemoryStore(), rows, y) for rows in (X, X.astype(np.float32))]
    assert datasets[0].dtype == np.float16
    assert datasets[0].content == datasets[1].content
    params = FitParams(basis_size=30, n_partitions=4)
    runs = [fit_dataset(each, MemoryStore(), params, InlineEngine()) for each in datasets]
    first, second = (Model.load(run.location).digest() for run in runs)
    assert first == second


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("scale", ["standard", "unit"])
def test_fit__scaling_equals_scaling_beforehand(scale):
    X, y = spirals(200)
    X = X * [1, 10, 100, 0] + [0, 5, -3, 7]
    params = dataclasses.replace(SMOOTH, scale=scale)
    inside = Model.load(fit_in_memory(X, y, params, chunk_rows=33).location)
    before = Model.load(fit_in_memory(inside.scaling.apply(X), y).location)
    np.testing.assert_allclose(inside.scores(X), before.scores(inside.scaling.apply(X)), rtol=1e-6)


def test_fit__duplicates_and_a_constant_column():
    X, y = spirals(60)
    X = np.column_stack([np.repeat(X, 5, axis=0), np.ones(300)])
    run = fit_in_memory(X, np.repeat(y, 5), FitParams(n_neighbors=4, confidence_threshold=1.0))
    assert np.all(run.read("confidence/values") == 1.0)
    assert run.stages["basis"]["n_basis"] == 3
    neighbors = run.read("neighbors/indices")
    assert not np.any(neighbors == np.arange(300)[:, None])
    assert np.all(run.read("neighbors/distances") == 0.0)


def test_fit__a_search_goes_on_as_it_began(monkeypatch):
    X, y = spirals(100)
    dataset = write_table(MemoryStore(), X, y)
    place = MemoryStore()
    params = FitParams(alpha=1e-4, n_parts=3)
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, params, CountingEngine(4))
    monkeypatch.setattr(SearchedRows, "faster_method", lambda *_, **__: "approximate")
    run = fit_dataset(dataset, place, params, InlineEngine())
    assert run.stages["neighbors"]["method"] == "exact"


def cut_power(place, seed):
    """Empty or remove files of a run as a power cut may do, but the one that is flushed."""
    rng = random.Random(seed)
    for path in sorted(place.rglob("*")):
        if path.is_file() and path != place / "zarr.json":
            fate = rng.choice(("empty", "missing", "whole", "whole"))
            if fate == "empty":
                path.write_bytes(b"")
            elif fate == "missing":
                path.unlink()


# Each case draws the fates of all files of its run, with a seed of its own.
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("n_partitions", [None, 4])
@pytest.mark.parametrize(("seed", "stop"), [(1, "columns"), (2, "confidence"), (3, "model")])
def test_fit__goes_on_after_a_power_cut(tmp_path, n_partitions, seed, stop):
    sizes = {"n_neighbors": 10, "n_parts": 3, "basis_size": 40}
    params = FitParams(alpha=1e-4, n_partitions=n_partitions, **sizes)
    options = {"min_recall": 0.0}
    dataset, place = write_table(tmp_path / "data", *spirals(300), chunk_rows=70), tmp_path / "run"
    expected = fit_dataset(dataset, MemoryStore(), params, InlineEngine(), **options)
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, params, CountingEngine(0, label=stop), **options)
    cut_power(place, seed)
    fit_dataset(dataset, place, params, InlineEngine(), **options)
    # Once more, of a run that was complete.
    cut_power(place, seed)
    run = fit_dataset(dataset, place, params, InlineEngine(), **options)
    weights = expected.read("weights/values").tobytes()
    assert run.read("weights/values").tobytes() == Model.load(place).weights.tobytes() == weights


def mismatch(tmp_path, dataset, params):
    with pytest.raises(RunMismatchError) as caught:
        fit_dataset(dataset, tmp_path / "run", params, InlineEngine())
    return str(caught.value)


def test_fit__other_parameters_or_dataset_are_refused(tmp_path):
    X, y = spirals(100)
    dataset = write_table(tmp_path / "data", X, y)
    other = write_table(tmp_path / "other", X + 1, y)
    fit_dataset(dataset, tmp_path / "run", FitParams(), InlineEngine())
    message = mismatch(tmp_path, dataset, FitParams(alpha=1e-9, random_state=3))
    assert "alpha=auto (now 1e-09)" in message
    assert "random_state=0 (now 3)" in message
    assert "n_neighbors" not in message
    assert "another dataset" in mismatch(tmp_path, other, FitParams())
    assert "n_parts=None (now 7)" in mismatch(tmp_path, dataset, FitParams(n_parts=7))


def refused(error, dataset, params=None, engine=None):
    """Return the message of a fit that must fail without leaving a run."""
    place = MemoryStore()
    with pytest.raises(error) as caught:
        fit_dataset(dataset, place, params or FitParams(), engine or InlineEngine())
    return str(caught.value)


def test_fit__bad_tables_are_refused_before_any_task():
    X, y = spirals(30)
    idle = CountingEngine(0)
    one_class = write_table(MemoryStore(), X, np.zeros(30, int))
    assert "1 class" in refused(DataError, one_class, engine=idle)
    unlabelled = write_table(MemoryStore(), X)
    assert "no labels" in refused(DataError, unlabelled, engine=idle)
    small = write_table(MemoryStore(), X[:20], y[:20])
    message = refused(ParameterError, small, FitParams(n_neighbors=20), idle)
    assert "n_neighbors=20 needs at least 21 rows" in message
    table = write_table(MemoryStore(), X, y)
    for size in (2, 31):
        message = refused(ParameterError, table, FitParams(basis_size=size), idle)
        assert message.startswith(f"basis_size is {size}.")
        assert "3 to 30" in message


@pytest.mark.parametrize(
    ("rows", "scale", "weights", "problem"),
    [
        (1e-156 * spirals(60)[0], "none", None, "the width is"),
        (1e-162 * spirals(60)[0], "auto", None, "the width is"),
        (1e-165 * spirals(60)[0], "auto", None, "all rows of X are equal, or differ by less than"),
        (spirals(60)[0], "auto", np.full(60, 1e-320), "which underflows float64"),
    ],
    ids=["rows too near to square the width", "and the deviation", "at all", "weights too small"],
)
def test_fit__numbers_beyond_float64_are_refused(rows, scale, weights, problem):
    table = write_table(MemoryStore(), rows, spirals(60)[1], weights=weights)
    assert problem in refused(DataError, table, FitParams(basis_size=20, scale=scale))


def test_fit__the_default_does_not_depend_on_the_unit_of_a_column():
    X, y = spirals(60)
    run, other = (fit_in_memory(each, y, FitParams()) for each in (X, X * [1e-150, 1e9, 1, -3]))
    assert run.chosen_params == other.chosen_params
    assert (run.chosen_params.kernel, run.chosen_params.scale) == ("laplace-l1", "standard")
    scores = Model.load(other.location).scores(X * [1e-150, 1e9, 1, -3])
    np.testing.assert_allclose(scores, Model.load(run.location).scores(X), rtol=1e-6, atol=1e-6)


def test_fit__identical_rows_are_refused():
    table = write_table(MemoryStore(), np.ones((50, 3)), np.arange(50) % 2)
    assert "all rows of X are equal" in refused(DataError, table)


@pytest.mark.parametrize(
    ("harm", "error", "problem"),
    [
        (lambda chunk: chunk.unlink(), MissingDataError, "X/c/2/0"),
        (flip_byte, DamagedDataError, "cannot be read"),
    ],
    ids=["missing", "flipped"],
)
def test_fit__damaged_chunk_is_found_before_the_search(tmp_path, harm, error, problem):
    X, y = spirals(100)
    dataset = write_table(tmp_path / "data", X, y, chunk_rows=30)
    harm(tmp_path / "data" / "X" / "c" / "2" / "0")
    assert problem in refused(error, dataset, engine=CountingEngine(1))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("n_rows", [4, 20, 21])
def test_fit__fewer_neighbours_in_a_tiny_table(caplog, n_rows):
    X, y = spirals(60)
    rows = np.r_[[np.flatnonzero(y == 0)[0], np.flatnonzero(y == 1)[0]], np.arange(20, 58)][:n_rows]
    dataset = write_table(MemoryStore(), X[rows], y[rows])
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        run = fit_dataset(dataset, MemoryStore(), FitParams(alpha=1e-6), InlineEngine())
    assert run.chosen_params.n_neighbors == min(n_rows - 1, 20)
    told = f"so few rows that each row has all others as its {n_rows - 1} neighbours" in caplog.text
    assert told == (n_rows < 21)
    assert plan_fit(dataset, FitParams(), InlineEngine(), RATES).n_basis >= 2
    network = NRBFNClassifier(alpha=1e-6).fit(X[rows], y[rows])
    assert network.params_.n_neighbors == run.chosen_params.n_neighbors


def test_fit__resumes_a_run_with_the_neighbours_of_the_default():
    X, y = spirals(40)
    y[np.arange(40) % 3 > 0] = -1
    dataset, place = write_table(MemoryStore(), X, y, unlabelled=-1), MemoryStore()
    run = fit_dataset(dataset, place, FitParams(), InlineEngine())
    # Neighbours are searched among rows with a label.
    n_neighbors = run.chosen_params.n_neighbors
    assert n_neighbors == np.sum(y >= 0) - 1
    fit_dataset(dataset, place, FitParams(n_neighbors=n_neighbors), InlineEngine())
