"""Networks that are fitted to cubes of xarray, and predict them."""

import sys

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn import (
    DiffusionMap,
    NRBFNClassifier,
    NRBFNClassifierCV,
    NRBFNError,
    NRBFNRegressor,
)
from dask_nrbfn.errors import ParameterError
from tests.scenes import BANDS, CLASSES, drawn_scene, pixels_of, row_by_row

OPTIONS = {"n_neighbors": 5, "alpha": 1e-6}


@pytest.fixture(scope="module")
def scene():
    return drawn_scene()


@pytest.fixture(scope="module")
def network(scene):
    return NRBFNClassifier(**OPTIONS).fit(scene, "cover", feature_dim="band")


@pytest.fixture(scope="module")
def expected(scene, network):
    return row_by_row(network, scene["reflectance"])


def labelled_rows(scene):
    """Return rows and labels of the pixels that have all of their features and a label."""
    rows = pixels_of(scene["reflectance"])
    labels = scene["cover"].broadcast_like(scene["reflectance"].isel(band=0)).to_numpy().ravel()
    kept = ~np.isnan(labels) & rows.notna().all(axis=1)
    return rows[kept], labels[kept].astype(int)


def test_fit__pixels_are_rows(scene, network):
    rows, labels = labelled_rows(scene)
    expected = NRBFNClassifier(**OPTIONS).fit(rows, labels)
    assert network.classes_.tolist() == [1, 2, 3]
    assert network.feature_names_in_.tolist() == list(BANDS)
    np.testing.assert_allclose(network.width_, expected.width_, rtol=1e-12)
    np.testing.assert_allclose(
        network.decision_function(rows), expected.decision_function(rows), atol=1e-9
    )


@given(
    chunks=st.fixed_dictionaries(
        {"time": st.integers(1, 2), "band": st.integers(1, 3), "y": st.integers(1, 7)}
    ),
    order=st.permutations(["time", "band", "y", "x"]),
)
@settings(max_examples=4, deadline=None)
def test_predict__lazy_map_is_row_by_row(scene, network, expected, chunks, order):
    cube = scene["reflectance"].transpose(*order).chunk(chunks)
    result = network.predict(cube, feature_dim="band")
    others = [dim for dim in order if dim != "band"]
    assert result.dims == tuple(others)
    assert result.chunks == tuple(cube.chunksizes[dim] for dim in others)
    np.testing.assert_array_equal(result, expected.transpose(*others))


def test_predict__keeps_coordinates_and_what_lasts_of_the_attributes(scene, network):
    result = network.predict(scene["reflectance"].chunk(), feature_dim="band")
    assert {*result.coords} == {"time", "x", "lon", "spatial_ref"}
    assert result.attrs == {"grid_mapping": "spatial_ref", "sensor": "drawn"}
    assert result.name == "label"
    assert result.dtype == np.float64


def test_predict__in_memory(scene, network):
    result = network.predict(scene["reflectance"], feature_dim="band")
    assert isinstance(result.data, np.ndarray)
    lazy = network.predict(scene["reflectance"].chunk(x=4), feature_dim="band")
    xr.testing.assert_identical(result, lazy.compute())


def test_predict__graph_is_small(scene, network):
    import cloudpickle

    result = network.predict(scene["reflectance"].chunk(x=1), feature_dim="band")
    layers = [layer for name, layer in result.__dask_graph__().layers.items() if "predict" in name]
    assert layers
    assert sum(len(cloudpickle.dumps(layer)) for layer in layers) < 20_000


def test_predict_proba__classes_lie_where_the_bands_were(scene, network):
    cube = scene["reflectance"].chunk(y=3, band=2)
    shares = network.predict_proba(cube, feature_dim="band")
    assert shares.dims == ("time", "class", "y", "x")
    assert shares["class"].to_numpy().tolist() == [1, 2, 3]
    np.testing.assert_allclose(shares.sum("class", skipna=False).to_numpy()[~missing(cube)], 1)
    assert (shares.isnull().all("class").to_numpy() == missing(cube)).all()
    best = network.predict(cube, feature_dim="band").fillna(-1)
    xr.testing.assert_equal(shares.fillna(-1).idxmax("class").where(best > 0, -1), best)
    scores = network.decision_function(cube, feature_dim="band")
    assert scores.dims == shares.dims


def missing(cube):
    return cube.isnull().any("band").to_numpy()


def test_predict_proba__dimension_named_class(scene, network):
    cube = scene["reflectance"].rename(x="class")
    assert "class" in network.predict(cube, feature_dim="band").dims
    with pytest.raises(NRBFNError, match=r"dimension class, which is the name of an array"):
        network.predict_proba(cube, feature_dim="band")


@pytest.mark.parametrize("dtype", [object, complex])
def test_predict__features_that_are_no_numbers(scene, network, dtype):
    for cube in (scene["reflectance"], scene["reflectance"].chunk()):
        with pytest.raises(NRBFNError, match=r"reflectance (has dtype|holds Python objects)"):
            network.predict(cube.astype(dtype), feature_dim="band")


def test_predict__bands_are_found_by_name(scene, network):
    cube = scene["reflectance"]
    further = cube.isel(band=[0]).assign_coords(band=["infrared"])
    mixed = xr.concat([further, cube.isel(band=[2, 0, 1])], "band")
    expected = network.predict(cube, feature_dim="band")
    xr.testing.assert_identical(network.predict(mixed, feature_dim="band"), expected)
    unnamed = network.predict(cube.drop_vars("band"), feature_dim="band")
    xr.testing.assert_identical(unnamed, expected)
    with pytest.raises(NRBFNError, match="no features named 'red'"):
        network.predict(cube.isel(band=[0, 1]), feature_dim="band")
    with pytest.raises(NRBFNError, match="X has 2 columns"):
        network.predict(cube.isel(band=[0, 1]).drop_vars("band"), feature_dim="band")


