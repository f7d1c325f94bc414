"""Coordinates of rows by eigenfunctions of a basis."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, Model, describe, evaluate_dataset, predict_dataset
from dask_nrbfn.commands.fit import fit_dataset, refresh_run
from dask_nrbfn.commands.update import Judge, update_run
from dask_nrbfn.errors import (
    DataError,
    NRBFNError,
    ParameterError,
    RunMismatchError,
)
from dask_nrbfn.estimators import NRBFNClassifier, NRBFNRegressor
from dask_nrbfn.report.page import write_report
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.group import open_group
from tests.cli.program import json_of, refuse, succeed
from tests.reference import reference_activations, reference_distances
from tests.stages.stopping import CountingEngine
from tests.tables import spirals, surfaces, write_table

PARAMS = FitParams(basis_size=40, width_factor=0.3, components=3)
ENGINE = InlineEngine()


def embed(dataset, params=PARAMS, place=None, **options):
    return fit_dataset(dataset, place or MemoryStore(), params, ENGINE, embeds=True, **options)


def table(place=None, n_rows=200, **options):
    return write_table(place or MemoryStore(), spirals(n_rows)[0], **options)


def test_embed__coordinates_are_those_of_the_eigenfunctions():
    X = spirals(200)[0]
    run = embed(table())
    model, basis = Model.load(run.location), run.read("basis/values")
    assert model.width == pytest.approx(0.3 * reference_distances(X, basis).mean())
    K = np.exp(-(reference_distances(basis, basis) ** 2) / (2 * model.width**2))
    values, vectors = np.linalg.eig(K / K.sum(axis=1, keepdims=True))
    order = np.argsort(-values.real)[1:4]
    expected = reference_activations(X, basis, model.width) @ vectors[:, order].real
    found = model.scores(X)
    for one, two in zip(found.T, expected.T, strict=True):
        assert abs(np.corrcoef(one, two)[0, 1]) == pytest.approx(1, abs=1e-10)
    np.testing.assert_allclose(run.read("components/eigenvalues")[1:], values.real[order])


@pytest.mark.slow
def test_embed__rows_without_a_label_lie_beside_the_others(tmp_path):
    X, y = spirals(200)
    partly = np.where(np.arange(200) % 3 == 0, y, -1)
    dataset = write_table(tmp_path / "data", X, partly, unlabelled=-1)
    run = embed(dataset, place=tmp_path / "run")
    np.testing.assert_array_equal(run.read("model/sample/codes"), partly)
    expected = Model.load(embed(table()).location)
    np.testing.assert_allclose(Model.load(run.location).scores(X), expected.scores(X), atol=1e-9)
    write_report(run, tmp_path / "page.html")
    assert "The first two coordinates of 200 rows" in (tmp_path / "page.html").read_text()


def test_embed__rows_with_several_numeric_targets_have_a_report(tmp_path):
    X, Y = surfaces(90)
    run = embed(write_table(MemoryStore(), X, target=Y))
    write_report(run, tmp_path / "page.html")
    assert "The first two coordinates of 90 rows" in (tmp_path / "page.html").read_text()


def test_embed__the_basis_of_a_fit_with_labels():
    labelled = write_table(MemoryStore(), *spirals(200))
    assert "neighbors" in embed(labelled, replace(PARAMS, basis="sknn")).stages


def test_embed__predictions_are_the_coordinates(tmp_path):
    dataset = table(tmp_path / "data")
    run = embed(dataset, place=tmp_path / "run")
    predict_dataset(run.location, dataset, tmp_path / "out.zarr", ENGINE)
    predict_dataset(run.location, dataset, tmp_path / "out.parquet", ENGINE)
    expected = Model.load(run.location).scores(spirals(200)[0])
    group = open_group(tmp_path / "out.zarr", kind="predictions")
    np.testing.assert_array_equal(get_array(group, "values")[:], expected)
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.column_names == ["component_1", "component_2", "component_3"]
    np.testing.assert_array_equal(written["component_2"].to_numpy(), expected[:, 1])
    assert describe(tmp_path / "run")["complete"]
    assert describe(tmp_path / "out.zarr")["target_names"] == written.column_names


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"basis": "sknn"}, ParameterError, "basis=sknn needs class labels, but"),
        ({"features": "plain"}, ParameterError, "components is 3, but features is plain"),
        ({"basis_size": 3}, ParameterError, "Set components to at most 2"),
        ({"components": 200, "basis_size": None}, DataError, "X has n_samples = 200, too few"),
    ],
)
def test_embed__refuses_at_once(changes, error, message):
    place = MemoryStore()
    with pytest.raises(error, match=message):
        fit_dataset(table(), place, replace(PARAMS, **changes), CountingEngine(0), embeds=True)
    assert not place._store_dict


def test_embed__a_run_is_of_one_kind():
    X, y = spirals(100)
    dataset = write_table(MemoryStore(), X, y)
    run = embed(dataset, place=MemoryStore())
    with pytest.raises(RunMismatchError, match=r"begun by embed\. Finish the run with embed"):
        fit_dataset(dataset, run.location, run.chosen_params, ENGINE)
    other = replace(run.chosen_params, alpha=1e-6)
    fitted = fit_dataset(dataset, MemoryStore(), other, ENGINE)
    with pytest.raises(RunMismatchError, match="begun by fit"):
        embed(dataset, other, fitted.location)


def test_embed__has_no_rows_that_join_or_leave_and_nothing_to_judge(tmp_path):
    X, y = spirals(100)
    dataset = write_table(tmp_path / "data", X, y)
    run = embed(dataset, place=tmp_path / "run")
    for change in (
        lambda: update_run(run.location, dataset, ENGINE),
        lambda: refresh_run(run.location, [], ENGINE, judge=Judge(dataset, 0.1)),
    ):
        with pytest.raises(ParameterError, match="is an embedding"):
            change()
    with pytest.raises(NRBFNError, match="is an embedding, which learns no targets"):
        evaluate_dataset(run.location, dataset, ENGINE)
    for network in (NRBFNRegressor, NRBFNClassifier):
        with pytest.raises(NRBFNError, match="Load it with DiffusionMap"):
            network.load(run.location)
    eigenvalues = run.read("components/eigenvalues")
    refreshed = refresh_run(run.location, [], ENGINE)
    assert refreshed.embeds
    np.testing.assert_array_equal(refreshed.read("components/eigenvalues"), eigenvalues)


def test_embed__on_the_command_line(tmp_path):
    table(tmp_path / "data", n_rows=100)
    options = ("--basis-size", 20, "--width-factor", 0.3)
    embedding = ("embed", tmp_path / "data", tmp_path / "run", "--components", 3, *options)
    printed = succeed(*embedding, "--output", tmp_path / "out.parquet")
    assert "components         3\n" in printed
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 100
    told = json_of(*embedding)
    assert told["complete"]
    assert told["components"] == 3
    problem, _ = refuse(*embedding, "--output", tmp_path / "out.parquet")
    assert "exists" in problem
    succeed(*embedding, "--output", tmp_path / "out.parquet", "--overwrite")
    succeed("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert "--components is 0." in refuse("embed", *embedding[1:3], "--components", 0)[0]
