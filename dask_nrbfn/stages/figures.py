"""Figures of held-out rows that several stages record."""

from dataclasses import dataclass

from dask_nrbfn.numeric.reliability import ReliabilityBin


@dataclass(frozen=True, kw_only=True)
class LabelFigures:
    """Figures of labels; None if the targets are numbers, or no row is held out.

    Attributes
    ----------
    error_rate : float or None
    log_loss, temperature : float or None
        With the calibration by `biases`.
    log_slope : float or None
    biases : list of float or None
        See `Calibration`.
    expected_calibration_error : float or None
    reliability : list of dict or None
        With the calibration by `biases`, see `dask_nrbfn.numeric.reliability`.
    """

    error_rate: float | None = None
    log_loss: float | None = None
    temperature: float | None = None
    log_slope: float | None = None
    biases: list[float] | None = None
    expected_calibration_error: float | None = None
    reliability: list[ReliabilityBin] | None = None


@dataclass(frozen=True, kw_only=True)
class HeldOutFigures(LabelFigures):
    """Figures of labels or of numbers.

    Attributes
    ----------
    relative_error : float or None
        Mean of ``1 - R^2`` over the numeric targets; None for classes.
    r2, rmse, mae : list of float or None
        Of each numeric target; None for classes.
    """

    relative_error: float | None = None
    r2: list[float] | None = None
    rmse: list[float] | None = None
    mae: list[float] | None = None
