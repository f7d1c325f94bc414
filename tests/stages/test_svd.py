"""Fits to coordinates of a truncated singular value decomposition."""

from dataclasses import replace

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from zarr.storage import MemoryStore

from dask_nrbfn import DiffusionMap, NRBFNClassifier, NRBFNClassifierCV
from dask_nrbfn.commands.describe import describe
from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.fit import embed_dataset, fit_dataset, tune_dataset
from dask_nrbfn.commands.plan import plan_fit
from dask_nrbfn.commands.predict import predict_dataset
from dask_nrbfn.commands.refresh import refresh_run
from dask_nrbfn.commands.update import branch_run, merge_runs, update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.report.facts import run_facts
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.results import results_of
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.storage.group import attributes_of, open_group
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.commands.test_plan import RATES
from tests.schemas import write_rows
from tests.stages.stopping import CountingEngine
from tests.storage.written import edit_attributes
from tests.tables import surfaces, write_table

DIGITS, LABELS = load_digits(return_X_y=True)
DIGITS, LABELS = DIGITS[:300], LABELS[:300]
PARAMS = FitParams(svd=12, basis="random", basis_size=40, alpha=1e-6)
ENGINE = InlineEngine()


def write(X=DIGITS, y=LABELS, **options):
    return write_table(MemoryStore(), X, y, **options)


def fit(params=PARAMS, dataset=None, place=None, engine=ENGINE):
    return fit_dataset(
        dataset or write(), MemoryStore() if place is None else place, params, engine
    )


def components_of(run):
    return run.read("svd/components")


def coordinates_of(run):
    """Return the coordinates of the digits to the bit, which draws and clusters follow."""
    return write().projected_by(run.location, 12).take(np.arange(len(DIGITS)))


def same_scores(one, two, rows, coordinates, atol=1e-8):
    np.testing.assert_allclose(one.scores(rows), two.scores(coordinates), atol=atol)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("changes", [{}, {"scale": "unit"}, {"basis": "kmeans"}])
def test_fit__is_that_of_the_coordinates_given_as_rows(changes):
    params = replace(PARAMS, **changes)
    run = fit(params)
    V, coordinates = components_of(run), coordinates_of(run)
    plain = fit(replace(params, svd=None), write(coordinates))
    same_scores(Model.load(run.location), Model.load(plain.location), DIGITS, coordinates)
    assert run.stages["svd"]["explained"] > 0.9
    np.testing.assert_allclose(V.T @ V, np.eye(12), atol=1e-12)
    np.testing.assert_allclose(run.read("columns/mean"), coordinates.mean(axis=0), atol=1e-9)


@pytest.mark.slow
def test_tune__is_that_of_the_coordinates_given_as_rows():
    tuning = TuneParams(effort="quick", folds=3, alphas=(1e-2, 1e-6), width_factors=(0.5, 1.0))
    run = tune_dataset(write(), MemoryStore(), PARAMS, tuning, ENGINE)
    coordinates = coordinates_of(run)
    plain = replace(PARAMS, svd=None)
    plain = tune_dataset(write(coordinates), MemoryStore(), plain, tuning, ENGINE)
    assert describe(run.location)["error_rate"] == describe(plain.location)["error_rate"]
    same_scores(Model.load(run.location), Model.load(plain.location), DIGITS, coordinates)


@pytest.mark.slow
def test_tune__judges_on_other_rows():
    tuning = TuneParams(effort="quick", alphas=(1e-2, 1e-6), width_factors=(1.0,))
    judged = write(DIGITS[200:], LABELS[200:])
    place, rows = MemoryStore(), write(DIGITS[:200], LABELS[:200])
    run = tune_dataset(rows, place, PARAMS, tuning, ENGINE, validation=judged)
    error_rate = evaluate_dataset(run.location, judged, ENGINE).error_rate
    assert run.stages["validation"]["error_rate"] == pytest.approx(error_rate, abs=0.02)


@pytest.mark.slow
def test_embed__is_that_of_the_coordinates_given_as_rows():
    params = replace(PARAMS, components=2)
    run = embed_dataset(write(), MemoryStore(), params, ENGINE)
    coordinates = coordinates_of(run)
    plain = replace(params, svd=None)
    plain = embed_dataset(write(coordinates), MemoryStore(), plain, ENGINE)
    same_scores(Model.load(run.location), Model.load(plain.location), DIGITS, coordinates, 1e-6)
    sampled = [each.read("model/sample/coordinates") for each in (run, plain)]
    np.testing.assert_allclose(*sampled, atol=1e-6)


