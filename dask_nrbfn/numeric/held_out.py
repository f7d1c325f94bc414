"""How scores do on rows that were held out: errors, and probabilities calibrated on them."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.sums import RowSum

Floats = NDArray[np.float64]

# Half an octave apart: the log loss is convex in the inverse temperature, and a parabola through
# three neighbours comes within a thousandth of its least value.
INVERSE_TEMPERATURES: Floats = 2.0 ** np.linspace(-2.0, 10.0, 25)


@dataclass(frozen=True, eq=False)
class HeldOutSums(RowSum):
    """Weighted sums over held-out rows for A models. They add.

    Attributes
    ----------
    confusion : float64 (A, K, K)
        Weight of the rows of each class (second axis) that got each label (third axis).
    log_losses : float64 (A, T)
        Sum of the log losses of ``softmax(scores / temperature)``, for every inverse temperature
        of `INVERSE_TEMPERATURES`.
    """

    confusion: Floats
    log_losses: Floats

    @classmethod
    def zeros(cls, n_models: int, n_classes: int) -> Self:
        """Return the sums of no rows."""
        return cls(
            np.zeros((n_models, n_classes, n_classes)),
            np.zeros((n_models, len(INVERSE_TEMPERATURES))),
        )

    @classmethod
    def from_block(
        cls, scores: Floats, codes: NDArray[np.integer], weights: Floats | None = None
    ) -> Self:
        """Return the sums of one block.

        Parameters
        ----------
        scores : float64 (b, A, K)
        codes : integer (b,)
            Classes, 0 ... K - 1.
        weights : float64 (b,), optional

        Notes
        -----
        Takes ``25 b A K`` exponentials and ``16 b A K`` bytes.
        """
        n_rows, n_models, n_classes = scores.shape
        if weights is None:
            weights = np.ones(n_rows)
        below = scores - scores.max(axis=2, keepdims=True)
        own = np.take_along_axis(below, codes[:, None, None], axis=2)[:, :, 0]
        log_losses = np.empty((n_models, len(INVERSE_TEMPERATURES)))
        for place, inverse in enumerate(INVERSE_TEMPERATURES):
            log_losses[:, place] = weights @ (
                np.log(np.exp(inverse * below).sum(axis=2)) - inverse * own
            )
        cells = (np.arange(n_models) * n_classes + codes[:, None]) * n_classes
        cells += scores.argmax(axis=2)
        confusion = np.bincount(
            cells.ravel(),
            np.repeat(weights, n_models),
            minlength=n_models * n_classes**2,
        )
        return cls(confusion.astype(np.float64).reshape(n_models, n_classes, n_classes), log_losses)

    @property
    def error_rates(self) -> Floats:
        """Share of the weight that got a wrong label, float64 (A,)."""
        wrong = np.where(np.eye(self.confusion.shape[1], dtype=bool), 0.0, self.confusion)
        rates: Floats = wrong.sum(axis=(1, 2)) / self.confusion.sum(axis=(1, 2))
        return rates


@dataclass(frozen=True)
class Calibration:
    """The temperature at which probabilities fit held-out rows best.

    Attributes
    ----------
    temperature : float
        Scores are divided by it before the softmax.
    log_loss : float
        Of a row on average.
    """

    temperature: float
    log_loss: float


def calibrate_temperature(log_losses: Floats, *, total_weight: float) -> Calibration:
    """Return the best temperature.

    Parameters
    ----------
    log_losses : float64 (T,)
        Sums at `INVERSE_TEMPERATURES`, as `HeldOutSums` has them.
    total_weight : float
        Weight of the rows that were summed.

    Notes
    -----
    Temperature scaling (Guo et al. 2017), one parameter for all classes, which changes no label.
    The minimum is that of the parabola in the logarithm of the temperature through the best grid
    point and its neighbours.
    """
    best = int(np.argmin(log_losses))
    logarithm, lowest = np.log(INVERSE_TEMPERATURES[best]), float(log_losses[best])
    if 0 < best < len(log_losses) - 1:
        before, after = (float(log_losses[place]) for place in (best - 1, best + 1))
        curvature = before - 2.0 * lowest + after
        if curvature > 0:
            step = np.log(INVERSE_TEMPERATURES[1] / INVERSE_TEMPERATURES[0])
            shift = 0.5 * (before - after) / curvature
            logarithm += shift * step
            # Where all labels are right the losses end in zeros, which a parabola passes below.
            lowest = max(lowest - 0.25 * (before - after) * shift, 0.0)
    return Calibration(float(np.exp(-logarithm)), lowest / total_weight)


def softmax(scores: Floats, *, temperature: float) -> Floats:
    """Return the probabilities ``softmax(scores / temperature)``, float64 (b, K)."""
    exponents = scores / temperature
    exponents -= exponents.max(axis=1, keepdims=True)
    probabilities: Floats = np.exp(exponents, out=exponents)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return probabilities
