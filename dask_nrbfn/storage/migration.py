"""What earlier formats stored, as it is today."""

from collections.abc import Mapping
from typing import Any

_RENAMED = {"seed": "random_state"}


def todays_params(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored parameters by the names that they have today.

    >>> todays_params({"alpha": 0.1, "seed": 3})
    {'alpha': 0.1, 'random_state': 3}
    """
    return {_RENAMED.get(name, name): value for name, value in stored.items()}
