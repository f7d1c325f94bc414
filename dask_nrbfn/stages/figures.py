"""Figures of held-out rows that several stages record."""

from dataclasses import dataclass

from dask_nrbfn.numeric.reliability import ReliabilityBin


@dataclass(frozen=True, kw_only=True)
class LabelFigures:
    """Figures of labels; None if the targets are numbers, or no row is held out.

    With the calibration; `fold_deviation` is that of the error rate, of numbers the relative error.
    """

    error_rate: float | None = None
    fold_deviation: float | None = None
    log_loss: float | None = None
    temperature: float | None = None
    log_slope: float | None = None
    biases: list[float] | None = None
    expected_calibration_error: float | None = None
    reliability: list[ReliabilityBin] | None = None


@dataclass(frozen=True, kw_only=True)
class HeldOutFigures(LabelFigures):
    """Figures of labels or of numbers; the relative error is the mean ``1 - R^2`` of targets."""

    relative_error: float | None = None
    r2: list[float] | None = None
    rmse: list[float] | None = None
    mae: list[float] | None = None