def test_predict__whole_numbers_cannot_be_missing(network):
    cube = xr.DataArray(np.ones((2, 3), dtype=np.int16), dims=("x", "band"))
    assert network.predict(cube, feature_dim="band").dtype == np.int64


@pytest.mark.slow
def test_fit__text_labels_and_lazy_cubes():
    scene = drawn_scene(text=True)
    network = NRBFNClassifier(**OPTIONS)
    network.fit(scene["reflectance"].chunk(x=4), scene["cover"].astype(object), feature_dim="band")
    assert network.classes_.tolist() == sorted(CLASSES)
    result = network.predict(scene["reflectance"], feature_dim="band")
    assert result.dtype == object
    assert (result.isnull().to_numpy() == missing(scene["reflectance"])).all()
    assert {*result.to_numpy()[~missing(scene["reflectance"])]} <= {*CLASSES}


@pytest.mark.slow
def test_fit__unlabelled_pixels_are_rows_too(scene):
    rows, _ = labelled_rows(scene)
    options = {"basis": "random", "basis_size": 80, "features": "plain", "alpha": 1e-4}
    network = NRBFNClassifier(unlabelled=-1, **options)
    network.fit(scene, "cover", feature_dim="band")
    assert network.classes_.tolist() == [1, 2, 3]
    labelled = {row.tobytes() for row in rows.to_numpy(dtype=np.float64)}
    basis = network._model.scaling.restore(network.basis_)
    assert any(row.tobytes() not in labelled for row in np.ascontiguousarray(basis))


def test_fit__refuses(scene):
    cube, cover = scene["reflectance"], scene["cover"]
    network = NRBFNClassifier(**OPTIONS)
    for X, y, dim, message in (
        (cube.to_numpy(), cover, "band", "X is of type ndarray"),
        (cube, cover, "wavelength", "not wavelength"),
        (cube, "cover", "band", "not a variable of X"),
        (scene, "height", "band", "label"),
        (cube, cover.to_numpy(), "band", "y is of type ndarray"),
        (cube, cover.isel(x=slice(4)), "band", "different coordinates"),
        (cube, cover.expand_dims("z"), "band", "dimensions"),
        (cube, cover * np.nan, "band", "no pixel of X"),
        (cube, cover.astype(object), "band", "cover holds Python objects"),
        (scene, ["cover", "height"], "band", "y has 2 variables"),
        (scene, cover.to_numpy(), None, "y is of type ndarray"),
        (scene, "cover", "wavelength", "no variables along feature_dim=wavelength"),
    ):
        with pytest.raises(NRBFNError, match=message):
            network.fit(X, y, feature_dim=dim)
    with pytest.raises(NRBFNError, match="class_weight"):
        NRBFNClassifier(class_weight={1: 2.0}).fit(scene, "cover", feature_dim="band")


def test_cubes__without_xarray(network, monkeypatch):
    rows = np.zeros((4, 3))
    monkeypatch.setitem(sys.modules, "xarray", None)
    for use in (network.predict, lambda X, **how: network.fit(X, None, **how)):
        with pytest.raises(ParameterError, match=r"need a package that is not installed"):
            use(rows, feature_dim="band")


@pytest.mark.slow
def test_regressor__numbers_of_pixels(scene):
    network = NRBFNRegressor(alpha=1e-6, basis_size=20).fit(scene, "height", feature_dim="band")
    values = network.predict(scene["reflectance"].chunk(y=2), feature_dim="band")
    assert (values.name, values.dims) == ("value", ("time", "y", "x"))
    known = ~missing(scene["reflectance"])
    expected = network.predict(pixels_of(scene["reflectance"])[known.ravel()])
    np.testing.assert_allclose(values.to_numpy()[known], expected, rtol=1e-10)
    two = scene.assign(other=-scene["height"])
    both = NRBFNRegressor(alpha=1e-6, basis_size=20).fit(
        two, ["height", "other"], feature_dim="band"
    )
    values = both.predict(scene["reflectance"], feature_dim="band")
    assert values.dims == ("time", "target", "y", "x")
    assert values["target"].to_numpy().tolist() == ["height", "other"]


@pytest.mark.slow
def test_diffusion_map__coordinates_of_pixels(scene):
    network = DiffusionMap(basis_size=40).fit(scene, feature_dim="band")
    coordinates = network.transform(scene["reflectance"].chunk(), feature_dim="band")
    assert coordinates.dims == ("time", "component", "y", "x")
    known = ~missing(scene["reflectance"])
    expected = network.transform(pixels_of(scene["reflectance"])[known.ravel()])
    found = coordinates.transpose(..., "component").to_numpy()[known]
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.slow
def test_tuned__is_fitted_to_a_cube(scene):
    network = NRBFNClassifierCV(effort="quick", basis_size=30, n_neighbors=5)
    network.fit(scene, "cover", feature_dim="band")
    result = network.predict(scene["reflectance"].chunk(), feature_dim="band")
    assert result.isel(time=0).equals(
        network.predict(scene["reflectance"].isel(time=0), feature_dim="band")
    )


@pytest.mark.slow
def test_set_output__leaves_cubes(scene, network):
    shown = NRBFNClassifier(**OPTIONS).fit(scene, "cover", feature_dim="band")
    shown.set_output(predict="pandas")
    assert isinstance(shown.predict(scene["reflectance"], feature_dim="band"), xr.DataArray)
