"""Frames of any library are fitted and predicted as they are: text, categories, dates, gaps."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import zarr
from sklearn.base import clone
from sklearn.metrics import accuracy_score, r2_score
from zarr.storage import MemoryStore

from dask_nrbfn import DiffusionMap, NRBFNClassifier, NRBFNClassifierCV, NRBFNRegressor
from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.errors import DataError, ParameterError

N = 60
COLUMNS = ["age", "sex", "town", "smokes", "day", "children"]
FEATURES = [
    *["age", "age_missing", "sex=f", "sex=m", "sex=(missing)"],
    *["town=a", "town=b", "town=c", "smokes", "day", "day_cos", "day_sin"],
    *["day_week_cos", "day_week_sin", "children"],
]
NETWORK = NRBFNClassifier(n_neighbors=5, alpha=1e-6, scale="standard", missing="impute")


def people(n_rows=N, seed=0):
    """Return a frame with gaps, whose index is not that of the rows, and labels."""
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(40, 10, n_rows), rng.choice(["f", "m"], n_rows)
    frame = pd.DataFrame(
        {
            "age": np.where(np.arange(n_rows) % 9 == 4, np.nan, age),
            "sex": np.where(np.arange(n_rows) % 20 == 5, None, sex),
            "town": pd.Categorical(rng.choice(["a", "b", "c"], n_rows)),
            "smokes": rng.random(n_rows) < 0.4,
            "day": pd.Timestamp("2020-01-31") + pd.to_timedelta(rng.integers(0, 700, n_rows), "D"),
            "children": rng.integers(0, 4, n_rows),
        },
        index=2 * np.arange(n_rows) + 7,
    )
    return frame, np.where((age > 40) ^ (sex == "f"), "yes", "no")


@pytest.fixture(scope="module")
def table():
    return people()


@pytest.fixture(scope="module")
def network(table):
    return clone(NETWORK).fit(*table)


@pytest.fixture(scope="module")
def whole(table):
    """Frame without gaps, and a network of it that lets there be none."""
    frame = table[0][["age", "sex"]].ffill()
    return frame, clone(NETWORK).set_params(missing="error").fit(frame, table[1])


FORMS = {
    "objects": lambda frame: frame.astype(object).infer_objects().astype({"sex": object}),
    "nullable": lambda frame: frame.convert_dtypes(),
    "polars": pl.from_pandas,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("form", FORMS)
def test_frames__same_table_of_every_library(table, network, form):
    frame, labels = table
    given = FORMS[form](frame)
    content = ingest_arrays(frame, labels, MemoryStore(), missing="impute").content
    dataset = ingest_arrays(given, labels, MemoryStore(), missing="impute")
    assert (dataset.content, list(dataset.feature_names)) == (content, FEATURES)
    again = clone(NETWORK).fit(given, labels)
    expected = network.decision_function(frame)
    for X in (given, frame, dataset):
        np.testing.assert_array_equal(again.decision_function(X), expected)


def in_parts(values, index):
    parts = pd.Series(values, index=index) if isinstance(values, np.ndarray) else values
    return dd.from_pandas(parts, npartitions=3)


def test_frames__dask(table, network):
    frame, labels = table
    # Objects and unknown categories show only in the parts what they are.
    lazy = in_parts(frame.astype({"sex": object}), frame.index).astype({"town": "category"})
    y, plain = in_parts(labels, frame.index), lazy.assign(town=lazy.town.astype(str))
    expected = ingest_arrays(frame, labels, MemoryStore(), missing="impute")
    for X in (lazy, plain):
        assert ingest_arrays(X, y, MemoryStore(), missing="impute").content == expected.content
    fitted = clone(NETWORK).fit(lazy, y)
    assert fitted.feature_names_.tolist() == FEATURES
    scores = network.decision_function(lazy[COLUMNS[::-1]])
    assert np.isnan(scores.shape[0])
    for found in (scores, fitted.decision_function(lazy)):
        np.testing.assert_array_equal(found.compute(), network.decision_function(frame))
    assert network.score(lazy, y) == network.score(frame, labels)


def test_frames__attributes_and_saved_network(tmp_path, table, network):
    frame, _ = table
    network.save(tmp_path / "model")
    loaded = NRBFNClassifier.load(tmp_path / "model")
    for each in (network, loaded):
        assert (each.missing, each.n_features_in_) == ("impute", len(COLUMNS))
        assert each.feature_names_in_.tolist() == COLUMNS
        assert each.feature_names_.tolist() == FEATURES
        assert each.schema_.columns[1].categories == ("f", "m")
    np.testing.assert_array_equal(loaded.predict_proba(frame), network.predict_proba(frame))


def test_frames__columns_are_found_by_name(whole, caplog):
    frame, network = whole
    expected = network.predict(frame).tolist()
    other = frame.assign(town="a")[["town", "sex", "age"]]
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        assert network.predict(other).tolist() == expected
    assert "extra columns of X are ignored: 'town'" in caplog.text
    assert network.predict(frame.to_numpy()).tolist() == expected
    written = frame.assign(age=frame.age.astype(str))
    assert network.predict(written).tolist() == expected


WRONG = {
    "missing column": (lambda X: X[["sex"]], "X has no column 'age'; it has 'sex'"),
    "text among numbers": (
        lambda X: X.assign(age="old"),
        "'age' of .*X has 'old' in row 0 ",
    ),
    "gap": (
        lambda X: X.assign(sex=[*X.sex[:3], None, *X.sex[4:]]),
        r"Column 'sex' of X has no value in row 3 .*impute",
    ),
    "another number of columns": (lambda X: X.to_numpy()[:, :1], "X has 1 columns.*trained on 2"),
    "no table": (lambda X: X["age"], "X has shape"),
}


@pytest.mark.parametrize(("spoil", "message"), WRONG.values(), ids=WRONG)
def test_frames__what_does_not_fit_is_named(whole, spoil, message):
    frame, network = whole
    damaged = spoil(frame)
    with pytest.raises(DataError, match=message):
        network.predict(damaged)
    if isinstance(damaged, pd.DataFrame):
        with pytest.raises(DataError, match=message):
            network.predict(dd.from_pandas(damaged.reset_index(drop=True), npartitions=1)).compute()


def test_frames__gap_is_refused_unless_it_is_filled(table):
    problem = r"X has no value in some rows of 2 columns: 'age' 7, 'sex' 3.*missing"
    for missing, message in (("error", problem), ("drop", "missing is 'drop'")):
        with pytest.raises(ValueError, match=message):
            clone(NETWORK).set_params(missing=missing).fit(*table)


def test_frames__gaps_of_arrays_are_filled():
    X = np.random.default_rng(0).normal(size=(N, 3))
    X[::10, 1] = np.nan
    y = (X[:, 0] > 0).astype(int)
    network = clone(NETWORK).fit(X, y)
    assert network.feature_names_.tolist() == ["x0", "x1", "x1_missing", "x2"]
    expected = network.decision_function(X)
    filled = np.column_stack([np.where(np.isnan(X), np.nanmedian(X[:, 1]), X), np.isnan(X[:, 1])])
    rows = filled[:, [0, 1, 3, 2]]
    by_hand = clone(NETWORK).set_params(missing="error").fit(rows, y)
    np.testing.assert_allclose(by_hand.decision_function(rows), expected)
    np.testing.assert_array_equal(network.decision_function(zarr.array(X)), expected)
    lazy = da.from_array(X, (17, 2))
    # Some kernels of BLAS round products of few rows in another way.
    np.testing.assert_allclose(network.decision_function(lazy).compute(), expected, rtol=1e-12)
    again = clone(NETWORK).fit(lazy, da.from_array(y, 20))
    np.testing.assert_allclose(again.decision_function(X), expected, rtol=1e-12)


@pytest.mark.slow
def test_frames__every_estimator(table):
    frame, labels = table
    numbers = pd.Series(frame["children"] * 2.0 + (frame["sex"] == "f"), name="visits")
    # Enough centres for columns that say nothing of the visits, such as the day of the week.
    regressor = NRBFNRegressor(alpha=1e-6, scale="standard", missing="impute", basis_size=40)
    regressor.fit(frame, numbers)
    assert regressor.score(frame, numbers) > 0.9
    lazy = dd.from_pandas(frame, npartitions=3), dd.from_pandas(numbers, npartitions=3)
    assert regressor.score(*lazy) == pytest.approx(regressor.score(frame, numbers), rel=1e-12)
    tuned = NRBFNClassifierCV(effort="quick", folds=2, missing="impute").fit(frame, labels)
    assert tuned.predict(frame).shape == (N,)
    coordinates = DiffusionMap(scale="standard", missing="impute").set_output(transform="pandas")
    shown = coordinates.fit(frame).transform(frame)
    assert shown.index.equals(frame.index)
    assert DiffusionMap(missing="impute").fit(lazy[0]).transform(frame).shape == (N, 2)


def test_set_output__predictions_have_the_index_of_their_rows(table, network):
    frame, _ = table
    shown = clone(network).set_output(predict="pandas")
    shown._take_model(network._model)
    labels, shares = shown.predict(frame), shown.predict_proba(frame)
    assert labels.index.equals(frame.index)
    assert shares.index.equals(frame.index)
    names = [labels.name, *shares, shown.decision_function(frame).name]
    assert names == ["label", "probability_no", "probability_yes", "score_yes"]
    np.testing.assert_array_equal(labels, network.predict(frame))
    assert shown.predict(pl.from_pandas(frame)).index.tolist() == list(range(N))
    assert isinstance(shown.set_output(predict="polars").predict_proba(frame), pl.DataFrame)
    assert isinstance(shown.set_output(predict="default").predict(frame), np.ndarray)
    with pytest.raises(ParameterError, match="predict is 'frame'"):
        shown.set_output(predict="frame")


def test_score__of_dask_arrays():
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(N, 3)), rng.random(N)
    numbers = X.sum(axis=1) ** 2 + 1e6
    labels = np.where(rng.random(N) < 0.3, "a", np.where(numbers > 1e6 + 2, "b", "c"))
    network = NRBFNClassifier(basis=X[:9], alpha=1e-3).fit(X, labels)
    regressor = NRBFNRegressor(alpha=1e-3).fit(X, numbers)
    lazy, y = da.from_array(X, (23, 2)), da.from_array(labels, 30)
    for given, blocks in ((None, None), (weights, da.from_array(weights, 11))):
        expected = accuracy_score(labels, network.predict(X), sample_weight=given)
        assert network.score(lazy, y, blocks) == pytest.approx(expected, rel=1e-12)
        expected = r2_score(numbers, regressor.predict(X), sample_weight=given)
        assert regressor.score(lazy, numbers, blocks) == pytest.approx(expected, rel=1e-6)


def test_score__of_dask_frames_in_any_blocks(table, network):
    frame, labels = table
    lazy, series = dd.from_pandas(frame, npartitions=3), pd.Series(labels)
    expected = network.score(frame, labels)
    assert network.score(lazy, labels) == network.score(lazy, series) == expected
    assert network.score(lazy, dd.from_pandas(series, npartitions=2)) == expected
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        network.score(lazy, labels[:-1])


def test_frames__rows_of_weight_0_fill_no_gaps(table):
    frame, labels = table
    weights = np.ones(N)
    weights[:20] = 0
    odd = frame.copy()
    odd.loc[odd.index[:20], "age"] = 1e6
    odd.loc[odd.index[:20], "sex"] = "x"
    found = clone(NETWORK).fit(odd, labels, weights)
    expected = clone(NETWORK).fit(frame[20:], labels[20:])
    assert found.schema_ == expected.schema_
    np.testing.assert_array_equal(found.predict(frame), expected.predict(frame))


def test_missing__is_imputed_by_default_if_the_fit_has_gaps(table):
    X, y = table
    fitted = clone(NETWORK).set_params(missing="auto").fit(X, y)
    expected = clone(NETWORK).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(fitted.predict_proba(X), expected)
    numbers = np.arange(40.0).reshape(20, 2)
    whole = NRBFNClassifier().fit(numbers, np.arange(20) % 2)
    assert whole.schema_ is None
    numbers[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        whole.predict(numbers)
    assert NRBFNClassifier().fit(numbers, np.arange(20) % 2).schema_.fills
