"""Reliability of probabilities: the table, and the data of the chart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dask_nrbfn.numeric.reliability import ReliabilityBin, expected_calibration_error
from dask_nrbfn.report.formats import TextTable, count, decimals


@dataclass(frozen=True)
class Reliability:
    """The reliability of the probabilities of some rows.

    Attributes
    ----------
    table : TextTable
        Rows, mean probability and observed share of each bin.
    event : str
        Event that the probability is of: a class, or that the label is right.
    bins : sequence of dict
        See `dask_nrbfn.numeric.reliability`.
    """

    table: TextTable
    event: str
    bins: Sequence[ReliabilityBin]

    @property
    def error(self) -> float:
        """The expected calibration error."""
        return expected_calibration_error(self.bins)

    @classmethod
    def of(cls, title: str, labels: Sequence[str], bins: Sequence[ReliabilityBin]) -> Self:
        """Lay out the bins of some rows.

        Parameters
        ----------
        title : str
            Name of the rows.
        labels : sequence of str (K,)
        bins : sequence of dict

        Returns
        -------
        Reliability
        """
        event = f"class {labels[1]}" if len(labels) == 2 else "a right label"
        error = decimals(expected_calibration_error(bins))
        what = f"{title}: probability of {event}; expected calibration error {error}"
        rows = [
            [
                count(each["n_rows"]),
                decimals(each["mean_probability"]),
                decimals(each["observed_share"]),
            ]
            for each in bins
        ]
        header = ["rows", "mean probability", "observed share"]
        return cls(TextTable(what, header, rows), event, bins)
