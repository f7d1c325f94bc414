"""What estimators are given, as datasets: arrays in memory; Zarr, dask and datasets by chunks."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_dask, ingest_source
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.estimators.cubes import Pixels
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources import ArraySource
from dask_nrbfn.sources.frames import typed_labels
from dask_nrbfn.storage.chunks import Mark
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import Location, join


class Table(NamedTuple):
    """Rows in memory, none of weight 0.

    Attributes
    ----------
    rows : array or CSR (n, p), or (n, c) stored ones
    targets : array (n,) or float64 (n, q)
        Labels, or numbers.
    weights : float64 (n,) or None
    kept : bool array or None
        Which of the rows that were given these are; None: all.
    classes : array (K,) or None
        Labels, where `targets` are their codes.
    target_names : tuple of str or None
        Of numbers.
    unlabelled : int, float or None
        What `targets` have in rows without a label.
    """

    rows: Rows
    targets: NDArray[Any]
    weights: Floats | None
    kept: NDArray[np.bool_] | None = None
    classes: Any = None
    target_names: tuple[str, ...] | None = None
    unlabelled: Mark | None = None

    @classmethod
    def of(
        cls,
        rows: Rows,
        targets: NDArray[Any],
        sample_weight: Any,
        by_class: Floats | None = None,
    ) -> Self:
        """Return the rows whose weight, times that of their class, is not 0."""
        weights = by_class
        if sample_weight is not None:
            given = _check_sample_weight(
                sample_weight, rows, dtype=np.float64, ensure_non_negative=True
            )
            weights = given if by_class is None else given * by_class
        if weights is None or weights.all():
            return cls(rows, targets, weights)
        kept = weights != 0
        return cls(rows[kept], targets[kept], weights[kept], kept)

    def of_labelled(self, labelled: NDArray[np.bool_]) -> Self:
        """Return the rows that have a label, or numbers, which are to join others.

        Raises
        ------
        DataError
            If none has any.
        """
        if not labelled.any():
            raise DataError("no row has a label, or numbers.", "Give rows that have some.")
        weights = None if self.weights is None else self.weights[labelled]
        return self._replace(
            rows=self.rows[labelled], targets=self.targets[labelled], weights=weights
        )

    def dataset(self, schema: Schema | None, names: Sequence[str] | None) -> Dataset:
        """Return it as a dataset in memory, as `dataset_in_memory` does."""
        own = self.targets
        labels, numbers = (typed_labels(own), None) if own.ndim == 1 else (None, own)
        source = ArraySource(self.rows, labels, self.weights, numbers)
        source.target_names = self.target_names or source.target_names
        n_classes = 0 if self.classes is None else len(self.classes)
        return dataset_in_memory(
            source, schema, names, unlabelled=self.unlabelled, classes=range(n_classes)
        )


def dataset_in_memory(
    source: ArraySource,
    schema: Schema | None,
    names: Sequence[str] | None,
    *,
    unlabelled: Mark | None = None,
    classes: Sequence[int] = (),
) -> Dataset:
    """Return rows as a dataset in memory; with a schema they are the stored ones.

    It has the given classes, whether rows have them or not.
    """
    source.schema, source.feature_names = schema, None if names is None else tuple(names)
    sparse = "auto" if source.n_values is None else "yes"
    return ingest_source(
        source, MemoryStore(), sparse=sparse, unlabelled=unlabelled, classes=classes
    )


def is_dask(X: Any) -> bool:
    """Return whether `X` is a dask array, dataframe or series."""
    return isinstance(X, da.Array) or hasattr(X, "to_dask_array")


def is_chunked(X: Any) -> bool:
    """Return whether rows are read chunk by chunk: Zarr arrays, dask, pixels and datasets are."""
    return isinstance(X, Dataset | zarr.Array | Pixels) or is_dask(X)


def chunked_dataset(
    X: Any,
    y: Any,
    sample_weight: Any,
    place: Location,
    name: str,
    *,
    numbers: bool,
    unlabelled: Mark | None,
    missing: str,
    schema: Schema | None,
) -> Dataset:
    """Return chunked rows as a dataset: that which was given, or `name` written under `place`."""
    if isinstance(X, Dataset):
        if not (y is None and sample_weight is None and unlabelled is None):
            raise ParameterError(
                "y, `sample_weight` or `unlabelled` is given beside a Dataset.",
                "A Dataset has its own.",
            )
        return X
    if isinstance(X, Pixels):
        if sample_weight is not None:
            raise ParameterError("`sample_weight` is given for pixels.", "Leave it out.")
        source = X.source(numbers=numbers, unlabelled=unlabelled)
        return ingest_source(source, join(place, name), unlabelled=unlabelled, overwrite=True)
    weights = None if sample_weight is None else _to_dask(sample_weight)
    rows, targets = _to_dask(X), _to_dask(y)
    labels, target = (None, targets) if numbers else (targets, None)
    return ingest_dask(
        rows,
        labels,
        join(place, name),
        target=target,
        weights=weights,
        missing=missing,
        schema=schema,
        unlabelled=unlabelled,
        overwrite=True,
    )


def chunked_rows(X: Any, place: Location, name: str, missing: str) -> Dataset:
    """Return chunked rows without targets as a dataset, as `chunked_dataset` does."""
    if isinstance(X, Dataset):
        return X
    if isinstance(X, Pixels):
        return ingest_source(X.source(), join(place, name), overwrite=True)
    return ingest_dask(_to_dask(X), None, join(place, name), missing=missing, overwrite=True)


def _to_dask(values: Any) -> Any:
    if isinstance(values, zarr.Array):
        return da.from_zarr(values)
    if values is None:
        raise DataError("y is missing.", "Give it for every row of X.")
    return values if is_dask(values) else da.from_array(np.asarray(values), chunks=-1)
