import logging
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from zarr.storage import MemoryStore

from dask_nrbfn import (
    Dataset,
    Model,
    Run,
)
from tests.report.conftest import TARGETS
from tests.tables import spirals, write_table


def assert_short(shown, n_lines):
    lines = repr(shown).split("\n")
    assert len(lines) == n_lines
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith(f"<dask_nrbfn.{type(shown).__name__}> ")
    return lines


def test_objects__dataset(dataset):
    first, second, place = assert_short(dataset, 3)
    assert first == "<dask_nrbfn.Dataset> 300 rows x 4 features, 3 classes"
    assert second == "  float64, 9.38 kiB in 1 chunk of 300 rows"
    assert place.strip().removeprefix("...") in str(dataset.location)


def test_objects__text_is_printable_and_is_cut(tmp_path):
    names = ["\x1b[31mred\n", *(f"a rather long name of a target {i}" for i in range(8))]
    X = np.random.default_rng(0).normal(size=(20, 3))
    Y = pd.DataFrame(np.tile(X[:, :1], 9), columns=names)
    place = tmp_path / ("deep" * 30) / "t.zarr"
    place.parent.mkdir()
    first, _, last = assert_short(write_table(place, X, target=Y), 3)
    assert "?[31mred?" in first
    assert first.endswith(" ...")
    assert last.endswith("deep/t.zarr")


def test_objects__rows_without_labels(tmp_path):
    X, y = spirals(50)
    y[:20] = -1
    dataset = write_table(tmp_path / "t.zarr", X, y, unlabelled=-1)
    assert "50 rows x 4 features, 3 classes, 20 rows without a label" in repr(dataset)
    assert "30 rows x 4 features, 3 classes" in repr(dataset.of_labelled())
    none = write_table(tmp_path / "none.zarr", X)
    assert "no targets" in repr(none)


def test_objects__runs(fitted, tuned, regression):
    assert "3 classes" in repr(fitted)
    assert "  finished, basis of " in repr(fitted)
    assert "held-out" not in repr(fitted)
    assert f"held-out error {100 * tuned.stages['validation']['error_rate']:.2f} %" in repr(tuned)
    assert "held-out R2 0." in repr(regression)
    for run in (fitted, tuned, regression):
        assert_short(run, 3)


def test_objects__unfinished_runs(unfinished, fitted):
    unfinished = Run.open(unfinished.location)
    assert f"not finished, {len(unfinished.stages)} stages" in repr(unfinished)
    begun = replace(fitted, attributes=fitted.attributes | {"stages": {}})
    assert "  not finished, 0 stages, 0.0 s" in repr(begun)


def test_objects__models(tuned, regression):
    model = Model.load(tuned.location)
    assert_short(model, 2)
    assert f"basis of {model.n_basis} rows, width {model.width:.4g}" in repr(model)
    of_numbers = Model.load(regression.location)
    assert f"targets {', '.join(TARGETS)}" in repr(of_numbers)


def test_objects__read_nothing(fitted, dataset, tmp_path):
    copies = [shutil.copytree(each.location, tmp_path / str(i)) for i, each in enumerate(
        (dataset, fitted)
    )]  # fmt: skip
    shown = [Dataset.open(copies[0]), Run.open(copies[1])]
    before = [repr(each) for each in shown]
    for copy in copies:
        shutil.rmtree(copy)
    assert [repr(each) for each in shown] == before


def test_objects__sparse():
    X = csr_array(np.eye(40, 30))
    dataset = write_table(MemoryStore(), X, np.arange(40) % 2, chunk_rows=10)
    assert "float64, sparse, " in repr(dataset)
    assert "in 4 chunks of 10 rows" in repr(dataset)


def test_objects__damaged_metadata_leaves_the_place(fitted, caplog):
    damaged = replace(fitted, attributes={"stages": {"basis": {"n_basis": "many"}}})
    damaged = replace(damaged, location="/data/<b>.zarr")
    with caplog.at_level(logging.DEBUG, "dask_nrbfn"):
        assert repr(damaged) == "<dask_nrbfn.Run> /data/<b>.zarr"
    assert "no representation of" in caplog.text
