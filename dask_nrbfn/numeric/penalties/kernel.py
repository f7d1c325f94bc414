"""``P = K``, the kernel between the basis rows: the norm of f in the kernel's own space.

This is Nystroem kernel ridge regression, what Falkon solves (Rudi, Carratino & Rosasco, *FALKON: An
Optimal Large Scale Kernel Method*, 2017, eq. 8). With all rows as the basis it is kernel ridge
regression, the K-RLSC of Que & Belkin, *Back to the Future: Radial Basis Function Networks
Revisited*, 2016.
"""

from dask_nrbfn.numeric.penalties import Floats, Penalty
from dask_nrbfn.numeric.radial import RadialFeatures


def _between_basis_rows(features: RadialFeatures, shares: Floats | None) -> Floats:
    return features.between_basis_rows()


PENALTY = Penalty(matrix=_between_basis_rows, needs={"features": "plain"})
