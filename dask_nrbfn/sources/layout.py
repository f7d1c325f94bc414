"""What every source knows before its first block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import Schema

# A block has at least one row: 128 MiB of float64. What says more is a damaged header, or a number
# that stands where an index should be.
MAX_FEATURES = 2**24


class StoredAt(NamedTuple):
    """Where rows are that need not be copied: a Zarr store, and what is in it, "obsm/X_pca".

    A dataset of them reads `chunk_rows` at once, or a multiple.
    """

    place: str
    path: str
    chunk_rows: int


@dataclass(kw_only=True)
class Layout:
    """Size and types of one table, the attributes of `Source`."""

    n_rows: int
    n_features: int
    x_dtype: np.dtype
    y_dtype: np.dtype | None
    has_weights: bool = False
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    schema: Schema | None = None
    id_dtype: np.dtype | None = None
    n_values: int | None = None
    unlabelled: int | str | float | None = None
    read_as: Mapping[str, str] | None = None
    stored_at: StoredAt | None = None
    boolean_labels: bool = False


def numbered_targets(n_targets: int) -> tuple[str, ...]:
    """Names of targets that come without.

    >>> numbered_targets(1), numbered_targets(2)
    (('target',), ('target_0', 'target_1'))
    """
    return ("target",) if n_targets == 1 else tuple(f"target_{j}" for j in range(n_targets))


def check_one_kind(option: str, labels: object, target: object) -> None:
    """Refuse numbers as targets beside labels.

    Raises
    ------
    ParameterError
        If neither is None; `option` is what the labels were given as.
    """
    if labels is not None and target is not None:
        raise ParameterError(
            f"`{option}` and `target` are both given.",
            f"Give classes as `{option}`, or numbers as `target`.",
        )


def check_apart(option: str, name: str | None, *others: str | None) -> None:
    """Refuse weights or targets that are something else too.

    Raises
    ------
    ParameterError
        If the `name` given as `option` is one of `others`.
    """
    if name is not None and name in others:
        raise ParameterError(
            f"`{option}`={name} names the features, labels or targets.",
            f"Name what holds nothing else, or leave `{option}` out.",
        )


def check_size(origin: str, *, n_rows: int, n_features: int) -> None:
    """Refuse a table without rows, without features or with more than a row can have.

    Raises
    ------
    DataError
        If either number is 0, or `n_features` above `MAX_FEATURES`.
    """
    if n_features == 0:
        raise DataError(
            f"{origin} is empty: it has no feature columns.", "Give at least one feature per row."
        )
    if n_rows == 0:
        raise DataError(f"{origin} is empty: it has no rows.", "Give at least one row.")
    if n_features > MAX_FEATURES:
        raise DataError(
            f"{origin} has {n_features} feature columns.",
            f"Check what says so; at most {MAX_FEATURES} fit a row, so hash or project them first.",
        )
