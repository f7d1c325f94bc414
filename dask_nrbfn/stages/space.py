"""The rows as a neighbour search sees them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_nrbfn.numeric.rows import Rows, canonical, is_sparse
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.stages.columns import read_statistics
from dask_nrbfn.stages.scaling import read_scaling
from dask_nrbfn.stages.search_sizes import search_dtype
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Scaled rows about their centre, in the precision that the search needs.

    Rows in CSR stay where they are: they would fill.
    """

    scaling: Scaling
    centre: Floats | float
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, run: Run, dataset: Dataset, method: str) -> "SearchSpace":
        """Return the space of a search by `method`, "exact" or "approximate"."""
        centred = run.chosen_params.scale == "none" and not dataset.is_sparse
        centre = read_statistics(run).exact_centre() if centred else 0.0
        return cls(read_scaling(run), centre, search_dtype(dataset, method))

    def apply(self, X: Rows) -> Rows:
        """Return rows of X (b, p) in this space."""
        if is_sparse(X):
            # What is 0 in single precision is not stored.
            return canonical(self.scaling.apply(X).astype(self.dtype, copy=False))
        return (self.scaling.apply(X) - self.centre).astype(self.dtype, copy=False)
