"""What every source knows before its first block."""

from dataclasses import dataclass

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError

# A block has at least one row: 128 MiB of float64. What says more is a damaged header, or a number
# that stands where an index should be.
MAX_FEATURES = 2**24


@dataclass(kw_only=True)
class Layout:
    """Size and types of one table, the attributes of `Source`."""

    n_rows: int
    n_features: int
    x_dtype: np.dtype
    y_dtype: np.dtype | None
    has_weights: bool = False
    feature_names: tuple[str, ...] | None = None


def check_weights_apart(weights: str | None, *others: str | None) -> None:
    """Refuse weights that are also the features or the labels.

    Raises
    ------
    ParameterError
        If `weights` is one of `others`.
    """
    if weights is not None and weights in others:
        raise ParameterError(
            f"`weights`={weights} names the features or labels.",
            "Name what holds one weight per row, or leave `weights` out.",
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
