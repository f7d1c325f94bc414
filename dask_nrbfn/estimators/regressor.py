"""The regressor, and the base of all networks whose targets are numbers."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from dask_nrbfn.errors import DataError, plural
from dask_nrbfn.estimators.inputs import TrainingRows, is_dask, training_numbers
from dask_nrbfn.estimators.network import LearningNetwork, PlainNetwork
from dask_nrbfn.estimators.predictions import r2
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.targets import has_target
from dask_nrbfn.sources.frames import target_names_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.model import Model


@dataclass(kw_only=True, eq=False, repr=False)
class NumberNetwork(RegressorMixin, LearningNetwork):  # type: ignore[misc]
    """Network whose targets are numbers, in one column or several."""

    _of_numbers = True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to a first batch of rows, or add further rows to those that were fitted before.

        The first batch decides the parameters, the basis and the width, so it is best a random
        draw of all rows. The network then equals one that was fitted to the rows of all batches at
        once with this basis and width.

        Parameters
        ----------
        X, y, sample_weight
            See `fit`. If the first batch was in memory, all batches must be.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If the first batch was a dataset or dask array and there is no `store` to keep its sums
            in; if a batch that is not in memory follows one in memory.
        AlreadyAddedError
            With a store, if a batch of exactly these rows was added before. In memory the rows
            count once more, as in scikit-learn.
        RunMismatchError
            If a copy of this network added rows to the same run in `store`.
        """
        self._fit_or_add(X, y, sample_weight)
        return self

    def predict(self, X: Any, *, clip: bool = True) -> Any:
        """Return the predicted numbers of every row, (n,), or (n, q) for several targets.

        Parameters
        ----------
        X : as for `fit`
            The result is lazy for a dask collection.
        clip : bool, default=True
            Whether the numbers are clipped to the range of the training targets.
        """
        values = self._predict(X, "numbers", clip=clip)
        return self._as_output(values, X, self._model.target_names or ())

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2, averaged over the targets.

        Parameters
        ----------
        X, y, sample_weight
            See `fit`. Dask collections are predicted block by block.
        """
        if is_dask(X):
            return r2(self.predict(X), y, sample_weight, origin=self.intercept_)
        return float(super().score(X, y, sample_weight))

    def _training_rows(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, classes: Any = None
    ) -> TrainingRows:
        X, numbers = training_numbers(self, X, y, schema, unlabelled=self.unlabelled, reset=True)
        mark = None if self.unlabelled is None else np.nan
        rows = TrainingRows.of(X, numbers, sample_weight)
        return rows._replace(classes=np.empty(0), target_names=target_names_of(y), unlabelled=mark)

    def _further_rows(self, X: Any, y: Any, sample_weight: Any, stored: Model) -> TrainingRows:
        X, numbers = training_numbers(
            self, X, y, self.schema_, unlabelled=self.unlabelled, reset=False
        )
        if numbers.shape[1] != stored.n_targets:
            raise DataError(
                f"y has {plural(numbers.shape[1], 'target column')}, but the model was fitted "
                f"with {stored.n_targets}.",
                "Pass y with the target columns of the first fit, in the same order.",
            )
        names = target_names_of(y) or stored.target_names
        rows = TrainingRows.of(X, numbers, sample_weight)
        rows = rows.labelled_only(has_target(rows.targets))
        return rows._replace(target_names=names)

    def _classes_of(self, dataset: Dataset, y: Any) -> NDArray[Any]:
        if not dataset.of_numbers:
            raise DataError(
                f"{dataset.location} has no numeric targets.",
                "Write the dataset again with `target`.",
            )
        return np.empty(0)

    def _take_model(self, model: Model) -> None:
        if model.target_names is None:
            raise DataError("the model predicts classes.", "Load it with NRBFNClassifier.")
        if model.embeds:
            raise DataError("the model predicts coordinates.", "Load it with DiffusionMap.")
        super()._take_model(model)
        assert model.intercept is not None
        self.intercept_ = model.intercept


@dataclass(eq=False, repr=False)
class NRBFNRegressor(PlainNetwork, NumberNetwork):
    """Radial basis function network for numeric targets.

    Parameters
    ----------
    alpha : float, default=1e-13
        Ridge penalty, relative to the trace of the gram matrix.
    penalty : {"weights", "kernel", "clusters"}, default="weights"
        The quadratic form that the ridge penalizes, as for `NRBFNClassifier`.
    locality : float, default=0.0
        Penalty of differences between the predictions of neighbours, relative to the trace of the
        gram matrix. 0: none.
    n_neighbors : int, default=None
        Neighbours that the locality penalty compares; less than the number of rows. None: 20, or
        all other rows if there are fewer.
    basis : {"kmeans", "random"} or array-like (r, p), default="kmeans"
        Cluster centres, random rows, or these rows.
    basis_size : int, default=None
        Number of basis rows. None: a quarter of the rows, at most 1,000.
    features : {"plain", "normalized"}, default="plain"
        Whether the activations of a row are divided by their sum.
    random_state : int, RandomState instance or None, default=0
        Seed of the choice of the basis.
    unlabelled : float, default=None
        The value in all columns of y of rows without targets, such as NaN. These rows can become
        basis rows and count in scale and width; everything else is learned from the other rows.
        None: every row has targets.
    kernel, width_factor, scale, cells, metric_rounds, prune, \
components, n_parts, missing, store
        See `NRBFNClassifier`.

    Attributes
    ----------
    weights_ : ndarray (q, r), float64
    intercept_ : ndarray (q,), float64
        Intercept of each target, without a penalty.
    fitting_error_ : float
        eps of the training rows, from the differences to their mean; 1 is a perfect fit.
    spectral_risk_ : float
        gamma; large if the fit depends on directions in which the features vary little.
    basis_, basis_indices_, width_, feature_weights_, feature_importances_, params_, \
n_features_in_, feature_names_in_, schema_, feature_names_
        See `NRBFNClassifier`.

    Notes
    -----
    The ridge system of `NRBFNClassifier` with numbers in place of class indicators. It accepts the
    same kinds of rows.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = NRBFNRegressor(alpha=1e-3).fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.4)
    True
    """

    alpha: float = 1e-13
    _: KW_ONLY
    features: str = "plain"
