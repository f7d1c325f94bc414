"""The stages of a fit, each of which reads what those before it wrote."""

from collections.abc import Mapping
from typing import Any


def judged_record(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record with the held-out errors of the chosen network; empty without a tuning.

    It is that of the losses, if some were tried, else that of the penalties.
    """
    refined = stages.get("refine", {})
    return refined if "error_rate" in refined else stages.get("validation", {})
