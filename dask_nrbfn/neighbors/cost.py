"""Estimated seconds and bytes of the exact and the approximate search."""

# Fitted on two cores to 60,000 x 784 and 550,000 x 32; only their ratio decides.
_FLOPS_PER_SECOND_AND_CORE = 5e10
_SECONDS_PER_PAIR = 3e-9
# The same for rows in CSR. Two texts of 140 words have 9 words in common, some of which are in
# nearly every text.
_SECONDS_PER_SHARED_VALUE = 3e-9
_SHARED = 1 / 16
# For rows in CSR, NNDescent compares columns before values.
_COMPARED = 45
# Compilation: 20 s with numba's cache, 45 s without.
COMPILATION_S = 25.0
_SECONDS_PER_UPDATE = 1.9e-8

# Share of the rows that are compared with a candidate in partitions, for 97 of 100 neighbours: .04
# if rows lie near low-dimensional surfaces, .4 if all 32 columns are independent.
PROBED = 0.2

# Rows that k-means reads for each partition in all rounds.
_PLACING_ROWS_OF_PARTITION = 20 * 128

# Seconds that partitions must save, because they miss some neighbours.
_WORTH_S = 5.0

# Maximum length of the candidate lists of NNDescent.
_MAX_CANDIDATES = 60

# Update buffers of NNDescent: pairs of the candidates of this many rows at a time, fitted to 0.8 GB
# at 30 neighbours.
_UPDATED_ROWS = 16_384
_BYTES_PER_UPDATE = 51


def faster_method(
    n_rows: int,
    n_features: int,
    row_values: float,
    *,
    n_neighbors: int,
    threads: int,
    n_searches: int = 1,
) -> str:
    """Return the method that is estimated to take less time.

    Parameters
    ----------
    n_rows, n_features : int
        n and p.
    row_values : float
        Mean stored values of a row; p for arrays.
    n_neighbors, threads : int
    n_searches : int
        Searches of `n_rows` rows each; they compile the approximate search once.

    Returns
    -------
    "exact" or "approximate"

    Examples
    --------
    >>> faster_method(5_000, 784, 784, n_neighbors=20, threads=2)
    'exact'
    >>> faster_method(1_000_000, 32, 32, n_neighbors=20, threads=2)
    'approximate'
    """
    exact_s = n_searches * n_rows**2 * _pair_s(n_features, row_values) / threads
    updates = n_searches * candidate_updates(
        n_rows, n_features, row_values, n_neighbors=n_neighbors
    )
    approximate_s = COMPILATION_S + updates / update_rate(threads)
    return "exact" if exact_s <= approximate_s else "approximate"


def faster_partitions(
    n_rows: int, n_features: int, row_values: float, *, n_candidates: int, threads: int
) -> int:
    """Return the number of partitions with the shortest search for candidates.

    Parameters
    ----------
    n_rows, n_features : int
        n and p.
    row_values : float
        Mean stored values of a row; p for arrays.
    n_candidates, threads : int

    Returns
    -------
    int
        1: without partitions.

    Examples
    --------
    >>> faster_partitions(60_000, 784, 784, n_candidates=5_000, threads=2)
    1
    >>> faster_partitions(5_000_000, 32, 32, n_candidates=50_000, threads=2)
    447
    """
    per_pair_s = _pair_s(n_features, row_values) / threads
    # Twice the root: then a row is compared with as many centroids as candidates, if each candidate
    # searches four partitions.
    n_partitions = round(2 * n_candidates**0.5)
    exact_s = n_rows * n_candidates * per_pair_s
    routed = n_rows * (n_partitions + PROBED * n_candidates)
    placed = n_partitions**2 * _PLACING_ROWS_OF_PARTITION
    partitions_s = (routed + placed) * per_pair_s + _WORTH_S
    return n_partitions if partitions_s < exact_s else 1


def pair_flops(n_features: int, row_values: float) -> float:
    """Return the flops of the product of two rows.

    In CSR twice the number of columns that both rows store. Columns of unequal frequency are shared
    more often than by chance.

    Parameters
    ----------
    n_features : int
        p.
    row_values : float
        Mean stored values of a row; fewer than p are in CSR.

    Returns
    -------
    float
    """
    if row_values == n_features:
        return 2 * n_features
    return 2 * (_SHARED * row_values + row_values**2 / n_features)


