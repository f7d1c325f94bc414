"""Linear regression classification, the baseline of the network."""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.estimators.inputs import checked_rows, set_columns, training_rows
from dask_nrbfn.numeric.hashing import distinct_labels
from dask_nrbfn.numeric.held_out import normalized_shares
from dask_nrbfn.numeric.linear import Centre, linear_moments
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.ridge import solve_weights
from dask_nrbfn.numeric.risk import error_and_risk
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.sources.stored import schema_of
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.stages.weights import warn_of_condition
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.model import check_columns, check_names


class LinearRegressionClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Least-squares fit of the class indicators by a constant and the centred columns.

    Parameters
    ----------
    alpha : float, default=1e-4
        Ridge penalty, relative to the trace of the gram matrix of all features, the constant too.

    Attributes
    ----------
    weights_ : ndarray (K, p + 1), float64
        The first column belongs to the constant.
    mean_ : ndarray (p,), float64
        Mean of the training rows.
    classes_ : ndarray (K,)
    fitting_error_ : float
        eps of the training rows; 1 is a perfect fit.
    spectral_risk_ : float
        gamma; large if the fit depends on directions in which the features vary little.
    n_features_in_ : int
        Number of columns of X that are used.
    feature_names_in_ : ndarray (n_features_in_,)
        Names of these columns, only if all are strings.
    schema_ : Schema or None
        See `NRBFNClassifier`.
    feature_names_ : ndarray (p,)
        Names of the features, only if the columns have names.

    Notes
    -----
    hu-nrbfn (see `dask_nrbfn.numeric`), eq. 14 with beta = 1. Rows are read twice,
    in blocks, in this process: once for their mean, once for their moments; ``n (p + 1)^2`` flops.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> line = LinearRegressionClassifier(alpha=1e-8).fit(X[::2], y[::2])
    >>> bool(line.score(X[1::2], y[1::2]) > 0.95)
    True
    """

    def __init__(self, alpha: float = 1e-4) -> None:
        self.alpha = alpha

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on rows and labels.

        Parameters
        ----------
        X : array-like (n, c), frame or Dataset
        y : array-like (n,)
            None for a `Dataset`, which has its labels.

        Raises
        ------
        ParameterError, DataError
            If alpha or the data cannot be used. Both are `ValueError`.
        IllConditionedError
            If the system is singular; a larger alpha helps.
        """
        FitParams(alpha=self.alpha)
        if isinstance(X, Dataset):
            self._take_dataset(X, y)
            self._fit_rows(X.of_labelled(), None)
        else:
            schema = schema_of(X)
            rows, labels = training_rows(self, X, y, schema)
            self.classes_, codes, _ = distinct_labels(labels)
            names = getattr(self, "feature_names_in_", None)
            if schema is not None:
                rows, names = schema.expand(rows), schema.feature_names
            set_columns(self, rows.shape[1], names, schema)
            self._fit_rows(rows, codes)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label of every row of an array-like or Dataset, (n,)."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(axis=1)]

    def decision_function(self, X: Any) -> Floats:
        """Return the scores, (n, K); with two classes (n,), positive for the second.

        A row's scores sum to 1 up to the penalty.
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Floats:
        """Return the scores clipped to [0, 1] and normalized, (n, K)."""
        scores = self._scores(X)
        return normalized_shares(np.clip(scores, 0.0, 1.0), scores)

    def _take_dataset(self, dataset: Dataset, y: Any) -> None:
        if y is not None:
            raise ParameterError("y is given together with a Dataset.", "Leave y out.")
        check_targets(dataset, None)
        if dataset.has_weights:
            raise DataError(
                f"{dataset.location} has weights, but this classifier supports none.",
                "Write the dataset again without `weights`.",
            )
        self.classes_ = dataset.classes
        set_columns(self, dataset.n_features, dataset.feature_names, dataset.schema)

    def _fit_rows(self, X: Any, codes: NDArray[np.integer] | None) -> None:
        # `_check_magnitude` reports an overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            centre = Centre.from_blocks(rows for rows, _ in _blocks(X, codes))
            moments = linear_moments(_blocks(X, codes), centre, n_classes=len(self.classes_))
        gram, cross = moments.gram(), moments.cross
        _check_magnitude(gram)
        self._centre = centre
        self.mean_ = centre.mean
        solution = solve_weights(gram, cross, alpha=self.alpha)
        self.weights_ = solution.weights
        norm = moments.total_weight
        risk = error_and_risk(self.weights_, gram, cross, target_norm=norm, alpha=self.alpha)
        self.fitting_error_ = risk.fitting_error
        self.spectral_risk_ = risk.spectral_risk
        warn_of_condition(solution.reciprocal_condition, alpha=self.alpha)

    def _scores(self, X: Any) -> Floats:
        check_is_fitted(self)
        if isinstance(X, Dataset):
            X = X.encoded_by(self.schema_)
            check_columns(X.n_features, self.weights_.shape[1] - 1)
            check_names(X.feature_names, getattr(self, "feature_names_", None))
        else:
            X = checked_rows(self, X, self.schema_)
            X = X if self.schema_ is None else self.schema_.expand(X)
        n_rows = X.n_rows if isinstance(X, Dataset) else len(X)
        scores = np.empty((n_rows, len(self.classes_)))
        start = 0
        for rows, _ in _blocks(X, None):
            stop = start + len(rows)
            row_products(self._centre.features(rows), self.weights_, out=scores[start:stop])
            start = stop
        return scores


def _blocks(
    X: NDArray[Any] | Dataset, codes: NDArray[np.integer] | None
) -> Iterator[tuple[NDArray[Any], Any]]:
    """Yield rows and class codes; a dataset provides its class codes."""
    if isinstance(X, Dataset):
        for block in X.blocks(0, X.n_rows, block_rows(X.n_features + 1)):
            yield block.X, block.targets
        return
    step = block_rows(X.shape[1] + 1)
    for start in range(0, len(X), step):
        rows = slice(start, start + step)
        yield X[rows], None if codes is None else codes[rows]


def _check_magnitude(gram: Floats) -> None:
    wrong = np.flatnonzero(~np.isfinite(gram.diagonal()))
    if len(wrong):
        raise DataError(
            f"the values of column {wrong[0] - 1} are too large to be squared.",
            "Scale the column; squares and their sum must stay below 1e308.",
        )
