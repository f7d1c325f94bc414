"""Text representations of open objects.

The function that makes them is above storage: it uses the words of reports. The package registers
it.
"""

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_represent: Callable[[Any], str] | None = None


def represent_with(represent: Callable[[Any], str]) -> None:
    """Register the function that makes all representations."""
    global _represent
    _represent = represent


class Shown:
    """Base of classes whose objects represent themselves in consoles and notebooks."""

    def __repr__(self) -> str:
        location = getattr(self, "location", "")
        name = f"<dask_nrbfn.{type(self).__name__}> {location}".rstrip()
        # A debugger or a log must not fail because metadata is damaged.
        try:
            return name if _represent is None else _represent(self)
        except Exception:
            logger.debug("no representation of %s", name, exc_info=True)
            return name
