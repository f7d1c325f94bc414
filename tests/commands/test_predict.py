import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.metrics import (
    confusion_matrix,
    log_loss,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from zarr.storage import MemoryStore

from dask_nrbfn import scorer as scorer_module
from dask_nrbfn.commands import predict as predict_module
from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.commands.predict import predict_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.memory import PROCESS_BYTES
from dask_nrbfn.errors import (
    DamagedDataError,
    DataError,
    ExistsError,
    ParameterError,
    StorageError,
)
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.reliability import expected_calibration_error, reliability_of_rows
from dask_nrbfn.params import FitParams
from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.storage.model import Model
from tests.stages.stopping import CountingEngine
from tests.tables import spirals, surfaces, write_table

NAMES = np.array(["a", "b", "ç"])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("predict")
    X, y = spirals(400)
    dataset = write_table(place / "train", X, NAMES[y], chunk_rows=90)
    fit_dataset(dataset, place / "run", FitParams(alpha=1e-6), InlineEngine())
    return place


@pytest.fixture(scope="module")
def new_rows():
    return spirals(250, seed=1)


# Chunks of one row, of some and of all rows, by one worker or several.
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("chunk_rows", "n_workers"), [(37, 7), (1, 1), (37, 1), (1000, 7)])
def test_predict__any_tasks(tmp_path, monkeypatch, place, new_rows, chunk_rows, n_workers):
    for name, value in {"_MIN_CHUNK_ROWS": 3, "_TASK_ROWS": 9}.items():
        monkeypatch.setattr(predict_module, name, value)
    monkeypatch.setattr(scorer_module, "_MAX_BLOCK_ROWS", 4)
    X, y = (each[:100] for each in new_rows)
    strange = np.where(np.arange(100) % 25 == 3, "zebra", NAMES[y])
    dataset = write_table(tmp_path / "new", X, strange, chunk_rows=chunk_rows)
    engine = InlineEngine(n_workers=n_workers)
    predict_dataset(place / "run", dataset, tmp_path / "out", engine)
    evaluation = evaluate_dataset(place / "run", dataset, engine)
    scores = Model.load(place / "run").scores(X)
    out = zarr.open_group(tmp_path / "out")
    np.testing.assert_allclose(out["scores"][:], scores, rtol=1e-9)
    labels = NAMES[scores.argmax(axis=1)]
    assert out["labels"][:].tolist() == labels.tolist()
    assert evaluation.n_errors == np.sum(labels != strange)
    assert np.sum(evaluation.confusion) == 100
    assert evaluation.n_unknown_labels == sum(evaluation.confusion[-1]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [1, 3000])
def test_predict__memory_is_below_what_was_expected(tmp_path, n_rows):
    class TracedEngine(InlineEngine):
        def run(self, task, arguments, *, label, follow):
            tracemalloc.start()
            results = super().run(task, arguments, label=label)
            peaks[label] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return results

    rng, peaks = np.random.default_rng(0), {}
    X, y = rng.normal(size=(800, 3)), np.arange(800) % 400
    names = np.array([f"{code:0>300}" for code in range(400)])
    train = write_table(tmp_path / "train", X, names[y])
    params = FitParams(basis="random", basis_size=750)
    fit_dataset(train, tmp_path / "run", params, InlineEngine())
    rows, labels = rng.normal(size=(n_rows, 3)), names[np.arange(n_rows) % 400]
    new = write_table(tmp_path / "new", rows, labels)
    engine = TracedEngine()
    predict_dataset(tmp_path / "run", new, tmp_path / "out", engine)
    evaluate_dataset(tmp_path / "run", new, engine)
    assert peaks.keys() == {"predict", "evaluate"}
    assert max(peaks.values()) < engine.expected_bytes - PROCESS_BYTES


BIASED = Calibration(0.2, 0.5, (0.5, -0.3, -0.2))

READERS = {".csv": pd.read_csv, ".parquet": pd.read_parquet}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("wanted", [(), ("probabilities", "scores")])
def test_predict__tables(tmp_path, place, new_rows, suffix, wanted):
    X, _ = new_rows
    model = replace(Model.load(place / "run"), calibration=BIASED)
    model.save(model_place := MemoryStore())
    out = tmp_path / f"out{suffix}"
    dataset = write_table(MemoryStore(), X, chunk_rows=70)
    predict_dataset(model_place, dataset, out, InlineEngine(), **dict.fromkeys(wanted, True))
    frame = READERS[suffix](out)
    scores = model.scores(X)
    columns = [f"{name}_{label}" for name in ("probability", "score") for label in NAMES]
    assert frame.columns.tolist() == ["prediction", *(columns if wanted else ())]
    assert frame["prediction"].tolist() == NAMES[scores.argmax(axis=1)].tolist()
    if wanted:
        expected = np.hstack([model.probabilities(scores), scores])
        np.testing.assert_allclose(frame[columns], expected, rtol=1e-9, atol=1e-12)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    with pytest.raises(ExistsError, match="exists"):
        predict_dataset(place / "run", write_table(MemoryStore(), X), out, InlineEngine())


