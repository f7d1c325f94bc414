import numpy as np
import pytest

from dask_nrbfn.neighbors.plan import SearchedRows
from dask_nrbfn.params import FitParams

SIZES = np.logspace(1, 8, 60).astype(int).tolist()


def searched(n_rows, n_features, row_values, dtype=np.float32, **params):
    return SearchedRows(
        n_rows=n_rows,
        n_features=n_features,
        row_values=row_values,
        row_width=n_features,
        dtype=np.dtype(dtype),
        params=FitParams(**params),
    )


@pytest.mark.parametrize(
    ("n_features", "row_values"),
    [(1, 1), (32, 32), (784, 784), (10_000, 10_000), (30_000, 10.5), (10**6, 150.0)],
)
@pytest.mark.parametrize("threads", [1, 64])
@pytest.mark.parametrize("n_neighbors", [1, 60])
def test_faster_method__exact_up_to_some_size(n_features, row_values, threads, n_neighbors):
    methods = [
        searched(n, n_features, row_values, n_neighbors=n_neighbors).faster_method(
            1, threads=threads
        )
        for n in SIZES
    ]
    assert methods[0] == "exact"
    assert methods[-1] == "approximate"
    assert methods == sorted(methods, reverse=True)


def plan(n_rows, free_bytes, **params):
    search = searched(n_rows, 10, 10, n_neighbors=20, **params).plan(
        threads=2, free_bytes=lambda method: free_bytes
    )
    return search.method, search.n_partitions


@pytest.mark.parametrize(
    ("n_rows", "free_bytes", "expected"),
    [
        (20_000, 2**28, ("exact", 1)),
        (400_000, 2**33, ("approximate", 1)),
        # The buffers of the approximate search do not fit.
        (400_000, 2**28, ("exact", 4)),
        (220_000, 2**28, ("exact", 1)),
    ],
)
def test_plan__by_rows_and_memory(n_rows, free_bytes, expected):
    assert plan(n_rows, free_bytes) == expected


def test_plan__a_method_that_is_asked_for_stays():
    assert plan(20_000, 2**33, neighbors="approximate") == ("approximate", 1)
    method, n_partitions = plan(400_000, 2**28, neighbors="approximate")
    assert method == "approximate"
    assert n_partitions > 1000
    assert plan(400_000, 2**33, neighbors="exact") == ("exact", 1)
