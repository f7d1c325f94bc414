"""The k nearest neighbours of every row, the row itself excluded."""

from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.cost import faster_method, search_bytes
from dask_nrbfn.neighbors.distances import Neighbors, measure_neighbors
from dask_nrbfn.neighbors.exact import exact_neighbors

__all__ = [
    "Neighbors",
    "approximate_neighbors",
    "exact_neighbors",
    "faster_method",
    "measure_neighbors",
    "search_bytes",
]
