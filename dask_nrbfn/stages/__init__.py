"""The stages of a fit. Each reads the arrays of earlier stages."""

from collections.abc import Mapping
from typing import Any


def judged_record(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record with the held-out errors of the chosen network; empty without a tuning.

    It is the record of the cells if they have networks, of the losses if some were tried, else of
    the penalties.
    """
    of_cells, refined = stages.get("cells", {}), stages.get("refine", {})
    if "fitting_error" in of_cells:
        return of_cells
    return refined if "error_rate" in refined else stages.get("validation", {})
