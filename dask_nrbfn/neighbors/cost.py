"""Seconds and bytes of the two searches, estimated before one is chosen."""

# Fitted on two cores to 60,000 x 784 and 200,000 x 32; only their ratio decides.
_FLOPS_PER_SECOND_AND_CORE = 5e10
_SECONDS_PER_PAIR = 3e-9
_COMPILATION_S = 45.0
_SECONDS_PER_UPDATE = 2e-8

# Largest candidate list of NNDescent, and its update buffers at 30 neighbours.
_MAX_CANDIDATES = 60
_UPDATE_BYTES_PER_NEIGHBOR = 800 * 2**20 // 30


def faster_method(n_rows: int, n_features: int, *, n_neighbors: int, threads: int) -> str:
    """Return "exact" or "approximate", whichever is estimated to take less time.

    Examples
    --------
    >>> faster_method(5_000, 784, n_neighbors=20, threads=2)
    'exact'
    >>> faster_method(1_000_000, 32, n_neighbors=20, threads=2)
    'approximate'
    """
    per_pair_s = 2 * n_features / _FLOPS_PER_SECOND_AND_CORE + _SECONDS_PER_PAIR
    exact_s = n_rows**2 * per_pair_s / threads
    updates = n_rows * (n_neighbors + 1) * (n_features + 100)
    approximate_s = _COMPILATION_S + updates * _SECONDS_PER_UPDATE / threads
    return "exact" if exact_s <= approximate_s else "approximate"


def search_bytes(
    n_rows: int, n_features: int, *, itemsize: int, n_neighbors: int, method: str
) -> int:
    """Return the bytes that a search over all rows holds at its peak.

    Notes
    -----
    Exact: the rows and a part's results. Approximate: the rows twice, candidate lists and heaps
    of ``16 m + 18 k`` bytes a row with m = min(60, k), and NNDescent's update buffers.
    """
    row_bytes = 2 * n_features * itemsize
    if method == "exact":
        return n_rows * (row_bytes + 32 * n_neighbors)
    lists = 16 * min(_MAX_CANDIDATES, n_neighbors) + 34 * n_neighbors
    return n_rows * (row_bytes + lists) + _UPDATE_BYTES_PER_NEIGHBOR * n_neighbors