def _pair_s(n_features: int, row_values: float) -> float:
    flops = pair_flops(n_features, row_values)
    if row_values == n_features:
        return flops / _FLOPS_PER_SECOND_AND_CORE + _SECONDS_PER_PAIR
    return flops / 2 * _SECONDS_PER_SHARED_VALUE + _SECONDS_PER_PAIR


def listed_neighbors(n_neighbors: int, *, is_sparse: bool) -> int:
    """Return the number of neighbours in the lists of NNDescent.

    Rows in CSR are about equally far from each other, so their lists are a quarter longer: with
    20,000 texts a recall of .998 instead of .994, for a third more time.

    Parameters
    ----------
    n_neighbors : int
    is_sparse : bool
        Whether rows are in CSR.

    Returns
    -------
    int
    """
    return n_neighbors + (n_neighbors // 4 if is_sparse else 0)


def candidate_list(n_neighbors: int) -> int:
    """Return the length of the candidate lists of NNDescent.

    Twice the neighbours: on 550,000 x 32 a recall of .994 instead of .987 for a tenth more time.
    """
    return min(_MAX_CANDIDATES, 2 * n_neighbors)


def searched_neighbors(n_neighbors: int) -> int:
    """Return the number of neighbours that NNDescent searches; the nearest k are kept.

    A quarter more than k, because most missed neighbours are the furthest ones: on 550,000 x 32 a
    recall of .995 instead of .987, for a third more time.
    """
    return n_neighbors + n_neighbors // 4


def candidate_updates(n_rows: int, n_features: int, row_values: float, *, n_neighbors: int) -> int:
    """Return the number of candidate updates of NNDescent.

    Parameters
    ----------
    n_rows, n_features : int
        n and p.
    row_values : float
        Mean stored values of a row; p for arrays.
    n_neighbors : int

    Returns
    -------
    int
        Number of compared values of candidates.
    """
    is_sparse = row_values < n_features
    compared = round(_COMPARED * row_values) if is_sparse else n_features
    listed = listed_neighbors(n_neighbors, is_sparse=is_sparse)
    return n_rows * (searched_neighbors(listed) + 1) * (compared + 100)


def update_rate(threads: int) -> float:
    """Return the number of candidate updates per second."""
    return threads / _SECONDS_PER_UPDATE


def search_bytes(n_rows: int, width: int, *, itemsize: int, n_neighbors: int, method: str) -> int:
    """Return the bytes that a search over all rows holds at its peak.

    Parameters
    ----------
    n_rows : int
    width : int
        Numbers of a row: p, or in CSR the stored values with their columns.
    itemsize : int
        Bytes of a number.
    n_neighbors : int
        k.
    method : {"exact", "approximate"}

    Returns
    -------
    int

    Notes
    -----
    Exact: the rows and the results. Approximate: the rows twice, candidate lists, heaps and results
    of ``16 m + 34 l`` bytes a row with m = min(60, 2 k) and l = 1.25 k, and update buffers.
    """
    buffers = 0 if method == "exact" else _UPDATED_ROWS * (n_neighbors + 1) ** 2 * _BYTES_PER_UPDATE
    return n_rows * _row_bytes(width, itemsize, n_neighbors, method) + buffers


def largest_search(
    available_bytes: int, width: int, *, itemsize: int, n_neighbors: int, method: str
) -> int:
    """Return the largest number of rows that a search can hold in some memory.

    Parameters
    ----------
    available_bytes : int
        Without the buffers of the search.
    width, itemsize, n_neighbors, method
        See `search_bytes`.

    Returns
    -------
    int
    """
    return max(0, available_bytes) // _row_bytes(width, itemsize, n_neighbors, method)


def _row_bytes(width: int, itemsize: int, n_neighbors: int, method: str) -> int:
    rows = 2 * width * itemsize
    if method == "exact":
        return rows + 32 * n_neighbors
    return rows + 16 * candidate_list(n_neighbors) + 34 * searched_neighbors(n_neighbors)