def test_fit__does_not_depend_on_parts():
    expected = fit()
    run = fit(replace(PARAMS, n_parts=6), write(chunk_rows=64))
    np.testing.assert_array_equal(components_of(run), components_of(expected))
    np.testing.assert_array_equal(run.read("basis/rows"), expected.read("basis/rows"))
    same_scores(Model.load(run.location), Model.load(expected.location), DIGITS, DIGITS)


def test_fit__finds_a_value_that_is_none(tmp_path):
    dataset = write_table(tmp_path / "data", DIGITS, LABELS)
    group = zarr.open_group(tmp_path / "data")
    group["X"][17, 3] = np.nan
    # As older versions wrote it, without what its chunks are known by.
    edit_attributes(dataset.location, drop="chunk_checksums", checked=True)
    with pytest.raises(DataError, match="nan in row 17, column 3"):
        fit(PARAMS, dataset)


def test_fit__of_values_too_large_to_be_squared():
    with pytest.raises(DataError, match="too large to be squared"):
        fit(PARAMS, write(DIGITS * 1e160))


def test_fit__of_fewer_dimensions_says_so(caplog):
    X = DIGITS[:, :30] @ np.eye(30)[:, :5] @ np.ones((5, 30))
    run = fit(PARAMS, write(X))
    assert "svd: only 1 of 12 coordinates are not always 0" in caplog.text
    assert run.stages["svd"]["explained"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"svd": 64}, r"svd is 64, but X is 300 x 64\. Set svd to at most 63"),
        ({"svd": 300}, "svd is 300, but X is 300 x 64"),
        ({"svd": 0}, "svd is 0"),
    ],
)
def test_fit__refuses_at_once(changes, message):
    place = MemoryStore()
    with pytest.raises(ParameterError, match=message):
        fit(replace(PARAMS, **changes), place=place, engine=CountingEngine(0))
    assert not place._store_dict


def test_fit__refuses_given_basis_rows():
    params = given_basis(FitParams(svd=12), DIGITS[:40])
    with pytest.raises(ParameterError, match="svd is 12, but the given basis rows are not"):
        fit_dataset(write(), MemoryStore(), params, CountingEngine(0), basis=DIGITS[:40])


def test_fit__refuses_columns_of_several_kinds():
    with pytest.raises(ParameterError, match=r"svd is 3, but the columns of .* several kinds"):
        fit_dataset(write_rows(MemoryStore()), MemoryStore(), FitParams(svd=3), CountingEngine(0))


def test_model__says_what_rows_it_wants_and_is_of_its_own_format(tmp_path):
    run = fit(PARAMS, write_table(tmp_path / "data", DIGITS, LABELS), tmp_path / "run")
    model = Model.load(tmp_path / "run")
    assert (model.n_features, model.basis.shape) == (64, (40, 12))
    with pytest.raises(DataError, match="X has 12 columns, but the model was trained on 64"):
        model.scores(DIGITS[:, :12])
    model.save(tmp_path / "model")
    assert Model.load(tmp_path / "model").digest() == model.digest()
    assert replace(model, projection=-model.projection).digest() != model.digest()
    for place, kind in (("run", "run"), ("model", "model")):
        assert attributes_of(open_group(tmp_path / place, kind=kind))["format_version"] == 6
    plain = fit(replace(PARAMS, svd=None))
    assert attributes_of(open_group(plain.location, kind="run"))["format_version"] == 4
    figures = describe(run.location)
    assert figures["n_features"] == 64
    assert figures["svd_explained"] == run.stages["svd"]["explained"]
    facts = {fact.name: fact.value for fact in run_facts(results_of(FinishedRun.of(run), None))}
    assert facts["svd"].startswith("12 coordinates, 9")


@pytest.mark.slow
def test_update__adds_rows_as_if_they_had_been_there(tmp_path):
    one, two = (
        write_table(tmp_path / name, DIGITS[rows], LABELS[rows])
        for name, rows in (("one", slice(200)), ("two", slice(200, 300)))
    )
    runs = [fit(PARAMS, one, tmp_path / name) for name in ("added", "merged")]
    V, coordinates = components_of(runs[0]), coordinates_of(runs[0])
    update_run(runs[0].location, two, ENGINE)
    branch_run(runs[1].location, tmp_path / "branch")
    update_run(tmp_path / "branch", two, ENGINE)
    merge_runs(runs[1].location, tmp_path / "branch", ENGINE)
    plain = fit(replace(PARAMS, svd=None), write(coordinates[:200], LABELS[:200]))
    update_run(plain.location, write(coordinates[200:], LABELS[200:]), ENGINE)
    expected = Model.load(plain.location)
    for run in runs:
        same_scores(Model.load(run.location), expected, DIGITS, coordinates)
        assert attributes_of(open_group(run.location, kind="run"))["format_version"] == 6
    record = update_run(runs[0].location, one, ENGINE, forget=True)
    assert record["reasons"] == ["40 of the forgotten rows are basis rows of the model"]
    refreshed = refresh_run(runs[1].location, [two], ENGINE)
    assert refreshed.chosen_params == PARAMS.resolve_auto(numbers=False)
    assert not np.array_equal(components_of(refreshed), V)


