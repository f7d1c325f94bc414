"""Coordinates of rows by eigenfunctions of a basis."""

import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from zarr.storage import MemoryStore

from dask_nrbfn.commands.version import read_model
from dask_nrbfn.errors import DataError
from dask_nrbfn.estimators.cubes import Pixels, are_pixels
from dask_nrbfn.estimators.fitted import ModelEstimator
from dask_nrbfn.estimators.inputs import chunked_rows, dataset_in_memory, is_chunked
from dask_nrbfn.estimators.rows import checked_rows
from dask_nrbfn.estimators.runs import finished_embedding, workplace
from dask_nrbfn.params import FitParams
from dask_nrbfn.sources import ArraySource
from dask_nrbfn.sources.stored import schema_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import Location, RemoteLocation
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run


class DiffusionMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ModelEstimator):  # type: ignore[misc]
    """Coordinates in which rows are near each other that many short steps connect.

    Parameters
    ----------
    n_components : int, default=2
        Number of coordinates.
    basis : {"random", "kmeans", "sknn"} or array-like (r, p), default="random"
        Drawn rows, cluster centres, rows of low confidence of a `Dataset` with labels, or these
        rows.
    basis_size : int, default=None
        Number of basis rows, more than coordinates. None: a quarter of the rows, at most 1,000.
    width_factor : float, default=1.0
        Kernel width over the mean distance between rows and basis rows.
    svd : int, default=None
        Replace every row by so many coordinates of a truncated SVD, which all else then acts on.
        None: the rows as they are.
    scale : {"auto", "none", "standard", "unit"}, default="auto"
        Columns to mean 0 and variance 1, or rows to unit length.
    kernel : {"gaussian", "laplacian", "matern32", "matern52"}, default="gaussian"
    n_parts : int, default=None
        Parts that each pass over the rows is cut into.
    random_state : int, RandomState instance or None, default=0
        Seeds the choice of the basis.
    missing : {"error", "impute"}, default="error"
        As for `NRBFNClassifier`.
    store : str, path or RemoteLocation, default=None
        As for `NRBFNClassifier`.

    Attributes
    ----------
    eigenvalues_ : ndarray (n_components,), float64
        From the largest, at most 1, downwards.
    basis_ : ndarray (r, p), float64
        Basis rows, scaled.
    basis_indices_ : ndarray (r,), int64
        Their row numbers in the training data; -1 for rows that are none of it.
    width_ : float
        Sigma of the kernel.
    weights_ : ndarray (n_components, r), float64
        Coordinates are products with the normalized activations.
    params_ : FitParams
        The parameters of the fit.
    n_features_in_ : int
        Columns of X that are used.
    feature_names_in_ : ndarray (n_features_in_,)
        Their names, only when all are strings.
    schema_ : Schema or None
        As of `NRBFNClassifier`.
    feature_names_ : ndarray (p,)
        Names of the features, only when the columns have some.

    Notes
    -----
    Lee & Izbicki, *A Spectral Series Approach to High-Dimensional Nonparametric Regression*, 2016,
    eqs. 4 and 11: eigenfunctions of the average over the basis rows, but for the constant one. See
    `dask_nrbfn.numeric.eigenfunctions`. Rows are read from memory, Zarr, dask and datasets alike.

    What was loaded has no ``eigenvalues_`` and ``basis_indices_``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> coordinates = DiffusionMap(scale="standard", width_factor=0.5).fit_transform(X)
    >>> coordinates.shape
    (178, 2)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        basis: str | ArrayLike = "random",
        basis_size: int | None = None,
        width_factor: float = 1.0,
        svd: int | None = None,
        scale: str = "auto",
        kernel: str = "gaussian",
        n_parts: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
        missing: str = "error",
        store: str | os.PathLike[str] | RemoteLocation | None = None,
    ) -> None:
        self.n_components = n_components
        self.basis = basis
        self.basis_size = basis_size
        self.width_factor = width_factor
        self.svd = svd
        self.scale = scale
        self.kernel = kernel
        self.n_parts = n_parts
        self.random_state = random_state
        self.missing = missing
        self.store = store

    @classmethod
    def load(cls, location: Location) -> Self:
        """Return the map of a saved model or a finished run; runs no code from the file."""
        model = Model.load(location)
        if not model.embeds:
            raise DataError(
                "the model is one of classes or numbers.",
                "Load it with NRBFNClassifier or NRBFNRegressor.",
            )
        estimator = cls._of_model(model)
        estimator.n_components = model.n_targets
        return estimator

    def fit(self, X: Any, y: Any = None, *, feature_dim: str | None = None) -> Self:
        """Choose a basis of rows and compute its eigenfunctions.

        Parameters
        ----------
        X : array-like, zarr.Array or dask array (n, c), frame, dask dataframe, or Dataset
        y : None
            Not looked at.
        feature_dim : str, optional
            X is a DataArray, or a Dataset of whose variables those with this dimension, without one
            all, are features: its pixels are rows, but for those that lack a feature.

        Raises
        ------
        ParameterError, DataError
            If a parameter or the data cannot be used. Both are `ValueError`.
        MemoryBudgetError
            If the basis does not fit the memory.
        """
        FitParams.options()["components"].check("n_components", self.n_components)
        if are_pixels(X, feature_dim):
            X = Pixels(X, None, feature_dim)
        if is_chunked(X):
            with workplace(self.store, X) as place:
                self._train(chunked_rows(X, place, "dataset", self.missing), place)
            return self
        schema = schema_of(X, self.missing)
        source = ArraySource(checked_rows(self, X, schema, reset=True))
        names = getattr(self, "feature_names_in_", None)
        self._train(dataset_in_memory(source, schema, names), MemoryStore())
        return self

    def transform(self, X: Any, *, feature_dim: str | None = None) -> Any:
        """Return the coordinates of every row, (n, n_components); lazily for a dask array.

        With `feature_dim` X is a DataArray whose pixels are rows; a Dataset has the variables that
        were fitted. The result has the dimension "component" where X has its features.
        """
        return self._predict(X, "coordinates", feature_dim, name="coordinate")

    def _values(self) -> dict[str, Any]:
        return super()._values() | {"components": self.n_components}

    def _train(self, dataset: Dataset, place: Location) -> None:
        run = finished_embedding(dataset, place, self._params(), basis=self._given_rows())
        self._take_run(run)
        self._take_model(read_model(run, ""))

    def _take_run(self, run: Run) -> None:
        super()._take_run(run)
        self.eigenvalues_ = run.read("components/eigenvalues")[1:]

    @property
    def _n_features_out(self) -> int:
        return len(self.weights_)
