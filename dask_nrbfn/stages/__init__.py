"""The stages of a fit. Each reads the arrays of earlier stages."""

from collections.abc import Mapping, Sequence
from typing import Any


def judged_record(
    stages: Mapping[str, dict[str, Any]], versions: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return the held-out figures of the network, or of its latest version; empty without any."""
    if versions and versions[-1]["held_out"]:
        return dict(versions[-1]["held_out"])
    if of_cells := cells_record(stages):
        return of_cells
    refined = stages.get("refine", {})
    return refined if "error_rate" in refined else stages.get("validation", {})


def cells_record(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the record of the cells of a run; empty if one network is fitted to all rows."""
    record = stages.get("cells", {})
    return record if "fitting_error" in record else {}
