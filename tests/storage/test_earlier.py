"""What earlier versions wrote is opened, finished and carried on.

`earlier/format_N.tar.xz` was written by a version that knew format N and no newer one (format 7:
the last version before this test).

- Formats 3 and 4 hold a dataset and `more` rows, a run that was `fitted` and updated with them, one
  that was `tuned`, its model, a fit of the dataset that was stopped in its moments, and the scores
  of seven rows.
- Format 8 holds a dataset, a run that was `tuned`, its model, and the probabilities of seven rows.
- Formats 5 to 7 and 9 hold a dataset of 40 rows, a fit of it, its model, and the scores of its
  first seven rows. 5 has a schema that fills missing values, 6 has rows in CSR that become
  coordinates, the rows of 7 stay in an AnnData store, and in 9 cells have networks.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import zarr

from dask_nrbfn.commands.check import check_dataset
from dask_nrbfn.commands.describe import describe
from dask_nrbfn.commands.fit import fit_dataset, tune_dataset
from dask_nrbfn.commands.refresh import refresh_run
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.commands.version import read_latest_moments
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.report import run_table, tuning_table
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.format import READ_VERSIONS
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.referenced import ReferencedRows
from dask_nrbfn.storage.run import Run
from tests.stages.stopping import CountingEngine
from tests.storage.written import edit_attributes
from tests.tables import spirals

EARLIER = Path(__file__).with_name("earlier")


def extracted(number, place):
    with tarfile.open(EARLIER / f"format_{number}.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.fixture(params=[3, 4], ids=lambda number: f"format_{number}")
def earlier(request, tmp_path):
    return extracted(request.param, tmp_path)


def assert_scores(place, name):
    scores = json.loads((place / "scores.json").read_text())[name]
    found = Model.load(place / name).scores(spirals(7, seed=3)[0])
    np.testing.assert_allclose(found, scores, rtol=1e-6, atol=1e-8)


def test_earlier__a_temperature_alone_has_no_biases(earlier):
    stored = dict(zarr.open_group(earlier / "tuned" / "model").attrs)
    calibration = Model.load(earlier / "tuned").calibration
    assert calibration == Calibration(stored["temperature"])
    scores = np.array([[0.2, 0.5, 0.3]])
    powers = np.exp(scores / stored["temperature"])
    np.testing.assert_allclose(
        Model.load(earlier / "tuned").probabilities(scores), powers / powers.sum(), rtol=1e-12
    )


@pytest.mark.parametrize("name", ["tuned", "model"])
def test_earlier__biases(tmp_path, name):
    place = extracted(8, tmp_path)
    model = Model.load(place / name)
    assert len(model.calibration.biases) == 3
    probabilities = model.probabilities(model.scores(spirals(7, seed=3)[0]))
    stored = json.loads((place / "probabilities.json").read_text())
    np.testing.assert_allclose(probabilities, stored, rtol=1e-6, atol=1e-8)
    run, engine = Run.open(place / "tuned"), CountingEngine()
    tune_dataset(Dataset.open(place / "data"), place / "tuned", run.params, run.tuning, engine)
    assert set(engine.done) == {"model"}


def test_earlier__there_is_one_of_every_format():
    names = {path.name for path in EARLIER.iterdir()}
    assert names == {f"format_{number}.tar.xz" for number in READ_VERSIONS}


@pytest.fixture(params=[5, 6, 7, 9])
def expanded(request, tmp_path):
    """Return the place of what a format holds, and the number of the format."""
    place = extracted(request.param, tmp_path)
    if request.param == 7:
        # The dataset records where the rows were when it was written.
        edit_attributes(place / "data" / "X", place=str(place / "cells.zarr"), checked=True)
    return place, request.param


def test_earlier__datasets_and_models_of_later_formats(expanded):
    place, number = expanded
    dataset = Dataset.open(place / "data")
    assert dataset.n_rows == 40
    assert not check_dataset(dataset).problems
    assert (dataset.is_mixed, dataset.is_sparse) == (number == 5, number == 6)
    assert isinstance(dataset.X, ReferencedRows) == (number == 7)
    versions = {zarr.open_group(place / name).attrs["format_version"] for name in ("data", "model")}
    assert max(versions) == number
    scores = json.loads((place / "scores.json").read_text())
    rows = dataset.take(np.arange(7))
    for name in ("model", "fitted"):
        found = Model.load(place / name).scores(rows)
        np.testing.assert_allclose(found, scores, rtol=1e-6, atol=1e-8)


def test_earlier__runs_of_later_formats_are_found_finished(expanded):
    place, _ = expanded
    run, engine = Run.open(place / "fitted"), CountingEngine()
    fit_dataset(Dataset.open(place / "data"), place / "fitted", run.params, engine)
    assert set(engine.done) == {"model"}
    assert "eps" in run_table(run)
    assert describe(place / "fitted")["n_rows"] == 40


@pytest.mark.parametrize("name", ["fitted", "tuned", "model"])
def test_earlier__models_predict_the_same(earlier, name):
    assert_scores(earlier, name)
    assert Model.load(earlier / name).classes.tolist() == ["ash", "birch", "cedar"]
    assert Model.load(earlier / name).schema is None


def test_earlier__datasets_are_sound(earlier):
    for name, n_rows in (("data", 60), ("more", 20)):
        assert not check_dataset(Dataset.open(earlier / name)).problems
        assert describe(earlier / name)["n_rows"] == n_rows
        assert Dataset.open(earlier / name).schema is None


def test_earlier__a_fit_that_was_stopped_is_finished(earlier):
    begun, engine = Run.open(earlier / "begun"), CountingEngine()
    fit_dataset(Dataset.open(earlier / "data"), earlier / "begun", begun.params, engine)
    # Sums of other arrays than before, as those of format 3, are summed again.
    n_missing = 2 if begun.attributes["format_version"] == 3 else 1
    assert (engine.done["columns"], engine.done["moments"]) == (0, n_missing)
    assert_scores(earlier, "begun")


def test_earlier__a_tuned_run_is_found_finished(earlier):
    run, engine = Run.open(earlier / "tuned"), CountingEngine()
    data = Dataset.open(earlier / "data")
    tune_dataset(data, earlier / "tuned", run.params, run.tuning, engine)
    assert set(engine.done) == {"model"}
    assert "eps" in run_table(run)
    assert tuning_table(run)


def test_earlier__an_updated_run_is_updated_and_refreshed(earlier):
    place, more = earlier / "fitted", Dataset.open(earlier / "more")
    assert describe(place)["version"] == 1
    update_run(place, more, InlineEngine(), forget=True)
    once = Run.open(earlier / "begun")
    fit_dataset(Dataset.open(earlier / "data"), once.location, once.params, InlineEngine())
    np.testing.assert_allclose(
        read_latest_moments(place).packed_gram,
        read_latest_moments(once.location).packed_gram,
        rtol=1e-9,
    )
    assert refresh_run(place, [more], InlineEngine()).n_rows == 20
