"""Models as ONNX files give what they give here."""

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from scipy.sparse import csr_array

from dask_nrbfn import FitParams, InlineEngine, Model, NRBFNClassifier, fit_dataset
from dask_nrbfn.choices import KERNELS
from dask_nrbfn.commands import onnx_model
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.ranks import Line, RankLines
from dask_nrbfn.numeric.scaling import Scaling
from tests.cli.program import json_of
from tests.tables import spirals, write_table

LOSSES = FitParams.options()["loss"].choices
SCALES = ("none", "standard", "rank", "unit", "learned")
FEATURES = ("normalized", "plain")
LABELS = {
    "int": np.array([7, -2, 5]),
    "str": np.array(["b", "a", "ä"]),
    "bool": np.array([False, True]),
    "float": np.array([0.5, 2.0]),
}


def drawn(*, kernel="gaussian", features="normalized", scale="none", loss="squared", **further):
    """Return a model of drawn numbers, and rows: near its basis, on it and far from it."""
    rng = np.random.default_rng(3)
    r, p = 30, 4
    scaling = Scaling(
        scale,
        *(rng.uniform(90, 110, p), rng.uniform(0.5, 4, p)),
        rng.uniform(0, 2, p) if scale == "learned" else None,
    )
    rows = rng.normal(100.0, 3.0, (50, p))
    if scale in ("rank", "learned"):
        # Lines of different numbers of knots, next to a column without a line.
        lines = {1: Line.through(np.rint(rows[:, 1])), 3: Line.through(rows[:, 3])}
        scaling = scaling.with_ranks(RankLines.of(lines))
    basis = scaling.apply(rows[:r])
    width = float(np.sqrt(np.var(basis, axis=0).sum()))
    given = {"classes": LABELS["int"], "fitting_error": 0.1, "spectral_risk": 0.2} | further
    q = len(given["classes"]) or len(given["target_names"])
    params = FitParams(kernel=kernel, features=features, scale=scale, loss=loss)
    weights = rng.normal(size=(q, r))
    model = Model(
        basis=basis, width=width, weights=weights, scaling=scaling, params=params, **given
    )
    far = 100.0 + rng.normal(size=(6, p)) * np.array([[30, 300, 1e4, 1e6, 1e9, 1e12]]).T
    return model, np.concatenate([rows, far])