def test_predict__wrong_columns(place):
    dataset = write_table(MemoryStore(), np.ones((5, 3)))
    with pytest.raises(DataError, match="X has 3 columns, but the model was trained on 4"):
        predict_dataset(place / "run", dataset, MemoryStore(), InlineEngine())


def test_predict__keeps_the_old_output_when_it_fails(tmp_path, place, new_rows):
    X, _ = new_rows
    dataset = write_table(tmp_path / "new", X, chunk_rows=50)
    predict_dataset(place / "run", dataset, tmp_path / "out", InlineEngine())
    before = zarr.open_group(tmp_path / "out")["scores"][:]
    chunk = tmp_path / "new" / "X" / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    for out in ("out", "out.csv"):
        with pytest.raises(DamagedDataError):
            predict_dataset(place / "run", dataset, tmp_path / out, InlineEngine(), overwrite=True)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "out")["scores"][:], before)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "out"}


def test_predict__places_are_checked_before_the_first_task(tmp_path, place, new_rows):
    dataset, engine = write_table(MemoryStore(), new_rows[0]), CountingEngine(0)
    (tmp_path / "file").write_text("mine")
    for name in ("file/out.csv", "file/out.parquet", "file/out"):
        with pytest.raises(StorageError, match=f"{name} cannot be written"):
            predict_dataset(place / "run", dataset, tmp_path / name, engine)
    for name in ("out.csv", "out.parquet", "out", "model/out.csv"):
        with pytest.raises(ParameterError, match=f"run/{name} is inside the input"):
            predict_dataset(place / "run", dataset, place / "run" / name, engine, overwrite=True)
    for out in (tmp_path / "out.csv.gz", "memory://out.npz"):
        with pytest.raises(ParameterError, match=r"ends in \..* \.csv or \.parquet or \.zarr"):
            predict_dataset(place / "run", dataset, out, engine)
    with pytest.raises(ParameterError, match="is not a local file"):
        predict_dataset(place / "run", dataset, "memory://out.csv", engine)


@pytest.mark.parametrize("calibration", [None, Calibration(0.2), BIASED])
@pytest.mark.parametrize("chunk_rows", [11, 250])
def test_evaluate__confusion_and_log_loss(tmp_path, place, new_rows, calibration, chunk_rows):
    X, y = new_rows
    model = replace(Model.load(place / "run"), calibration=calibration)
    model.save(tmp_path / "model")
    dataset = write_table(MemoryStore(), X, NAMES[y], chunk_rows=chunk_rows)
    evaluation = evaluate_dataset(tmp_path / "model", dataset, InlineEngine())
    scores = model.scores(X)
    confusion = confusion_matrix(y, scores.argmax(axis=1))
    assert np.array_equal(evaluation.confusion, confusion)
    assert [of_class["class"] for of_class in evaluation.per_class] == NAMES.tolist()
    assert evaluation.n_errors == 250 - np.trace(confusion) > 0
    probabilities = model.probabilities(scores)
    assert evaluation.log_loss == pytest.approx(log_loss(y, probabilities), rel=1e-6)
    expected = reliability_of_rows(probabilities, y, np.ones(250))
    for found, each in zip(evaluation.reliability, expected, strict=True):
        assert found == pytest.approx(each)
    error = expected_calibration_error(expected)
    assert evaluation.expected_calibration_error == pytest.approx(error)
    assert evaluation.figures()["reliability"] == evaluation.reliability


