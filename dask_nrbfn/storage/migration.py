"""What earlier formats stored, as it is today."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RENAMED = {"seed": "random_state"}


def todays_params(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored parameters by the names that they have today.

    >>> todays_params({"alpha": 0.1, "seed": 3})
    {'alpha': 0.1, 'random_state': 3}
    """
    return {_RENAMED.get(name, name): value for name, value in stored.items()}


def todays_tuning(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a stored tuning tries; before there were efforts it listed all but the fit's own.

    >>> todays_tuning({"folds": 3})
    {'effort': 'quick', 'folds': 3}
    """
    return {"effort": "quick", **todays_params(stored)}


def todays_moments(
    packed_gram: Floats, cross: Floats, class_weights: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the arrays of `Moments` from those of format 3: ``F' Phi`` and the diagonal of F'F.

    >>> _, products, target_products = todays_moments(
    ...     np.array([2.0]), np.array([[0.5], [1.5]]), np.array([1.0, 3.0])
    ... )
    >>> products.tolist(), target_products.tolist()
    ([[2.0], [0.5], [1.5]], [[4.0, 1.0, 3.0], [1.0, 1.0, 0.0], [3.0, 0.0, 3.0]])
    """
    target_products = np.diag(np.append(class_weights.sum(), class_weights))
    target_products[0, 1:] = target_products[1:, 0] = class_weights
    return packed_gram, np.vstack([cross.sum(axis=0), cross]), target_products
