"""Fits, predictions and updates of tables whose stored values are not their features."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn import Dataset, Model, Run, evaluate_dataset, fit_dataset, refresh_run, update_run
from dask_nrbfn.commands.predict import predict_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.columns import read_statistics
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.group import open_group
from tests.schemas import COLUMNS, FILLED, OTHER_FILLS, stored_rows, write_rows

N = 120
X = stored_rows(N)
Y = (np.nan_to_num(X[:, 0]) + X[:, 4] > 0).astype(np.int64) + (X[:, 2] == 1)
PARAMS = FitParams(basis="random", basis_size=20, alpha=1e-6, scale="standard", n_parts=2)
ENGINE = InlineEngine()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("fitted")
    dataset = write_rows(place / "data", X[:80], Y[:80])
    write_rows(place / "more", X[80:], Y[80:], schema=OTHER_FILLS)
    fit_dataset(dataset, place / "run", PARAMS, ENGINE)
    return place


def scores(place):
    return get_array(open_group(place, kind="predictions"), "scores")[:]


def test_fit__scales_the_indicators_of_a_category_alike(fitted):
    run, model = Run.open(fitted / "run"), Model.load(fitted / "run")
    statistics = read_statistics(run)
    expected = Scaling.from_statistics("standard", statistics, FILLED.groups)
    np.testing.assert_array_equal(model.scaling.scale, expected.scale)
    assert (model.scaling.scale != Scaling.from_statistics("standard", statistics).scale).any()


def test_predict__takes_the_filling_of_the_model(tmp_path, fitted):
    more, features = Dataset.open(fitted / "more"), FILLED.expand(X[80:])
    predict_dataset(fitted / "run", more, tmp_path / "out", ENGINE)
    model = Model.load(fitted / "run")
    np.testing.assert_allclose(scores(tmp_path / "out"), model.scores(features), rtol=1e-12)
    expected = (model.classes[model.scores(features).argmax(axis=1)] != Y[80:]).sum()
    assert evaluate_dataset(fitted / "run", more, ENGINE).n_errors == expected


def test_update__takes_the_filling_of_the_model(tmp_path, fitted):
    models = []
    for name, schema in (("same", FILLED), ("other", OTHER_FILLS)):
        run = Run.open(shutil.copytree(fitted / "run", tmp_path / name))
        more = write_rows(tmp_path / f"rows-{name}", X[80:], Y[80:], schema=schema)
        update_run(run.location, more, ENGINE)
        record = Run.open(run.location).attributes["versions"][0]
        assert record["members"][0]["dataset"] == str(more.location)
        models.append(Model.load(run.location))
    np.testing.assert_array_equal(models[0].weights, models[1].weights)
    assert models[1].schema == FILLED


@pytest.mark.slow
@pytest.mark.parametrize("schema", [FILLED, OTHER_FILLS])
def test_refresh__of_all_rows_has_the_filling_of_the_run(tmp_path, fitted, schema):
    data = Dataset.open(fitted / "data").encoded_by(schema)
    run = fit_dataset(data, tmp_path / "run", PARAMS, ENGINE)
    update_run(run.location, Dataset.open(fitted / "more"), ENGINE)
    refresh_run(run.location, [], ENGINE)
    rows = write_rows(tmp_path / "all", X, Y, schema=schema)
    whole = fit_dataset(rows, tmp_path / "whole", PARAMS, ENGINE)
    one, other = Model.load(run.location), Model.load(whole.location)
    np.testing.assert_array_equal(one.basis, other.basis)
    assert one.schema == other.schema == schema


@pytest.mark.slow
def test_tune__judges_rows_by_the_filling_of_the_training_rows(tmp_path, fitted):
    data, tuning = Dataset.open(fitted / "data"), TuneParams(alphas=(1e-8, 1e-4))
    figures = []
    for name, schema in (("same", FILLED), ("other", OTHER_FILLS)):
        judged = write_rows(tmp_path / f"rows-{name}", X[80:], Y[80:], schema=schema)
        run = fit_dataset(data, tmp_path / name, PARAMS, ENGINE, tuning=tuning, validation=judged)
        figures.append(run.stages["validation"]["path"])
    assert figures[0] == figures[1]


def test_predict__of_other_columns_says_which(fitted):
    columns = (*COLUMNS[:2], replace(COLUMNS[2], categories=("f", "n")), *COLUMNS[3:])
    other = write_rows(fitted / "other", X, Y, schema=replace(FILLED, columns=columns))
    for use in (evaluate_dataset, update_run):
        with pytest.raises(DataError, match="has a column 'sex' of other categories, such as 'm'"):
            use(fitted / "run", other, ENGINE)
