"""The regressor, and what networks have in common whose targets are numbers."""

import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from dask_nrbfn.errors import DataError
from dask_nrbfn.estimators.inputs import Table, is_dask
from dask_nrbfn.estimators.network import Network, PlainNetwork
from dask_nrbfn.estimators.rows import training_numbers
from dask_nrbfn.estimators.scores import r2
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.targets import has_target
from dask_nrbfn.sources.frames import target_names_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import RemoteLocation
from dask_nrbfn.storage.model import Model


class NumberNetwork(RegressorMixin, Network):  # type: ignore[misc]
    """Network whose targets are numbers, in one column or several."""

    _of_numbers = True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on a first batch of rows, or let further rows join those that were fitted before.

        The first batch decides on parameters, basis and width, and is best a draw of all rows. The
        network is then the same as if the rows of all batches had been fitted at once with this
        basis and width.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`. What follows arrays in memory is in memory too.

        Raises
        ------
        ParameterError
            If the first rows were a dataset or dask array and there is no `store`, without which
            their sums are not kept; if other rows follow arrays in memory.
        AlreadyAddedError
            In a store, if a batch of exactly these rows was added before. In memory they count
            once more, as scikit-learn has it.
        RunMismatchError
            If a copy of this network added rows to the same run in `store`.
        """
        self._fit_or_add(X, y, sample_weight)
        return self

    def predict(self, X: Any, *, feature_dim: str | None = None) -> Any:
        """Return the numbers of every row, (n,), or (n, q) of several; lazily for a dask array.

        With `feature_dim` X is a DataArray: its pixels are rows, whose features lie along it and
        are found by its coordinates. A Dataset has the variables that were fitted. The
        result has the other dimensions, and several numbers the dimension "target" where X has its
        features; pixels that lack a feature have NaN. Lazily where X is a dask array.
        """
        values = self._predict(X, "numbers", feature_dim, name="value")
        return self._shown(values, X, self._model.target_names or ())

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2, on average over the targets; of dask collections by blocks."""
        if is_dask(X):
            return r2(self.predict(X), y, sample_weight, origin=self.intercept_)
        return float(super().score(X, y, sample_weight))

    def _table(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, classes: Any = None
    ) -> Table:
        rows, numbers = training_numbers(self, X, y, schema, unlabelled=self.unlabelled)
        table = Table.of(rows, numbers, sample_weight)
        mark = None if self.unlabelled is None else np.nan
        names = target_names_of(y)
        return table._replace(classes=np.empty(0), target_names=names, unlabelled=mark)

    def _further_table(self, X: Any, y: Any, sample_weight: Any, stored: Model) -> Table:
        rows, numbers = training_numbers(
            self, X, y, self.schema_, unlabelled=self.unlabelled, reset=False
        )
        if numbers.shape[1] != stored.n_targets:
            raise DataError(
                f"y has {numbers.shape[1]} columns, that of the first rows had {stored.n_targets}.",
                "Give the same targets.",
            )
        names = target_names_of(y) or stored.target_names
        table = Table.of(rows, numbers, sample_weight).of_labelled(has_target(numbers))
        return table._replace(target_names=names)

    def _classes_of(self, dataset: Dataset, y: Any) -> NDArray[Any]:
        if not dataset.of_numbers:
            raise DataError(
                f"{dataset.location} has no numbers as targets.", "Write it with `target`."
            )
        return np.empty(0)

    def _take_model(self, model: Model) -> None:
        if model.target_names is None:
            raise DataError("the model is one of classes.", "Load it with NRBFNClassifier.")
        if model.embeds:
            raise DataError("the model is one of coordinates.", "Load it with DiffusionMap.")
        super()._take_model(model)
        assert model.intercept is not None
        self.intercept_ = model.intercept


class NRBFNRegressor(NumberNetwork, PlainNetwork):
    """Radial basis function network for numbers.

    Parameters
    ----------
    alpha : float, default=1e-13
        Ridge penalty, relative to the trace of the gram matrix.
    penalty : {"weights", "kernel", "clusters"}, default="weights"
        What the ridge keeps small: the squared norm of the weights; the norm in the kernel's own
        space, with plain features; or the squares of the weights over the shares of the rows in
        each cluster, with plain features of a "kmeans" basis.
    locality : float, default=0.0
        Penalty of differences between what is predicted for neighbours, relative to the trace of
        the gram matrix. 0: none.
    n_neighbors : int, default=None
        Neighbours that locality looks at; less than the number of rows. None: 20, or all other
        rows where there are fewer.
    basis : {"kmeans", "random"} or array-like (r, p), default="kmeans"
        Cluster centres, drawn rows, or these rows.
    basis_size : int, default=None
        Number of basis rows. None: a quarter of the rows, at most 1,000.
    features : {"plain", "normalized"}, default="plain"
        Activations as they are, or those of a row divided by their sum.
    kernel : {"gaussian", "laplacian", "matern32", "matern52"}, default="gaussian"
    width_factor : float, default=1.0
        Kernel width over the mean distance between rows and basis rows.
    svd : int, default=None
        Replace every row by so many coordinates of a truncated SVD, which all else then acts on.
        None: the rows as they are.
    scale : {"auto", "none", "standard", "unit", "learned"}, default="auto"
        Columns to mean 0 and variance 1, on top of that each by the square root of a weight that is
        learned on a sample, or rows to unit length.
    metric_rounds : int, default=5
        Rounds in which the weights of columns are learned, at most.
    prune : int, default=None
        Keep only so many of the basis rows, those that explain most; with plain features.
    components : int, default=None
        Combine only so many eigenfunctions of the basis, the smoothest ones; with normalized
        features. None: the weights may be any.
    n_parts : int, default=None
        Parts that each pass over the rows is cut into.
    random_state : int, RandomState instance or None, default=0
        Seeds the choice of the basis.
    unlabelled : float, default=None
        What y has, in all its columns, in rows that have no numbers: NaN, for example. They are
        candidates for the basis and count in scale and width; everything else is learned from the
        other rows. None: every row has its numbers.
    missing : {"error", "impute"}, default="error"
        As for `NRBFNClassifier`.
    store : str, path or RemoteLocation, default=None
        As for `NRBFNClassifier`.

    Attributes
    ----------
    basis_ : ndarray (r, p), float64
        Basis rows, scaled.
    basis_indices_ : ndarray (r,), int64
        Their row numbers in the training data; -1 for rows that are none of it.
    width_ : float
        Sigma of the kernel.
    weights_ : ndarray (q, r), float64
    intercept_ : ndarray (q,), float64
        Has no penalty.
    feature_weights_, feature_importances_ : ndarray (p,), float64
        Only with a "learned" scale: the weights of the features, and the same of sum 1.
    params_ : FitParams
        The parameters of the fit.
    fitting_error_ : float
        eps of the training rows and what differs from their means; 1 is a perfect fit.
    spectral_risk_ : float
        gamma; large where the fit uses the minor directions of the features.
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
    The ridge system of `NRBFNClassifier` with numbers in place of indicators. Rows are read from
    memory, Zarr, dask and datasets alike, and frames as by `NRBFNClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = NRBFNRegressor(alpha=1e-3).fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.4)
    True
    """

    def __init__(
        self,
        alpha: float = 1e-13,
        *,
        penalty: str = "weights",
        locality: float = 0.0,
        n_neighbors: int | None = None,
        basis: str | ArrayLike = "kmeans",
        basis_size: int | None = None,
        features: str = "plain",
        kernel: str = "gaussian",
        width_factor: float = 1.0,
        svd: int | None = None,
        scale: str = "auto",
        metric_rounds: int = 5,
        prune: int | None = None,
        components: int | None = None,
        n_parts: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
        unlabelled: float | None = None,
        missing: str = "error",
        store: str | os.PathLike[str] | RemoteLocation | None = None,
    ) -> None:
        self.alpha = alpha
        self.penalty = penalty
        self.locality = locality
        self.n_neighbors = n_neighbors
        self.basis = basis
        self.basis_size = basis_size
        self.features = features
        self.kernel = kernel
        self.width_factor = width_factor
        self.svd = svd
        self.scale = scale
        self.metric_rounds = metric_rounds
        self.prune = prune
        self.components = components
        self.n_parts = n_parts
        self.random_state = random_state
        self.unlabelled = unlabelled
        self.missing = missing
        self.store = store
