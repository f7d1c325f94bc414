from dataclasses import fields, replace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.choices import LOSSES
from dask_nrbfn.errors import DamagedDataError, ExistsError, MissingDataError
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.cell_tree import CellTree
from dask_nrbfn.numeric.intervals import Intervals
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.params import FitParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.storage.written import make_model, table, text, write_dataset

CLASSES = {
    "int": np.array([-(2**62), -1, 0, 2**62]),
    "bool": np.array([False, True]),
    "float": np.array([-1e300, -0.5, 0.1 + 0.2, 5e-324]),
    "str": np.array(["", "a\nb", "ß", "日本🙂"]),
    "StringDType": text(["", "a\nb", "ß", "日本🙂"]),
    "one": np.array(["only"]),
}
BIASED = Calibration(0.3, 1 / 3, (0.1 + 0.2, -1e-17, 2.0))


def assert_same_bits(loaded, model):
    """A digest is that of the bits of all arrays, and of what predicts beside them."""
    assert loaded.digest() == model.digest()
    for name in ("params", "calibration", "fitting_error", "spectral_risk"):
        assert getattr(loaded, name) == getattr(model, name)


@pytest.mark.parametrize("kind", CLASSES)
def test_model__round_trip(tmp_path, kind):
    classes = CLASSES[kind]
    model = make_model(classes, feature_names=("a", "ü", "", "d"), calibration=BIASED)
    model.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    assert_same_bits(loaded, model)
    assert loaded.classes.tolist() == classes.tolist()
    assert loaded.classes.dtype.kind == {"T": "U"}.get(classes.dtype.kind, classes.dtype.kind)
    X = table(6, 4)
    assert loaded.scores(X).tobytes() == model.scores(X).tobytes()


def test_model__inside_a_run(tmp_path):
    run = Run.start(
        tmp_path / "run", write_dataset(MemoryStore(), table(5)), Spec.of(FitParams()), {}
    )
    with pytest.raises(DamagedDataError, match="has no model yet"):
        Model.load(tmp_path / "run")
    run.group("model")
    with pytest.raises(DamagedDataError, match="has no model yet"):
        Model.load(tmp_path / "run")
    model = make_model()
    model.write(run.group("model"))
    assert_same_bits(Model.load(tmp_path / "run"), model)


def test_probabilities__without_a_calibration_are_clipped_scores():
    scores = np.array([[0.25, 0.75, -0.5], [2.0, 0.5, 0.5], [-1.0, -2.0, 0.0], [1.0, 5.0, -9.0]])
    probabilities = make_model().probabilities(scores)
    third = [1 / 3] * 3
    expected = [[0.25, 0.75, 0.0], [0.5, 0.25, 0.25], third, [0.5, 0.5, 0.0]]
    np.testing.assert_allclose(probabilities, expected, rtol=1e-6)


# Numbers that clipping, saturation or rounding makes equal.
TIED = st.sampled_from(
    [-90.0, -2.0, -1.0, 0.0, 1e-17, 0.5, 0.5 + 1e-16, 1.0, 1.5, 40.0, 41.0, 90.0]
)


@given(
    scores=st.lists(st.lists(TIED | st.floats(-2, 2), min_size=3, max_size=3), min_size=1),
    loss=st.sampled_from(tuple(LOSSES)),
    calibration=st.sampled_from([None, *map(Calibration, (1e-3, 0.3, 1e3)), BIASED]),
)
def test_probabilities__the_largest_is_that_of_the_label(scores, loss, calibration):
    scores = np.array(scores)
    model = make_model(calibration=calibration, params=FitParams(loss=loss))
    probabilities = model.probabilities(scores)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), scores.argmax(axis=1))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-14)
    assert probabilities.min() >= 0.0


# Another value of every field of a model, and of every parameter that predicts; those of None are
# no part of what a model predicts.
OTHER_FIELDS = {
    "basis": table(3, 4, seed=8),
    "width": 0.5,
    "weights": table(3, 3, seed=8),
    "classes": np.array([1, 2, 4]),
    "scaling": Scaling("unit", np.zeros(4), np.ones(4)),
    "params": FitParams(kernel="laplacian").resolve_auto(numbers=False),
    "calibration": Calibration(0.5, 0.1, (0.0, 0.1, -0.1)),
    "feature_names": ("a", "b", "c", "e"),
    "target_names": ("a", "b", "c"),
    "intercept": np.ones(3),
    "target_range": np.array([[0.0] * 3, [1.0] * 3]),
    "schema": Schema((Column("a", "number"),)),
    "fitting_error": None,
    "spectral_risk": None,
    "places": None,
    "read_as": None,
    "cells": CellNetworks(
        CellTree.grown(np.arange(4.0)[:, None] * np.ones(4), most_rows=2),
        starts=np.array([0, 1, 3]),
        widths=np.ones(2),
        roots=np.ones((2, 4)),
        intercepts=np.zeros((2, 3)),
        n_rows=np.array([2, 2]),
    ),
    "intervals": Intervals(np.array([[1.0], [2.0]]), far=3.0),
}
OTHER_PARAMS = {
    "features": "plain",
    "kernel": "laplacian",
    "loss": "logistic",
}


@pytest.mark.parametrize("field", fields(Model), ids=lambda field: field.name)
def test_digest__of_every_field_that_predicts(field):
    model = make_model(params=FitParams())
    other, unlike = OTHER_FIELDS[field.name], {"places": np.arange(3), "read_as": {"x": "X"}}
    changed = replace(
        model, **{field.name: unlike.get(field.name, 0.25) if other is None else other}
    )
    assert (changed.digest() != model.digest()) == (other is not None)


def test_digest__of_every_parameter_that_predicts():
    model = make_model(params=FitParams())
    assert len(OTHER_PARAMS) == len(model.params.predicting)
    for name, value in OTHER_PARAMS.items():
        changed = replace(model, params=FitParams(**{name: value}).resolve_auto(numbers=False))
        assert changed.digest() != model.digest()
    assert (
        replace(model, params=FitParams(alpha=1e-3).resolve_auto(numbers=False)).digest()
        == model.digest()
    )


@pytest.mark.parametrize("kind", ["int", "str"])
def test_save__plain_codecs_only(tmp_path, kind):
    make_model(CLASSES[kind]).save(tmp_path / "model")
    names = set()
    for _, array in zarr.open_group(str(tmp_path / "model"), mode="r").arrays():
        names |= {codec["name"] for codec in array.metadata.to_dict()["codecs"]}
    assert names <= {"bytes", "vlen-utf8", "crc32c"}
    assert "crc32c" in names
    with pytest.raises(ExistsError):
        make_model(CLASSES[kind]).save(tmp_path / "model")


def test_load__nothing_or_something_else(tmp_path):
    with pytest.raises(MissingDataError, match=r"there is no run or model at .*nowhere"):
        Model.load(tmp_path / "nowhere")
    write_dataset(tmp_path / "data", table(5))
    with pytest.raises(DamagedDataError, match=r"not a dask_nrbfn\.run or model"):
        Model.load(tmp_path / "data")
