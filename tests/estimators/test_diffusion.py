import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.datasets import make_swiss_roll

from dask_nrbfn import DiffusionMap, NRBFNClassifier
from dask_nrbfn.errors import NRBFNError, ParameterError
from tests.tables import spirals, write_table


def test_diffusion_map__unrolls_a_roll():
    X, along = make_swiss_roll(600, random_state=0)
    coordinates = DiffusionMap(n_components=1, width_factor=0.1, basis_size=300).fit_transform(X)
    ranks = [np.argsort(np.argsort(values)) for values in (coordinates[:, 0], along)]
    assert abs(np.corrcoef(ranks)[0, 1]) > 0.98


def test_diffusion_map__attributes_and_names():
    X = spirals(200)[0]
    frame = pd.DataFrame(X, columns=list("abcd"))
    network = DiffusionMap(n_components=3, width_factor=0.3)
    fitted = network.set_output(transform="pandas").fit(frame)
    assert fitted.feature_names_in_.tolist() == list("abcd")
    expected = ["diffusionmap0", "diffusionmap1", "diffusionmap2"]
    assert fitted.get_feature_names_out().tolist() == expected
    assert fitted.transform(frame).columns.tolist() == expected
    assert fitted.eigenvalues_.shape == (3,)
    assert (np.diff(fitted.eigenvalues_) <= 0).all()
    np.testing.assert_array_equal(fitted.basis_, X[fitted.basis_indices_])
    np.testing.assert_array_equal(fitted.weights_.shape, (3, 50))


@pytest.mark.slow
def test_diffusion_map__of_chunks_is_that_of_arrays(tmp_path):
    X = spirals(200)[0]
    expected = DiffusionMap(width_factor=0.3).fit(X)
    stored = zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(70, 4))
    for rows in (
        da.from_array(X, chunks=(60, 4)),
        stored,
        write_table(tmp_path / "data", X, chunk_rows=50),
    ):
        fitted = DiffusionMap(width_factor=0.3, store=tmp_path / "store").fit(rows)
        np.testing.assert_allclose(fitted.transform(X), expected.transform(X), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(fitted.transform(rows), expected.transform(X), atol=1e-8)


def test_diffusion_map__lazily_and_saved_and_loaded(tmp_path):
    X, y = spirals(200)
    fitted = DiffusionMap(n_components=3, basis=X[:50], width_factor=0.3, scale="standard").fit(X)
    lazy = fitted.transform(da.from_array(X, chunks=(60, 2)))
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((60, 60, 60, 20), (3,))
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), fitted.transform(X), rtol=1e-12)
    fitted.save(tmp_path / "map")
    loaded = DiffusionMap.load(tmp_path / "map")
    np.testing.assert_array_equal(loaded.transform(X), fitted.transform(X))
    assert loaded.n_components == 3
    np.testing.assert_allclose(loaded.fit(X).transform(X), fitted.transform(X), atol=1e-9)
    NRBFNClassifier(basis=X[:9]).fit(X, y).save(tmp_path / "network")
    with pytest.raises(NRBFNError, match="Load it with NRBFNClassifier"):
        DiffusionMap.load(tmp_path / "network")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components is 0"),
        ({"n_components": 2.5}, r"n_components is 2\.5"),
        ({"basis": "sknn"}, "basis=sknn needs class labels"),
    ],
)
def test_diffusion_map__bad_parameters(options, message):
    with pytest.raises(ParameterError, match=message):
        DiffusionMap(**options).fit(spirals(60)[0])
