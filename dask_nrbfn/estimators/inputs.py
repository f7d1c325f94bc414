"""The rows and targets that estimators accept: checked as scikit-learn does, and as datasets."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import dask
import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_array, check_X_y, validate_data
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_arrays, ingest_source
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import Rows, canonical, is_scipy_sparse, unmasked
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.sources.dtypes import to_labels
from dask_nrbfn.sources.frames import (
    column_names,
    in_seconds,
    label_column,
    labels_of,
    plain_dtype,
    plain_rows,
)
from dask_nrbfn.sources.options import WriteOptions
from dask_nrbfn.sources.tables import check_filled, stored_rows
from dask_nrbfn.storage.chunks import Mark
from dask_nrbfn.storage.dataset import Dataset, check_names
from dask_nrbfn.storage.location import Location, join


class TrainingRows(NamedTuple):
    """Rows in memory, without rows of weight 0.

    targets (n,): labels, or numbers (n, q); None: there are none.
    kept: mask of the given rows with a weight above 0; None: all.
    classes (K,): labels, if `targets` are class codes.
    target_names: names of numeric targets.
    unlabelled: the target of rows without a label.
    rows (n, p), weights (n,).
    """

    rows: Rows
    targets: Any = None
    weights: Floats | None = None
    kept: NDArray[np.bool_] | None = None
    classes: Any = None
    target_names: tuple[str, ...] | None = None
    unlabelled: Mark | None = None

    @classmethod
    def of(
        cls, rows: Rows, targets: NDArray[Any], sample_weight: Any, class_weights: Any = None
    ) -> Self:
        """Return the rows whose sample weight times class weight is not 0."""
        weights = class_weights
        if sample_weight is not None:
            _check_no_times(sample_weight, "sample_weight")
            given = _check_sample_weight(
                unmasked(sample_weight), rows, dtype=np.float64, ensure_non_negative=True
            )
            weights = given if class_weights is None else given * class_weights
        if weights is None or weights.all():
            return cls(rows, targets, weights)
        kept = weights != 0
        return cls(rows[kept], targets[kept], weights[kept], kept)

    def labelled_only(self, labelled: NDArray[np.bool_]) -> Self:
        """Return the rows with a label, or numbers; raise DataError if no row has one."""
        if not labelled.any():
            raise DataError(
                "no row has a label or target numbers.", "Pass rows with labels or target numbers."
            )
        weights = None if self.weights is None else self.weights[labelled]
        return self._replace(
            rows=self.rows[labelled], targets=self.targets[labelled], weights=weights
        )

    def dataset(self, schema: Schema | None, names: Sequence[str] | None) -> Dataset:
        """Return the rows as a dataset in memory."""
        labels, numbers = None, self.targets
        if numbers is not None and numbers.ndim == 1:
            labels, numbers = labels_of(self.targets).stored(), None
        source = ArraySource(self.rows, labels, self.weights, numbers)
        source.target_names = self.target_names or source.target_names
        source.schema = schema
        source.feature_names = None if names is None else tuple(names)
        return ingest_source(
            source,
            MemoryStore(),
            WriteOptions(sparse="auto" if source.n_values is None else "yes"),
            unlabelled=self.unlabelled,
            classes=range(0 if self.classes is None else len(self.classes)),
        )


def compute_all(*values: Any) -> list[Any]:
    """Return values with dask collections computed, one after the other: their kinds may differ."""
    return [dask.compute(each, traverse=False)[0] for each in values]


def is_dask(X: Any) -> bool:
    """Return whether `X` is a dask array, dataframe or series."""
    return isinstance(X, da.Array) or hasattr(X, "to_dask_array")


def is_chunked(X: Any) -> bool:
    """Return whether rows are read in chunks: Zarr arrays, dask collections, datasets."""
    return isinstance(X, Dataset | zarr.Array) or is_dask(X)


def chunked_dataset(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    place: Location,
    name: str,
    schema: Schema | None = None,
) -> Dataset:
    """Return chunked rows as a dataset: X itself, or a new dataset `name` under `place`."""
    unlabelled, missing = getattr(estimator, "unlabelled", None), estimator.missing
    if isinstance(getattr(estimator, "class_weight", None), Mapping):
        raise ParameterError(
            "`class_weight` is a mapping, but X is not in memory.",
            'Pass `sample_weight`, or class_weight="balanced".',
        )
    if isinstance(X, Dataset):
        if not (y is None and sample_weight is None and unlabelled is None):
            raise ParameterError(
                "y, `sample_weight` or `unlabelled` is given together with a Dataset.",
                "Leave these arguments out: a Dataset has its own targets and weights.",
            )
        return X
    weights = None if sample_weight is None else _to_dask(sample_weight)
    rows, labels, numbers = _to_dask(X), None, None
    if estimator._predicts == "numbers":
        numbers = _to_dask(y)
    elif estimator._predicts == "classes":
        _check_no_bytes(y)
        labels = _to_dask(y)
    return ingest_arrays(
        rows,
        labels,
        join(place, name),
        target=numbers,
        weights=weights,
        missing="error" if missing == "auto" else missing,
        schema=schema,
        unlabelled=unlabelled,
        overwrite=True,
    )


def _check_no_bytes(y: Any) -> None:
    """Raise DataError for labels of bytes: predictions, which are text, would equal none of them.

    The types of objects in dask collections are not known here.
    """
    is_lazy = is_dask(y)
    labels = label_column(y) if is_lazy else np.asarray(y)
    are_bytes = plain_dtype(labels.dtype).kind == "S"
    if labels.dtype == object and not is_lazy:
        are_bytes = any(isinstance(label, bytes) for label in labels.flat)
    if are_bytes:
        text = "y.map_blocks(numpy.char.decode)" if is_lazy else "[label.decode() for label in y]"
        raise DataError("y has labels of bytes.", f"Make them text, such as {text}.")


def _check_no_times(values: Any, name: str) -> None:
    """Raise DataError for dates and durations, which numpy would count in any unit."""
    plain = np.asarray(unmasked(values))
    are_times = plain.dtype.kind in "mM"
    if plain.dtype.kind == "O":
        are_times = any(isinstance(x, datetime.date | datetime.timedelta) for x in plain.flat)
    if are_times:
        raise DataError(f"{name} has dates or durations.", in_seconds(values, name))


def _to_dask(values: Any) -> Any:
    if isinstance(values, zarr.Array):
        return da.from_zarr(values)
    if values is None:
        raise DataError("y is missing.", "Pass a target for every row of X.")
    return values if is_dask(values) else da.from_array(np.asanyarray(values), chunks=-1)


def training_rows(
    estimator: Any, X: Any, y: Any, schema: Schema | None, *, reset: bool
) -> tuple[Rows, NDArray[Any]]:
    """Return rows as `checked_rows`, and labels (n,) with `unlabelled` or NaN where missing."""
    if y is None:
        return _check_with_targets(estimator, X, y, schema, reset=reset)
    unlabelled = estimator.unlabelled
    _check_no_bytes(y)
    given = labels_of(y, unlabelled)
    rows, labels = _check_with_targets(estimator, X, given.values, schema, reset=reset)
    check_classification_targets(labels)
    is_text = labels.dtype.kind in "OU"
    if not is_text:
        to_labels(labels, "y")
    if given.missing is not None:
        labels = labels.astype(object if is_text else np.float64)
        labels[given.missing] = str(unlabelled) if is_text else np.nan
    return rows, labels


def training_numbers(
    estimator: Any, X: Any, y: Any, schema: Schema | None, *, reset: bool
) -> tuple[Rows, Floats]:
    """Return rows as `checked_rows`, and target numbers (n, q), NaN where y is `unlabelled`."""
    _check_no_times(y, "y")
    y, unlabelled = unmasked(y), estimator.unlabelled
    is_missing: Any = False
    if unlabelled is not None:
        y = np.asarray(y, dtype=np.float64)
        is_missing = np.isnan(y) if np.isnan(unlabelled) else y == unlabelled
        y = np.where(is_missing, 0.0, y)
    rows, numbers = _check_with_targets(
        estimator, X, y, schema, reset=reset, multi_output=True, y_numeric=True
    )
    numbers = np.where(is_missing, np.nan, np.asarray(numbers, dtype=np.float64))
    return rows, numbers[:, None] if numbers.ndim == 1 else numbers


def checked_rows(estimator: Any, X: Any, schema: Schema | None, *, reset: bool = False) -> Rows:
    """Return rows (n, p), with a schema stored columns (n, c), as scikit-learn checks them.

    With `reset` and without a schema, the estimator stores the columns; else X must have them.
    """
    if schema is not None:
        stored = stored_rows(X, schema)
        check_filled(stored, schema)
        return check_array(stored, estimator=estimator, ensure_all_finite="allow-nan")
    rows, names = plain_rows(X), column_names(X)
    if names is None:
        rows = validate_data(estimator, rows, accept_sparse="csr", reset=reset)
        return canonical(rows) if is_scipy_sparse(rows) else rows
    head = _text_named(estimator, X[:0], names, reset=reset)
    validate_data(estimator, head, skip_check_array=True, reset=reset)
    return check_array(rows, estimator=estimator, input_name="X")


def _check_with_targets(
    estimator: Any, X: Any, y: Any, schema: Schema | None, *, reset: bool, **options: bool
) -> tuple[Rows, NDArray[Any]]:
    rows = checked_rows(estimator, X, schema, reset=reset)
    return check_X_y(
        rows, y, accept_sparse="csr", ensure_all_finite=False, estimator=estimator, **options
    )


def _text_named(estimator: Any, X: Any, names: tuple[str, ...], *, reset: bool) -> Any:
    """Return a frame with text as column names, which scikit-learn compares by `reset`.

    A frame with the columns 0, 1, ... in order has no names, as pandas makes it of an array.
    """
    if not hasattr(X, "set_axis") or all(isinstance(name, str) for name in X.columns):
        return X
    numbered = tuple(str(place) for place in range(len(names)))
    has_names = names != numbered if reset else hasattr(estimator, "feature_names_in_")
    if has_names:
        return X.set_axis(names, axis=1)
    if set(names) == set(numbered):
        check_names(names, numbered)
    return X


def set_columns(
    estimator: Any, n_features: int, names: Sequence[str] | None, schema: Schema | None
) -> None:
    """Set the fitted attributes that describe the columns of X and the features."""
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