def given_by(path, rows):
    """Return what a file makes of rows, by the name of the output."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": rows}), strict=True))


def check(model, rows, *, dtype="float64", tolerance=1e-10):
    proto = onnx_model.onnx_model(model, dtype=dtype).SerializeToString()
    given, scores = given_by(proto, rows.astype(dtype)), model.scores(rows)
    if model.target_names is not None:
        (values,) = given.values()
        np.testing.assert_allclose(values, scores, rtol=tolerance, atol=tolerance)
        return
    assert list(given) == ["label", "scores", "probabilities"]
    np.testing.assert_allclose(given["scores"], scores, rtol=tolerance, atol=tolerance)
    probabilities = model.probabilities(scores)
    np.testing.assert_allclose(given["probabilities"], probabilities, atol=10 * tolerance)
    ordered = np.sort(scores, axis=1)
    sure = ordered[:, -1] - ordered[:, -2] > 10 * tolerance
    assert sure.mean() > 0.8
    labels = model.classes[scores.argmax(axis=1)]
    assert (given["label"][sure] == labels[sure]).all()


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_onnx__every_kernel_and_scale(kernel, features):
    for scale in ("none", "standard") if kernel != "gaussian" else SCALES:
        model, rows = drawn(kernel=kernel, features=features, scale=scale)
        # The root of what rounding leaves of the distance of a basis row from itself is 1e-8.
        check(model, rows, tolerance=1e-6 if kernel == "laplacian" else 1e-10)


def test_onnx__labels_of_every_type():
    for classes in LABELS.values():
        check(*drawn(classes=classes))


BIASED = Calibration(0.3, 0.8, (-0.4, 0.1, 0.3))


@pytest.mark.parametrize("calibration", [None, Calibration(0.05), Calibration(3.0), BIASED])
@pytest.mark.parametrize("loss", LOSSES)
def test_onnx__the_largest_probability_is_that_of_the_label(loss, calibration):
    model, rows = drawn(loss=loss, calibration=calibration)
    check(model, rows)
    model = replace(model, weights=50 * model.weights)
    for dtype in onnx_model.DTYPES:
        proto = onnx_model.onnx_model(model, dtype=dtype).SerializeToString()
        for some in (rows[:50], rows[:1], rows[:0]):
            given = given_by(proto, some.astype(dtype))
            for name in ("scores", "probabilities"):
                assert (model.classes[given[name].argmax(axis=1)] == given["label"]).all()


def numbers(**further):
    rng = np.random.default_rng(5)
    names = ("a", "b")
    return drawn(classes=np.empty(0), target_names=names, intercept=rng.normal(size=2), **further)


@pytest.mark.parametrize(("name", "fitting_error"), [("values", 0.1), ("coordinates", None)])
def test_onnx__numbers_and_coordinates(name, fitting_error):
    model, rows = numbers(fitting_error=fitting_error)
    check(model, rows)
    assert list(given_by(onnx_model.onnx_model(model).SerializeToString(), rows)) == [name]
    clipped = replace(model, target_range=np.quantile(model.scores(rows), [0.25, 0.75], axis=0))
    (values,) = given_by(onnx_model.onnx_model(clipped).SerializeToString(), rows).values()
    np.testing.assert_allclose(values, clipped.clipped(model.scores(rows)), rtol=1e-9)
    assert not np.allclose(values, model.scores(rows))


@pytest.mark.parametrize("kernel", KERNELS)
def test_onnx__plain_activations_underflow_in_float32_where_they_do_in_predict(kernel):
    model, _ = drawn(kernel=kernel, features="plain")
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(300, 4)) * 10.0 ** rng.uniform(0, 3.5, (300, 1))
    rows = (100.0 + model.width * steps).astype(np.float32)
    scores = model.scores(rows.astype(np.float64))
    largest, second = np.sort(scores, axis=1)[:, :0:-1].T
    size = np.abs(scores).max(axis=1)
    # Labels decided by activations that float32 does not hold, and scores that are all 0.
    assert (size < 1e-46).sum() > 20 < (size == 0).sum()
    sure = largest - second >= 1e-3 * size
    given = given_by(onnx_model.onnx_model(model, dtype="float32").SerializeToString(), rows)
    assert (given["label"] == model.classes[scores.argmax(axis=1)])[sure].all()
    for name in ("scores", "probabilities"):
        assert given[name].dtype == np.float32
        assert (model.classes[given[name].argmax(axis=1)] == given["label"]).all()


def test_onnx__rows_far_beyond_the_basis():
    """Where exponentials underflow, the nearest basis row decides, as it does here."""
    for kernel in KERNELS:
        model, _ = drawn(kernel=kernel)
        rows = 100.0 + 10.0 ** np.arange(3, 60, 8)[:, None] * np.array([[1.0, -2.0, 0.5, 3.0]])
        check(model, rows)


@pytest.mark.parametrize("scale", ["none", "standard", "unit"])
def test_onnx__a_basis_in_csr(scale, caplog):
    model, rows = drawn(scale=scale, kernel="matern32")
    scaling = replace(model.scaling, shift=np.zeros(4))
    basis = model.basis * (np.abs(model.basis) > np.median(np.abs(model.basis)))
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        check(replace(model, basis=csr_array(basis), scaling=scaling), rows, tolerance=1e-8)
    assert "will have 1.88 kiB of float64" in caplog.text


def test_onnx__a_model_too_large_for_the_format(monkeypatch):
    monkeypatch.setattr(onnx_model, "_LARGEST_BYTES", 1000)
    with pytest.raises(DataError, match=r"but an ONNX file holds at most 2 GiB\. Fit"):
        onnx_model.onnx_model(drawn()[0])


@pytest.mark.parametrize("dtype", onnx_model.DTYPES)
@pytest.mark.parametrize("apart", [10.0, 1e6])
def test_onnx__the_card_says_how_clusters_far_apart_are_rounded(apart, dtype):
    model, _ = drawn()
    rng = np.random.default_rng(0)
    basis = np.concatenate([rng.normal(size=(15, 4)), rng.normal(size=(15, 4)) + apart])
    rows = np.concatenate([rng.normal(size=(20, 4)), rng.normal(size=(20, 4)) + apart])
    rows = rows.astype(dtype).astype(np.float64)
    names = ("a", "city_Rome", "city_Oslo", "a_missing")
    weights = rng.uniform(-1, 1, (3, 30))
    model = replace(model, basis=basis, width=1.0, weights=weights, feature_names=names)
    proto = onnx_model.onnx_model(model, dtype=dtype)
    card = {each.key: json.loads(each.value) for each in proto.metadata_props}
    assert card["feature_names"] == list(names)
    given = given_by(proto.SerializeToString(), rows.astype(dtype))
    assert np.abs(given["scores"] - model.scores(rows)).max() <= card["rounding"]


@pytest.mark.parametrize("dtype", onnx_model.DTYPES)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_onnx__rounding_bounds_the_difference_with_weights_of_a_tiny_alpha(kernel, features, dtype):
    for seed, scale in enumerate(SCALES):
        model, rows = drawn(kernel=kernel, features=features, scale=scale)
        # Rows on the basis, where the root of a rounded distance of 0 is largest, and near it.
        rows = rows[:50].astype(dtype).astype(np.float64)
        model = replace(model, basis=model.scaling.apply(rows[:30].copy()))
        Phi = model.features.activations(rows[:30])
        targets = np.random.default_rng(seed).normal(size=(30, 3))
        gram = Phi.T @ Phi
        gram[np.diag_indices(30)] += 1e-13 * np.trace(gram)
        model = replace(model, weights=np.linalg.solve(gram, Phi.T @ targets).T)
        proto = onnx_model.onnx_model(model, dtype=dtype)
        card = {each.key: json.loads(each.value) for each in proto.metadata_props}
        given = given_by(proto.SerializeToString(), rows.astype(dtype))
        error = np.abs(given["scores"] - model.scores(rows)).max()
        assert error <= card["rounding"] < 1e5 * max(error, 1e-12)


def test_onnx__rounding_bounds_the_difference_of_ranked_columns_far_from_0():
    model, rows = drawn(scale="rank")
    rows = rows[:50].copy()
    rows[:, 3] += 1e6
    ranks = RankLines.of({column: Line.through(rows[:, column]) for column in (1, 3)})
    scaling = replace(model.scaling, ranks=ranks)
    model = replace(model, scaling=scaling, basis=scaling.apply(rows[:30].copy()))
    proto = onnx_model.onnx_model(model, dtype="float32")
    card = {each.key: json.loads(each.value) for each in proto.metadata_props}
    given = given_by(proto.SerializeToString(), rows.astype(np.float32))
    error = np.abs(given["scores"] - model.scores(rows)).max()
    assert 1e-4 < error <= card["rounding"] < 1e5 * error


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("onnx")
    dataset = write_table(place / "data", *spirals(120))
    fit_dataset(dataset, place / "run", FitParams(basis_size=20, alpha=1e-6), InlineEngine())
    return place / "run"


def test_export__a_run(run, tmp_path):
    path = tmp_path / "model.onnx"
    told = json_of("export", run, path)
    assert told["inputs"] == ["X"]
    assert told["outputs"] == ["label", "scores", "probabilities"]
    assert told["n_bytes"] == path.stat().st_size
    X, _ = spirals(50, seed=1)
    model = Model.load(run)
    np.testing.assert_allclose(given_by(path, X)["scores"], model.scores(X), atol=1e-6)
    proto = onnx.load(path)
    card = {each.key: json.loads(each.value) for each in proto.metadata_props}
    assert (card["n_basis"], card["classes"], card["digest"]) == (20, [0, 1, 2], model.digest())
    assert card["params"]["basis_size"] == 20
    assert card["versions"]["dask-nrbfn"] == proto.producer_version


def test_to_onnx__an_estimator(tmp_path):
    X, y = spirals(100)
    names = np.array(["one", "two", "three"])
    network = NRBFNClassifier(basis_size=20, alpha=1e-4).fit(X, names[y])
    network.to_onnx(tmp_path / "model.onnx")
    given = given_by(tmp_path / "model.onnx", X)
    assert (given["label"] == network.predict(X)).all()
    np.testing.assert_allclose(given["probabilities"], network.predict_proba(X), atol=1e-8)
