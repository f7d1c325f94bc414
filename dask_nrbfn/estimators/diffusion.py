"""Coordinates of rows by eigenfunctions of a basis."""

from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from zarr.storage import MemoryStore

from dask_nrbfn.estimators.inputs import TrainingRows, checked_rows, chunked_dataset, is_chunked
from dask_nrbfn.estimators.network import ModelEstimator, documented, workplace
from dask_nrbfn.sources.tables import schema_of
from dask_nrbfn.stages.model import read_model
from dask_nrbfn.stages.moments import EIGENVALUES
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class DiffusionMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ModelEstimator):  # type: ignore[misc]
    """Coordinates in which rows are close if many short steps connect them.

    Attributes
    ----------
    eigenvalues_ : ndarray (n_components,), float64
        In descending order; the largest is at most 1.
    weights_ : ndarray (n_components, r), float64
        Products with the normalized activations are the coordinates.
    basis_, basis_indices_, width_, params_, n_features_in_, feature_names_in_, schema_, \
feature_names_
        See `NRBFNClassifier`.

    Notes
    -----
    Lee & Izbicki, *A Spectral Series Approach to High-Dimensional Nonparametric Regression*, 2016,
    eqs. 4 and 11: eigenfunctions of the average over the basis rows, except the constant one. See
    `dask_nrbfn.numeric.eigenfunctions`. It accepts the same kinds of rows as `NRBFNClassifier`.

    A loaded map has no ``eigenvalues_`` and ``basis_indices_``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> coordinates = DiffusionMap(scale="standard", width_factor=0.5).fit_transform(X)
    >>> coordinates.shape
    (178, 2)
    """

    _predicts = "coordinates"

    n_components: int = 2
    basis: str | ArrayLike = "random"
    width_factor: float = 1.0
    kernel: str = "gaussian"

    @classmethod
    def load(cls, location: Location) -> Self:
        """Return the map of a saved model or a finished run; executes no code from it."""
        estimator = cls._of_model(Model.load(location))
        estimator.n_components = len(estimator.weights_)
        return estimator

    def fit(self, X: Any, y: Any = None) -> Self:
        """Choose a basis of rows and compute its eigenfunctions.

        Parameters
        ----------
        X : array-like, zarr.Array or dask array (n, c), frame, dask dataframe, or Dataset
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ParameterError, DataError
            If a parameter or the data cannot be used. Both are a `ValueError`.
        MemoryBudgetError
            If the basis does not fit into memory.
        """
        self._options["n_components"].check("n_components", self.n_components)
        if is_chunked(X):
            with workplace(self.store, X) as place:
                self._train(chunked_dataset(self, X, None, None, place, "dataset"), place)
            return self
        schema = schema_of(X, self.missing)
        rows = TrainingRows(checked_rows(self, X, schema, reset=True))
        dataset = rows.dataset(schema, getattr(self, "feature_names_in_", None))
        self._train(dataset, MemoryStore())
        return self

    def transform(self, X: Any) -> Any:
        """Return the coordinates of every row, (n, n_components).

        Parameters
        ----------
        X : as for `fit`
            The result is lazy for a dask collection.
        """
        return self._predict(X, "scores")

    def _values(self) -> dict[str, Any]:
        return super()._values() | {"components": self.n_components}

    def _train(self, dataset: Dataset, place: Location) -> None:
        run = self._fitted_run(dataset, place, embeds=True)
        self._take_run(run)
        self._take_model(read_model(run, ""))

    def _take_run(self, run: Run) -> None:
        super()._take_run(run)
        self.eigenvalues_ = EIGENVALUES.read(run)[1:]

    @property
    def _n_features_out(self) -> int:
        return len(self.weights_)
