"""How many of the true neighbours a search found."""

import math
from typing import NamedTuple

from dask_nrbfn.numeric.types import Floats

# Distances that differ by less are equal: the same pair measured in another order of its sum.
_RELATIVE_TOLERANCE = 1e-9


class Recall(NamedTuple):
    """Mean share of the true neighbours found, and the standard error of that mean."""

    mean: float
    standard_error: float


def measure_recall(found: Floats, exact: Floats) -> Recall:
    """Return the recall of neighbour lists, given by their distances.

    Parameters
    ----------
    found, exact : float64 (b, k)
        Distances of the neighbours found and of the true ones, nearest first.

    Notes
    -----
    A neighbour counts as true if it is no further away than the k-th true one. So it does not
    matter which of several rows at the same distance was found.

    Examples
    --------
    >>> measure_recall(np.array([[1.0, 3.0], [1.0, 2.0]]), np.array([[1.0, 2.0], [1.0, 2.0]]))
    Recall(mean=0.75, standard_error=0.25)
    """
    true = found <= exact[:, -1:] * (1.0 + _RELATIVE_TOLERANCE)
    shares = true.mean(axis=1)
    spread = float(shares.std(ddof=1)) if len(shares) > 1 else 0.0
    return Recall(float(shares.mean()), spread / math.sqrt(len(shares)))
