"""The regressor, and the base of all networks whose targets are numbers."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags

from dask_nrbfn.errors import DataError, plural
from dask_nrbfn.estimators.inputs import TrainingRows, compute_all, training_numbers
from dask_nrbfn.estimators.network import LearningNetwork, PlainNetwork, documented
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.targets import has_target
from dask_nrbfn.sources.frames import target_names_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.model import Model


@dataclass(kw_only=True, eq=False, repr=False)
class NumberNetwork(RegressorMixin, LearningNetwork):  # type: ignore[misc]
    """Network whose targets are numbers, in one column or several."""

    _predicts = "numbers"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to a first batch of rows, or add further rows to those that were fitted before.

        Parameters, effects and errors are those of `NRBFNClassifier.partial_fit`.
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

    def predict_interval(self, X: Any, *, coverage: float = 0.9) -> Any:
        """Return intervals that contain the numbers of new rows with a probability.

        From absolute residuals of held-out rows, over a scale of the row where that narrows the
        intervals (Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, "Distribution-free predictive
        inference for regression", 2018). The probability is that of rows drawn like the training
        rows, not of each single row.

        Parameters
        ----------
        X : as for `fit`
            The result is lazy for a dask collection.
        coverage : float, default=0.9
            The probability.

        Returns
        -------
        ndarray (n, 2), or (n, q, 2) for several targets
            The lower and upper ends. If there are enough held-out rows for the coverage, the ends
            are clipped to the range of the training targets.

        Raises
        ------
        ParameterError
            If the fit held out no rows, or too few for the coverage.
        """
        ends = self._predict(X, f"intervals@{coverage}", coverages=[coverage])
        return ends if ends.ndim > 2 else self._as_output(ends, X, ["lower", "upper"])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2, averaged over the targets.

        Parameters
        ----------
        X, y, sample_weight
            See `fit`. Predictions, targets and weights of dask collections are computed; use
            `evaluate_dataset` if they do not fit into memory.
        """
        predicted, y, weights = compute_all(self.predict(X), y, sample_weight)
        return float(r2_score(y, predicted, sample_weight=weights))

    def _training_rows(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, classes: Any = None
    ) -> TrainingRows:
        X, numbers = training_numbers(self, X, y, schema, reset=True)
        mark = None if self.unlabelled is None else np.nan
        rows = TrainingRows.of(X, numbers, sample_weight)
        return rows._replace(classes=np.empty(0), target_names=target_names_of(y), unlabelled=mark)

    def _further_rows(self, X: Any, y: Any, sample_weight: Any, stored: Model) -> TrainingRows:
        X, numbers = training_numbers(self, X, y, self.schema_, reset=False)
        found, q = numbers.shape[1], stored.n_targets
        if found != q:
            raise DataError(
                f"y has {plural(found, 'target column')}, but the model was fitted with {q}.",
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
        super()._take_model(model)
        assert model.intercept is not None
        self.intercept_ = model.intercept


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class NRBFNRegressor(PlainNetwork, NumberNetwork):
    """Radial basis function network for numeric targets.

    Attributes
    ----------
    weights_ : ndarray (q, r), float64
    intercept_ : ndarray (q,), float64
        Intercept of each target, without a penalty.
    fitting_error_ : float
        eps of the training rows, from the differences to their mean; 1 is a perfect fit.
    spectral_risk_ : float
        gamma; large if the fit depends on directions in which the features vary little.
    basis_, basis_indices_, width_, alpha_, feature_weights_, feature_importances_, params_, \
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

    features: str = "plain"
