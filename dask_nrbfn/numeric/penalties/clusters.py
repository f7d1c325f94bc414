"""``P = diag(1 / share)``: the weight of the centre of a large cluster may be large.

The weighted k-means network of Que & Belkin, *Back to the Future: Radial Basis Function Networks
Revisited*, 2016, section 4. With the shares s of the clusters and ``v_j = w_j s_j`` its ``f(x) =
sum_j w_j s_j k(x, c_j)`` is ``sum_j v_j k(x, c_j)``, and its penalty ``sum_j s_j w_j^2`` is
``sum_j v_j^2 / s_j``. An empty cluster has no part in it.
"""

import numpy as np

from dask_nrbfn.numeric.penalties import Floats, Penalty
from dask_nrbfn.numeric.radial import RadialFeatures


def _inverse_shares(features: RadialFeatures, shares: Floats | None) -> Floats:
    assert shares is not None
    with np.errstate(divide="ignore"):
        return 1.0 / shares


PENALTY = Penalty(
    diagonal=_inverse_shares,
    needs={"features": "plain", "basis": "kmeans"},
    needs_shares=True,
)
