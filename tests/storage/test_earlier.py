"""What earlier versions wrote is opened, finished and carried on.

`earlier/format_N.tar.xz` holds, of the last version that wrote format N and no newer one: a dataset
and `more` rows, a run that was `fitted` and updated with them, one that was `tuned`, its model, a
fit of the dataset that was stopped in its moments, and the scores of seven rows with each of them.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from dask_nrbfn.commands.check import check_dataset
from dask_nrbfn.commands.describe import describe
from dask_nrbfn.commands.fit import fit_dataset, tune_dataset
from dask_nrbfn.commands.refresh import refresh_run
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.commands.version import read_latest_moments
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.report import run_table, tuning_table
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.stages.stopping import CountingEngine
from tests.tables import spirals

FORMATS = sorted(Path(__file__).with_name("earlier").glob("*.tar.xz"))


@pytest.fixture(params=FORMATS, ids=lambda path: path.name.partition(".")[0])
def earlier(request, tmp_path):
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def assert_scores(place, name):
    scores = json.loads((place / "scores.json").read_text())[name]
    found = Model.load(place / name).scores(spirals(7, seed=3)[0])
    np.testing.assert_allclose(found, scores, rtol=1e-6, atol=1e-8)


def test_earlier__there_are_some():
    assert [path.name for path in FORMATS] == ["format_3.tar.xz", "format_4.tar.xz"]


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
