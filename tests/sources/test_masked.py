"""Masked values of numpy and dask are missing: never their fill values."""

import dask.array as da
import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import NRBFNClassifier, NRBFNRegressor, ingest_arrays
from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.dtypes import NO_LABEL

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
MASK = np.arange(60) == 47


def masked(values):
    """Return values of which row 47 is masked and has a fill value below."""
    below = np.where(MASK.reshape(-1, *[1] * (values.ndim - 1)), 9999, values)
    return np.ma.masked_equal(below.astype(values.dtype), 9999)


def chunked(values):
    return None if values is None else da.from_array(values, chunks=(25, *values.shape[1:]))


def in_dask(X, y, place, *, weights=None, target=None, **options):
    options |= {"weights": chunked(weights), "target": chunked(target)}
    return ingest_arrays(chunked(X), chunked(y), place, **options)


@pytest.mark.parametrize("ingest", [ingest_arrays, in_dask])
def test_ingest__masked_values_are_missing(ingest):
    for rows, labels, options in (
        (masked(X), Y, {}),
        (masked((9 * X).astype(int)), Y, {}),
        (X, masked(Y), {}),
        (X, Y, {"weights": masked(Y + 1.0)}),
        (X, None, {"target": masked(X[:, :2])}),
    ):
        with pytest.raises(DataError, match="row 47"):
            ingest(rows, labels, MemoryStore(), **options)
    imputed = ingest(masked(X), Y, MemoryStore(), missing="impute")
    np.testing.assert_allclose(
        imputed.take(np.array([47]))[0, ::2], np.median(X[~MASK], axis=0), atol=1e-12
    )
    unlabelled = ingest(X, masked(Y), MemoryStore(), unlabelled="nan")
    assert unlabelled.y[47] == NO_LABEL
    whole = ingest(np.ma.array(X), np.ma.array(Y), MemoryStore())
    assert whole.fingerprint == ingest(X, Y, MemoryStore()).fingerprint


@pytest.mark.parametrize("form", [np.asanyarray, chunked])
def test_estimator__masked_values_are_missing(form):
    network, numbers = NRBFNClassifier(alpha=1e-6), NRBFNRegressor(alpha=1e-6)
    for estimator, rows, targets, weights in (
        (network, masked(X), Y, None),
        (network, X, masked(Y), None),
        (network, X, Y, masked(Y + 1.0)),
        (numbers, X, masked(X[:, 0]), None),
    ):
        weights = None if weights is None else form(weights)
        with pytest.raises(ValueError, match=r"NaN|row 47"):
            estimator.fit(form(rows), form(targets), sample_weight=weights)
    network.fit(form(X), form(Y))
    with pytest.raises(ValueError, match=r"NaN|row 22 of a block|row 47"):
        np.asarray(network.predict(form(masked(X))))
