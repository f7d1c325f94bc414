"""The stages of a fit. Each reads the arrays of earlier stages."""

from collections.abc import Mapping
from typing import Any


def judged_record(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record with the held-out errors of the chosen network; empty without a tuning.

    It is the record of the losses if some were tried, else of the penalties.
    """
    refined = stages.get("refine", {})
    return refined if "error_rate" in refined else stages.get("validation", {})
