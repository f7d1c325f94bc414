"""Rows and targets that estimators take, checked as scikit-learn does."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_X_y, validate_data

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import Rows, canonical, is_scipy
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.dtypes import LABEL_RULE, are_whole, label_dtype
from dask_nrbfn.sources.frames import plain_labels, plain_rows, split_gaps
from dask_nrbfn.sources.stored import check_gaps, stored_rows


def training_rows(
    estimator: Any,
    X: Any,
    y: Any,
    schema: Schema | None,
    *,
    unlabelled: Any = None,
    reset: bool = True,
) -> tuple[Rows, NDArray[Any]]:
    """Return rows (n, p), with a schema stored ones (n, c), and labels (n,).

    Where `unlabelled` means missing labels, those of text become it, and those of numbers NaN.

    Raises
    ------
    DataError
        If a column is no number, or labels are missing, mixed or numbers that are not whole.
    ValueError
        If shapes do not fit, or values are not finite.
    """
    given, none = split_gaps(y, unlabelled)
    rows, labels = _checked(estimator, X, plain_labels(given), schema, reset=reset)
    if labels.dtype.kind != "O":
        label_dtype(labels.dtype, "y")
    if labels.dtype.kind == "f" and len(wrong := np.flatnonzero(~are_whole(labels))):
        raise DataError(
            f"Unknown label type: y has the label {labels[wrong[0]]} in row {wrong[0]} (the first "
            "is 0).",
            LABEL_RULE,
        )
    check_classification_targets(labels)
    if none is not None:
        text = labels.dtype.kind in "OU"
        labels = labels.astype(object if text else np.float64)
        labels[none] = str(unlabelled) if text else np.nan
    return rows, labels


def training_numbers(
    estimator: Any,
    X: Any,
    y: Any,
    schema: Schema | None,
    *,
    unlabelled: float | None = None,
    reset: bool = True,
) -> tuple[Rows, Floats]:
    """Return rows as `training_rows`, and numbers (n, q), NaN where y is `unlabelled`.

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
    options = {"multi_output": True, "y_numeric": True}
    rows, numbers = _checked(estimator, X, y, schema, reset=reset, **options)
    numbers = np.where(none, np.nan, np.asarray(numbers, dtype=np.float64))
    return rows, numbers[:, None] if numbers.ndim == 1 else numbers


def checked_rows(estimator: Any, X: Any, schema: Schema | None, *, reset: bool = False) -> Rows:
    """Return rows (n, p), with a schema stored ones (n, c), as an array, or in CSR if sparse.

    Raises
    ------
    DataError
        If a column is no number, or the schema does not fit.
    ValueError
        If there are others than the estimator was trained on, or values are not finite.
    """
    if schema is None:
        return _in_csr(
            validate_data(estimator, plain_rows(X), accept_sparse=_formats(estimator), reset=reset)
        )
    stored = stored_rows(X, schema)
    check_gaps(stored, schema)
    return check_array(stored, estimator=estimator, ensure_all_finite="allow-nan")


def _checked(
    estimator: Any, X: Any, y: Any, schema: Schema | None, *, reset: bool, **options: bool
) -> tuple[Rows, NDArray[Any]]:
    if schema is None:
        rows, targets = validate_data(
            estimator, plain_rows(X), y, accept_sparse=_formats(estimator), reset=reset, **options
        )
        return _in_csr(rows), targets
    rows = checked_rows(estimator, X, schema)
    return check_X_y(rows, y, estimator=estimator, ensure_all_finite="allow-nan", **options)


def _formats(estimator: Any) -> str | bool:
    """Return the format of sparse rows that an estimator takes, or that it takes none."""
    return "csr" if get_tags(estimator).input_tags.sparse else False


def _in_csr(X: Any) -> Rows:
    return canonical(X) if is_scipy(X) else X


def set_columns(
    estimator: Any, n_features: int, names: Sequence[str] | None, schema: Schema | None
) -> None:
    """Set the attributes that say which columns an estimator was trained on, and which features."""
    columns = names
    if schema is not None:
        columns = [column.name for column in schema.columns]
        n_features = len(columns)
    estimator.schema_, estimator.n_features_in_ = schema, n_features
    for attribute, given in (("feature_names_in_", columns), ("feature_names_", names)):
        if given is not None:
            setattr(estimator, attribute, np.array(given, dtype=object))
        elif hasattr(estimator, attribute):
            delattr(estimator, attribute)
