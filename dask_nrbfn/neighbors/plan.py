"""The neighbour search that is estimated to take the least time, and its bytes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.neighbors.exact import SPARE
from dask_nrbfn.neighbors.partition import MAX_IMBALANCE
from dask_nrbfn.params import FitParams

# Fitted on two cores to 60,000 x 784 and 550,000 x 32 with products in single precision; only their
# ratio decides.
_FLOPS_PER_SECOND_AND_CORE = 1e11
_SECONDS_PER_PAIR = 2e-9
# The same for rows in CSR. Two texts of 140 words have 9 words in common, some of which are in
# nearly every text.
_SECONDS_PER_SHARED_VALUE = 3e-9
_SHARED = 1 / 16
# For rows in CSR, NNDescent compares columns before values.
_COMPARED = 45
# Compilation: 20 s with numba's cache, 45 s without.
COMPILATION_S = 25.0
_SECONDS_PER_UPDATE = 1.9e-8

# Maximum length of the candidate lists of NNDescent.
_MAX_CANDIDATES = 60

# Update buffers of NNDescent: pairs of the candidates of this many rows at a time, fitted to 0.8 GB
# at 30 neighbours.
_UPDATED_ROWS = 16_384
_BYTES_PER_UPDATE = 51

# Rows up to this number of bytes are searched at once, more rows in partitions of this size. So the
# memory of a search depends neither on the number of rows nor on the memory of the workers.
_SEARCH_BYTES = 2**30

# Rows of the sample that places the partitions: enough of each to estimate its share to a tenth,
# and in all no more than fits easily into the memory of a node. Fewer rows than the least cannot
# place a partition.
_SAMPLE_ROWS_PER_PARTITION = 512
_LEAST_SAMPLE_ROWS_PER_PARTITION = 32
_MIN_SAMPLE_ROWS = 2**15
_MAX_SAMPLE_ROWS = 2**18
_MAX_SAMPLE_ELEMENTS = 2**25

# The means of rows in CSR are arrays: 128 MiB of them, of which k-means holds a few.
_MAX_CENTROID_ELEMENTS = 2**24


@dataclass(frozen=True, kw_only=True)
class NeighborSearch:
    """How neighbours are searched, with every "auto" resolved when the run began.

    threads: the graph of an approximate search depends on them.
    """

    method: str
    n_partitions: int
    threads: int
    n_candidates: int | None = None


@dataclass(frozen=True, kw_only=True)
class SearchedRows:
    """The sizes of the rows among which neighbours are searched.

    row_width: how many numbers store a row: p, or in CSR its values and column indices.
    """

    n_rows: int
    n_features: int
    row_values: float
    row_width: int
    dtype: np.dtype[Any]
    params: FitParams

    def plan(self, *, threads: int, free_bytes: Callable[[str], int]) -> NeighborSearch:
        """Return the search of all rows; `free_bytes` gives the memory for a method."""
        n_partitions, method = self.params.n_partitions, self.params.neighbors
        if n_partitions is not None:
            self._check_partitions(n_partitions)
        elif method == "auto":
            smallest = min(self.smallest_partition, self.n_rows)
            if self._largest_search("approximate", free_bytes) < smallest:
                method = "exact"
        if method == "auto":
            method = self.faster_method(n_partitions or 1, threads=threads)
        if n_partitions is None:
            n_partitions = self._fitting_partitions(method, free_bytes)
        return NeighborSearch(method=method, n_partitions=int(n_partitions), threads=threads)

    def search_bytes(self, n_rows: int, method: str) -> int:
        """Return the bytes that a search of `n_rows` of the rows holds at its peak.

        The rows twice, and candidates and results of the exact search; for the approximate one
        lists of ``16 m + 34 l`` bytes a row with m = min(60, 2 k) and l = 1.25 k, and buffers.
        """
        k = self.params.k
        row_bytes = 2 * self.row_width * search_dtype(self.dtype, method).itemsize
        if method == "exact":
            list_bytes = 40 * (k + 1) + 24 * SPARE
            return n_rows * (row_bytes + list_bytes)
        n_searched, n_candidates = graph_lists(k)
        list_bytes = 16 * n_candidates + 34 * n_searched
        buffer_bytes = _UPDATED_ROWS * (k + 1) ** 2 * _BYTES_PER_UPDATE
        return n_rows * (row_bytes + list_bytes) + buffer_bytes

    @property
    def smallest_partition(self) -> int:
        """Mean partition size that is needed to fill lists of k neighbours."""
        return 4 * (self.params.k + 1)

    @property
    def most_partitions(self) -> int:
        """Largest allowed number of partitions, at least 1.

        Each needs enough rows to fill the neighbour lists; sample and centroids have maximum sizes.
        """
        filled = self.n_rows * self.params.overlap // self.smallest_partition
        known = math.isqrt(_MAX_SAMPLE_ELEMENTS // _LEAST_SAMPLE_ROWS_PER_PARTITION)
        sampled = _MAX_SAMPLE_ELEMENTS // self.row_width // _LEAST_SAMPLE_ROWS_PER_PARTITION
        held = _MAX_CENTROID_ELEMENTS // self.n_features
        return max(1, min(filled, known, sampled, held))

    def _check_partitions(self, n_partitions: int) -> None:
        # With fewer than one more than the overlap, every partition would have all rows.
        least, most = self.params.overlap + 1, self.most_partitions
        if n_partitions != 1 and not least <= n_partitions <= most:
            allowed = f", or a number from {least} to {most}" if least <= most else ""
            raise ParameterError(
                f"`n_partitions` is {n_partitions}, which does not fit {self.n_rows} x "
                f"{self.n_features} values, `n_neighbors`={self.params.k} and "
                f"`overlap`={self.params.overlap}.",
                f"Give `n_partitions`=1{allowed}.",
            )

    def _fitting_partitions(self, method: str, free_bytes: Callable[[str], int]) -> int:
        """Return the number of partitions for a search of all rows; 1 if all rows fit at once."""
        largest = self._largest_search(method, free_bytes)
        if largest >= self.n_rows:
            return 1
        wanted = self._rows_of_partitions / max(largest, self.smallest_partition)
        return max(self.params.overlap + 1, min(math.ceil(wanted), self.most_partitions))

    def _largest_search(self, method: str, free_bytes: Callable[[str], int]) -> int:
        """Return the number of rows that a worker can search at once."""
        buffers = self.search_bytes(0, method)
        available = min(_SEARCH_BYTES, free_bytes(method) - buffers)
        return max(0, available) // (self.search_bytes(1, method) - buffers)

    def faster_method(self, n_partitions: int, *, threads: int) -> str:
        """Return the method that is estimated to take less time."""
        rows = self.n_rows
        if n_partitions > 1:
            rows = math.ceil(self._rows_of_partitions / n_partitions)
        exact_s = n_partitions * rows**2 * self._pair_s / threads
        updates = n_partitions * candidate_updates(
            rows, self.n_features, self.row_values, n_neighbors=self.params.k
        )
        approximate_s = COMPILATION_S + updates / update_rate(threads)
        return "exact" if exact_s <= approximate_s else "approximate"

    @property
    def _pair_s(self) -> float:
        """Seconds of a core for the distance of two rows."""
        flops = pair_flops(self.n_features, self.row_values)
        if self.row_values == self.n_features:
            return flops / _FLOPS_PER_SECOND_AND_CORE + _SECONDS_PER_PAIR
        return flops / 2 * _SECONDS_PER_SHARED_VALUE + _SECONDS_PER_PAIR

    @property
    def _rows_of_partitions(self) -> float:
        """Rows of all partitions together, if each has as many rows as a partition may have."""
        return MAX_IMBALANCE * self.n_rows * self.params.overlap


def search_dtype(dtype: np.dtype[Any], method: str) -> np.dtype[Any]:
    """Return the precision of a search: single if it loses nothing or the search has no other."""
    if method == "approximate" or np.can_cast(dtype, np.float32):
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def sample_rows(n_rows: int, row_width: int, n_partitions: int) -> int:
    """Return the number of rows of the sample that places partitions."""
    most = _MAX_SAMPLE_ELEMENTS // max(n_partitions, row_width)
    wanted = max(_MIN_SAMPLE_ROWS, n_partitions * _SAMPLE_ROWS_PER_PARTITION)
    return min(n_rows, wanted, _MAX_SAMPLE_ROWS, most)


def pair_flops(n_features: int, row_values: float) -> float:
    """Return the flops of the product of two rows with a mean of `row_values` stored values.

    In CSR twice the number of columns that both rows store. Columns of unequal frequency are shared
    more often than by chance.
    """
    if row_values == n_features:
        return 2 * n_features
    return 2 * (_SHARED * row_values + row_values**2 / n_features)


def graph_lists(n_neighbors: int) -> tuple[int, int]:
    """Return how many neighbours of each row NNDescent searches, and how many candidates it lists.

    Each raises the recall on 550,000 x 32 from .987: a quarter more neighbours than k to .995,
    because most missed neighbours are the furthest ones; candidates of twice k to .994.
    """
    return n_neighbors + n_neighbors // 4, min(_MAX_CANDIDATES, 2 * n_neighbors)


def candidate_updates(n_rows: int, n_features: int, row_values: float, *, n_neighbors: int) -> int:
    """Return the number of candidate updates of NNDescent: compared values of candidates."""
    n_searched, _ = graph_lists(n_neighbors)
    compared = round(_COMPARED * row_values) if row_values < n_features else n_features
    return n_rows * (n_searched + 1) * (compared + 100)


def update_rate(threads: int) -> float:
    """Return the number of candidate updates per second."""
    return threads / _SECONDS_PER_UPDATE
