"""Rows and targets that estimators take, checked as scikit-learn does."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.dtypes import LABEL_RULE, are_whole, label_dtype
from dask_nrbfn.sources.frames import plain_labels, plain_rows


def training_rows(
    estimator: Any, X: Any, y: Any, *, reset: bool = True
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return rows (n, p) and labels (n,) as arrays.

    Raises
    ------
    DataError
        If a column is no number, or labels are missing, mixed or numbers that are not whole.
    ValueError
        If shapes do not fit, or values are not finite.
    """
    rows, labels = validate_data(estimator, plain_rows(X), plain_labels(y), reset=reset)
    if labels.dtype.kind != "O":
        label_dtype(labels.dtype, "y")
    if labels.dtype.kind == "f" and len(wrong := np.flatnonzero(~are_whole(labels))):
        raise DataError(
            f"Unknown label type: y has the label {labels[wrong[0]]} in row {wrong[0]} (the first "
            "is 0).",
            LABEL_RULE,
        )
    check_classification_targets(labels)
    return rows, labels


def training_numbers(
    estimator: Any, X: Any, y: Any, *, unlabelled: float | None = None, reset: bool = True
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return rows (n, p) and numbers (n, q) as arrays, NaN where y is `unlabelled`.

    Raises
    ------
    DataError
        If a column is no number.
    ValueError
        If shapes do not fit, or values are not finite.
    """
    none = False
    if unlabelled is not None:
        y = np.asarray(y, dtype=np.float64)
        none = np.isnan(y) if np.isnan(unlabelled) else y == unlabelled
        y = np.where(none, 0.0, y)
    rows, numbers = validate_data(
        estimator, plain_rows(X), y, multi_output=True, y_numeric=True, reset=reset
    )
    numbers = np.where(none, np.nan, np.asarray(numbers, dtype=np.float64))
    return rows, numbers[:, None] if numbers.ndim == 1 else numbers


def plain_array(estimator: Any, X: Any) -> NDArray[Any]:
    """Return rows (n, p) to predict, of the columns that the estimator was trained on."""
    rows: NDArray[Any] = validate_data(estimator, plain_rows(X), reset=False)
    return rows


def set_columns(estimator: Any, n_features: int, names: Sequence[str] | None) -> None:
    """Set the attributes that say which columns an estimator was trained on."""
    estimator.n_features_in_ = n_features
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
