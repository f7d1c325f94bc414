"""The k nearest neighbours of every row, the row itself excluded."""

from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.cost import (
    COMPILATION_S,
    PROBED,
    candidate_updates,
    faster_method,
    faster_partitions,
    largest_search,
    listed_neighbors,
    pair_flops,
    search_bytes,
    update_rate,
)
from dask_nrbfn.neighbors.exact import Repeats, exact_neighbors, find_repeats, nearest_rows
from dask_nrbfn.neighbors.inverted import (
    CandidateSearch,
    InvertedFile,
    NearestRows,
    bounds_of,
)
from dask_nrbfn.neighbors.lists import (
    MISSING,
    Neighbors,
    Recall,
    measure_neighbors,
    measure_pairs,
    measure_recall,
    merge_neighbors,
)
from dask_nrbfn.neighbors.partition import MAX_IMBALANCE, Partitions

__all__ = [
    "COMPILATION_S",
    "MAX_IMBALANCE",
    "MISSING",
    "PROBED",
    "CandidateSearch",
    "InvertedFile",
    "NearestRows",
    "Neighbors",
    "Partitions",
    "Recall",
    "Repeats",
    "approximate_neighbors",
    "bounds_of",
    "candidate_updates",
    "exact_neighbors",
    "faster_method",
    "faster_partitions",
    "find_repeats",
    "largest_search",
    "listed_neighbors",
    "measure_neighbors",
    "measure_pairs",
    "measure_recall",
    "merge_neighbors",
    "nearest_rows",
    "pair_flops",
    "search_bytes",
    "update_rate",
]
