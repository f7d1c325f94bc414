"""Text and HTML representations of open objects.

The function that makes them is above storage: it uses the words of reports. The package registers
it.
"""

import html
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Represent = Callable[..., str]
"""Returns a few lines of text of an object or, with ``as_html``, HTML with further figures."""

_represent: Represent | None = None


def represent_with(represent: Represent) -> None:
    """Register the function that makes all representations."""
    global _represent
    _represent = represent


class Shown:
    """Base of classes whose objects represent themselves in consoles and notebooks."""

    def __repr__(self) -> str:
        return self._represented() or self._name

    def _repr_html_(self, **figures: Any) -> str:
        """Return HTML with further figures, such as ``error_rate``, by the names of `describe`."""
        made = self._represented(as_html=True, **figures)
        return made or f"<pre>{html.escape(self._name)}</pre>"

    @property
    def _name(self) -> str:
        location = getattr(self, "location", "")
        return f"<dask_nrbfn.{type(self).__name__}> {location}".rstrip()

    def _represented(self, **options: Any) -> str:
        # A debugger or a log must not fail because metadata is damaged.
        try:
            return "" if _represent is None else _represent(self, **options)
        except Exception:
            logger.debug("no representation of %s", self._name, exc_info=True)
            return ""
