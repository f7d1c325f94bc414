"""``P = I``: the squared norm of the weights, the penalty of hu-nrbfn."""

from dask_nrbfn.numeric.penalties import Penalty

PENALTY = Penalty()