def test_predict__of_all_kinds_of_rows(tmp_path):
    dataset = write_table(tmp_path / "data", DIGITS, LABELS)
    run = fit(PARAMS, dataset, tmp_path / "run")
    expected = Model.load(run.location).scores(DIGITS)
    predict_dataset(run.location, dataset, tmp_path / "out", ENGINE)
    scores = open_group(tmp_path / "out", kind="predictions")["scores"][:]
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    network = NRBFNClassifier.load(tmp_path / "run")
    assert (network.svd, network.n_features_in_) == (12, 64)
    np.testing.assert_allclose(network.decision_function(DIGITS), expected, atol=1e-12)
    np.testing.assert_allclose(network.decision_function(dataset), expected, atol=1e-12)


@pytest.mark.slow
def test_estimators__have_the_parameter():
    options = {"svd": 12, "basis_size": 40}
    network = NRBFNClassifier(alpha=1e-6, **options).fit(DIGITS, LABELS)
    assert network.score(DIGITS, LABELS) > 0.9
    network.partial_fit(DIGITS + 0.1, LABELS)
    tuned = NRBFNClassifierCV(
        effort="quick", folds=2, alphas=(1e-6,), width_factors=(1,), **options
    )
    assert tuned.fit(DIGITS, LABELS).score(DIGITS, LABELS) > 0.9
    assert DiffusionMap(svd=12, basis_size=40).fit_transform(DIGITS).shape == (300, 2)


def test_plan__counts_both_passes_and_coordinates_after_them():
    dataset = write()
    costs, plain = (
        {stage.name: stage.cost for stage in plan_fit(dataset, params, ENGINE, RATES).stages}
        for params in (PARAMS, replace(PARAMS, svd=None))
    )
    n, p, size = 300, 64, 24
    assert costs["svd"].flops == 2 * 4 * n * p * size
    assert costs["svd"].read_bytes > 2 * 8 * n * p
    assert costs["moments"].flops < plain["moments"].flops
    assert costs["columns"].read_bytes == plain["columns"].read_bytes == 8 * n * p


def test_fit__of_rows_in_csr_is_that_of_the_same_rows_in_an_array():
    X = np.where(DIGITS < 8, 0.0, DIGITS)
    dataset = write(csr_array(X), chunk_rows=70)
    sparse, plain = (fit(PARAMS, each) for each in (dataset, write(X)))
    np.testing.assert_allclose(components_of(sparse), components_of(plain), atol=1e-10)
    assert sparse.stages["svd"]["explained"] == pytest.approx(plain.stages["svd"]["explained"])
    model = Model.load(sparse.location)
    np.testing.assert_allclose(model.scores(csr_array(X)), model.scores(X), atol=1e-9)
    error_rate = np.mean(model.scores(X).argmax(axis=1) != LABELS)
    assert evaluate_dataset(sparse.location, dataset, ENGINE).error_rate == error_rate


@pytest.mark.slow
def test_fit__of_rows_without_labels_and_of_numbers():
    labels = np.where(np.arange(300) % 2 == 0, LABELS, -1)
    run = fit(PARAMS, write(y=labels, unlabelled=-1))
    coordinates = coordinates_of(run)
    plain = fit(replace(PARAMS, svd=None), write(coordinates, labels, unlabelled=-1))
    same_scores(Model.load(run.location), Model.load(plain.location), DIGITS, coordinates)
    beside = write().with_unlabelled(write(DIGITS + 0.5, None, chunk_rows=80))
    run = fit(PARAMS, beside)
    both = np.concatenate([DIGITS, DIGITS + 0.5])
    V = components_of(run)
    np.testing.assert_allclose(run.read("columns/mean"), (both @ V).mean(axis=0), atol=1e-9)
    assert evaluate_dataset(run.location, write(), ENGINE).error_rate < 0.1
    X, Y = surfaces(100)
    run = fit_dataset(
        write_table(MemoryStore(), X, target=Y), MemoryStore(), FitParams(svd=1), ENGINE
    )
    assert Run.open(run.location).stages["svd"]["explained"] < 1
