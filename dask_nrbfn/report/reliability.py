"""The table of the reliability of probabilities."""

from collections.abc import Sequence

from dask_nrbfn.numeric.reliability import ReliabilityBin, expected_calibration_error
from dask_nrbfn.report.formats import TextTable, count, decimals


def reliability_table(
    title: str, labels: Sequence[str], bins: Sequence[ReliabilityBin]
) -> TextTable:
    """Return rows, mean probability and observed share of each bin of the rows called `title`."""
    event = f"class {labels[1]}" if len(labels) == 2 else "a right label"
    error = decimals(expected_calibration_error(bins))
    rows = [
        [count(each["n_rows"]), *map(decimals, (each["mean_probability"], each["observed_share"]))]
        for each in bins
    ]
    return TextTable(
        f"{title}: probability of {event}; expected calibration error {error}",
        ["rows", "mean probability", "observed share"],
        rows,
    )