def figures_of(location, X, y=None, **columns):
    dataset = write_table(MemoryStore(), X, y, chunk_rows=70, **columns)
    return evaluate_dataset(location, dataset, InlineEngine(n_workers=2)).figures()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_evaluate__a_row_of_weight_3_counts_as_three_rows(new_rows, n_classes):
    X, y = new_rows
    own = y < n_classes
    params = FitParams(alpha=1e-2, basis="random", basis_size=8)
    rows = write_table(MemoryStore(), X[own], NAMES[y[own]])
    run = fit_dataset(rows, MemoryStore(), params, InlineEngine()).location
    weights = np.random.default_rng(0).integers(1, 6, len(y)).astype(float)
    # Two classes leave the third as an unknown label.
    found = figures_of(run, X, NAMES[y], weights=weights)
    repeated = np.repeat(np.arange(len(y)), weights.astype(int))
    expected = figures_of(run, X[repeated], NAMES[y[repeated]])
    wrong = Model.load(run).scores(X).argmax(axis=1) != y
    assert found["error_rate"] == pytest.approx(np.average(wrong, weights=weights), rel=1e-12)
    assert (found["n_rows"], found["n_errors"]) == (250, wrong.sum())
    assert found["total_weight"] == weights.sum()
    assert found["n_unknown_labels"] == np.sum(y >= n_classes)
    counts = ("n_rows", "n_errors", "n_unknown_labels", "total_weight")
    for name in expected.keys() - {*counts, "per_class", "reliability", "classes"}:
        of_both = (np.array(each[name], dtype=float) for each in (found, expected))
        np.testing.assert_allclose(*of_both, rtol=1e-9, err_msg=name)
    for name in ("per_class", "reliability"):
        frames = (pd.DataFrame(each[name]) for each in (found, expected))
        pd.testing.assert_frame_equal(*frames, check_dtype=False, rtol=1e-9)


def test_evaluate__labels_that_are_all_unknown_are_refused(place, new_rows):
    X, y = new_rows
    source = ArraySource(X, np.full(len(y), "zebra"))
    # A class of the model is declared, but no row has it.
    dataset = ingest_source(source, MemoryStore(), classes=("a",))
    assert dataset.class_counts.tolist() == [0, 250]
    with pytest.raises(DataError, match="such as 'zebra', are not classes of the model"):
        evaluate_dataset(place / "run", dataset, InlineEngine())


def test_evaluate__labels_with_blanks_are_no_errors_of_the_model(place, new_rows):
    X, y = new_rows
    labels = ["abc"[code] + " " * (row % 4 > 0) for row, code in enumerate(y)]
    dataset = ingest_source(ArraySource(X, np.array(labels)), MemoryStore())
    with pytest.raises(DataError, match=r"the label '\w+ ' of .* differs from a class in blanks"):
        evaluate_dataset(place / "run", dataset, InlineEngine())


def test_evaluate__unknown_labels_are_the_last_row_of_the_confusion(place, new_rows):
    X, y = new_rows
    strange = np.where(np.arange(250) < 10, np.where(np.arange(250) < 4, "zebra", "gnu"), NAMES[y])
    dataset = write_table(MemoryStore(), X, strange, chunk_rows=7)
    evaluation = evaluate_dataset(place / "run", dataset, InlineEngine())
    kept = write_table(MemoryStore(), X[10:], NAMES[y[10:]])
    known = evaluate_dataset(place / "run", kept, InlineEngine())
    given = Model.load(place / "run").scores(X[:10]).argmax(axis=1)
    assert evaluation.confusion[:-1] == known.confusion
    assert evaluation.confusion[-1] == tuple(np.bincount(given, minlength=3).tolist())
    assert evaluation.n_errors == known.n_errors + 10
    assert (evaluation.n_unknown_labels, known.n_unknown_labels) == (10, 0)
    assert evaluation.log_loss == pytest.approx(known.log_loss, rel=1e-12)


@pytest.mark.parametrize(("chunk_rows", "n_workers"), [(7, 7), (300, 1)])
def test_evaluate__area_under_the_roc_curve(monkeypatch, new_rows, chunk_rows, n_workers):
    monkeypatch.setattr(predict_module, "_TASK_ROWS", 90)
    monkeypatch.setattr(scorer_module, "_MAX_BLOCK_ROWS", 64)
    X, y = new_rows
    params = FitParams(alpha=1e-2, basis="random", basis_size=5)
    two = write_table(MemoryStore(), X[y < 2], NAMES[y[y < 2]])
    run = fit_dataset(two, MemoryStore(), params, InlineEngine())
    # Rows of a label that the model does not know have no part in it.
    judged = write_table(MemoryStore(), X, NAMES[y], chunk_rows=chunk_rows)
    found = evaluate_dataset(run.location, judged, InlineEngine(n_workers=n_workers))
    model = Model.load(run.location)
    first, second = model.scores(X[y < 2]).T
    expected = roc_auc_score(y[y < 2], second - first)
    assert found.n_unknown_labels == np.sum(y == 2)
    assert 0.5 < expected < 1
    assert found.roc_auc == pytest.approx(expected, abs=1e-9)
    assert found.roc_auc_bound == 0.0
    one = write_table(MemoryStore(), X[y == 1], NAMES[y[y == 1]])
    of_one = evaluate_dataset(run.location, one, InlineEngine())
    assert (of_one.roc_auc, of_one.per_class[0]["recall"]) == (None, None)


