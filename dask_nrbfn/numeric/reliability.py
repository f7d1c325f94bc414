"""Reliability: mean probabilities and observed shares in bins of rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.bins import Bins
from dask_nrbfn.numeric.types import Floats

# Number of bins, as in most of the literature.
_N_BINS = 10

ReliabilityBin = dict[str, float]
"""``n_rows``, or their weight, the ``mean_probability`` and the ``observed_share``."""


def judged_probability(
    probabilities: Floats, codes: NDArray[np.integer]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the probability (b,) of the second of two classes, or of the predicted label.

    And whether its event occurred (b,).
    """
    if probabilities.shape[1] == 2:
        return probabilities[:, 1], codes == 1
    return probabilities.max(axis=1), codes == probabilities.argmax(axis=1)


def reliability_bins(values: Floats, rows: Floats, occurred: Floats) -> list[ReliabilityBin]:
    """Return at most ten bins of equal numbers of rows, by ascending probability.

    rows, occurred (m,): number, or weight, of all rows and of those whose event occurred.
    """
    before = np.cumsum(rows) - rows
    bins = np.floor((before + rows / 2) * (_N_BINS / rows.sum())).astype(np.int64)
    # Rounding could separate equal probabilities, and put the last into its own bin.
    bins = np.minimum(bins, _N_BINS - 1)[np.searchsorted(values, values)]
    counts = np.bincount(bins, rows)
    filled = np.flatnonzero(counts)
    means = np.bincount(bins, rows * values)[filled] / counts[filled]
    shares = np.bincount(bins, occurred)[filled] / counts[filled]
    return [
        {"n_rows": n_rows, "mean_probability": mean, "observed_share": share}
        for n_rows, mean, share in zip(
            counts[filled].tolist(), means.tolist(), shares.tolist(), strict=True
        )
    ]


def reliability_of_rows(
    probabilities: Floats, codes: NDArray[np.integer], weights: Floats
) -> list[ReliabilityBin]:
    """Return the reliability bins of rows in memory."""
    values, occurred = judged_probability(probabilities, codes)
    order = np.argsort(values, kind="stable")
    return reliability_bins(values[order], weights[order], (weights * occurred)[order])


def expected_calibration_error(bins: Sequence[Mapping[str, float]]) -> float:
    """Return the mean difference of mean probability and observed share, weighted by the rows.

    Naeini, Cooper & Hauskrecht 2015, with bins of equal numbers of rows.
    """
    total = sum(each["n_rows"] for each in bins)
    gaps = (
        each["n_rows"] * abs(each["mean_probability"] - each["observed_share"]) for each in bins
    )
    return sum(gaps) / total


class RankedProbabilities(Bins):
    """Counts, or weights, of rows by a probability: all rows, and those whose event occurred."""

    @classmethod
    def from_block(
        cls, probabilities: Floats, codes: NDArray[np.integer], weights: Floats | None = None
    ) -> Self:
        """Return the counts of one block of probabilities (b, K)."""
        values, occurred = judged_probability(probabilities, codes)
        rows = np.ones(len(values), dtype=np.int64) if weights is None else weights
        return cls.of_values(values, np.column_stack([rows, rows * occurred]))

    def figures(self) -> dict[str, Any]:
        """Return the expected calibration error and the reliability bins."""
        bins = self.binned()
        rows, occurred = bins.counts.T.astype(np.float64)
        found = reliability_bins(bins.middles(), rows, occurred)
        error = expected_calibration_error(found)
        if bins.counts.dtype.kind == "i":
            found = [{**each, "n_rows": round(each["n_rows"])} for each in found]
        return {"expected_calibration_error": error, "reliability": found}
