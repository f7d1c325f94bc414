"""The stages of a fit. Each reads the arrays of earlier stages."""

from collections.abc import Mapping
from typing import Any


def judged_record(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record with the held-out errors of the chosen network; empty without a tuning."""
    if of_cells := cells_record(stages):
        return of_cells
    refined = stages.get("refine", {})
    return refined if "error_rate" in refined else stages.get("validation", {})


def cells_record(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record of the cells of a run; empty if one network is fitted to all rows."""
    record = stages.get("cells", {})
    return record if "fitting_error" in record else {}