@pytest.fixture(scope="module")
def of_numbers(place):
    X, Y = surfaces(300)
    dataset = write_table(place / "numbers", X, target=Y)
    params = FitParams(basis="kmeans", basis_size=30, features="plain")
    fit_dataset(dataset, place / "regression", params, InlineEngine())
    return place / "regression"


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("n_rows", "step"), [(1, 1), (2000, 1), (2001, 2), (4001, 3)])
def test_evaluate__numbers_and_a_sample_of_them(monkeypatch, of_numbers, n_rows, step):
    monkeypatch.setattr(predict_module, "_TASK_ROWS", 90)
    monkeypatch.setattr(scorer_module, "_MAX_BLOCK_ROWS", 64)
    X, Y = surfaces(n_rows, seed=1)
    model = Model.load(of_numbers)
    predicted = np.clip(model.scores(X), *model.target_range)
    dataset = write_table(MemoryStore(), X, target=Y, chunk_rows=370)
    for n_workers in (1, 7):
        evaluation = evaluate_dataset(of_numbers, dataset, InlineEngine(n_workers=n_workers))
        true, found = evaluation.sample
        np.testing.assert_array_equal(true, Y[::step])
        np.testing.assert_allclose(found, predicted[::step], rtol=1e-9)
        figures = evaluation.figures()
        assert "sample" not in figures
        for name, metric in {
            "rmse": root_mean_squared_error,
            "mae": mean_absolute_error,
        }.items():
            expected = metric(Y, predicted, multioutput="raw_values")
            np.testing.assert_allclose(figures[name], expected, rtol=1e-9)
        if n_rows > 1:
            r2 = r2_score(Y, predicted, multioutput="raw_values")
            np.testing.assert_allclose(figures["r2"], r2, rtol=1e-9)


def test_evaluate__errors_of_numbers_are_weighted(of_numbers):
    X, Y = surfaces(300, seed=1)
    weights = np.random.default_rng(0).integers(1, 6, 300)
    found = figures_of(of_numbers, X, target=Y, weights=weights)
    repeated = np.repeat(np.arange(300), weights)
    expected = figures_of(of_numbers, X[repeated], target=Y[repeated])
    assert (found["n_rows"], found["total_weight"]) == (300, weights.sum())
    for name in ("relative_error", "r2", "rmse", "mae"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9)


def test_evaluate__labels_and_numbers_are_not_mixed_up(place, of_numbers, new_rows):
    X, y = new_rows
    with pytest.raises(DataError, match="are labels, but the network predicts target_0, target_1"):
        evaluate_dataset(of_numbers, write_table(MemoryStore(), X[:, :3], y), InlineEngine())
    numbers = write_table(MemoryStore(), X, target=y.astype(float))
    with pytest.raises(DataError, match="has numeric targets, not labels"):
        evaluate_dataset(place / "run", numbers, InlineEngine())


def tied_model(place):
    """Return a model most of whose scores are clipped, or differ by less than float32 shows."""
    model = Model.load(place / "run")
    weights = 40 * model.weights
    weights[2] = weights[1] + 1e-9 * model.weights[0]
    return replace(model, weights=weights)


def test_predict__the_largest_probability_written_is_that_of_the_label(tmp_path, place, new_rows):
    X, _ = new_rows
    tied_model(place).save(model_place := MemoryStore())
    out, dataset = tmp_path / "out.csv", write_table(MemoryStore(), X, chunk_rows=70)
    predict_dataset(model_place, dataset, out, InlineEngine(), probabilities=True, scores=True)
    frame = pd.read_csv(out)
    labels = NAMES[tied_model(place).scores(X).argmax(axis=1)]
    assert frame["prediction"].tolist() == labels.tolist()
    for name in ("probability", "score"):
        written = frame[[f"{name}_{label}" for label in NAMES]].to_numpy()
        assert NAMES[written.argmax(axis=1)].tolist() == labels.tolist()
    clipped = np.clip(tied_model(place).scores(X), 0, 1)
    assert (NAMES[clipped.argmax(axis=1)] != labels).sum() > 10
