from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.sources import Block
from dask_nrbfn.sources.source import recut


@given(
    sizes=st.lists(st.integers(0, 7), max_size=8),
    block_rows=st.integers(1, 12),
    labelled=st.booleans(),
    weighted=st.booleans(),
    y_columns=st.sampled_from([(), (1,), (3,)]),
)
def test_recut__rows_and_order_survive_any_batching(
    sizes, block_rows, labelled, weighted, y_columns
):
    n = sum(sizes)
    X, weights = np.arange(2 * n).reshape(n, 2), np.arange(n) / 8
    y = np.arange(n * np.prod(y_columns, dtype=int)).reshape(n, *y_columns)
    stops = np.cumsum([0, *sizes])
    batches = [
        Block(X[a:b], y[a:b] if labelled else None, weights[a:b] if weighted else None)
        for a, b in pairwise(stops)
    ]

    blocks = list(recut(batches, block_rows))

    n_full, rest = divmod(n, block_rows)
    assert [len(block.X) for block in blocks] == [block_rows] * n_full + [rest] * (rest > 0)
    if n:
        np.testing.assert_array_equal(np.concatenate([block.X for block in blocks]), X)
    for name, expected, present in (("y", y, labelled), ("weights", weights, weighted)):
        parts = [getattr(block, name) for block in blocks]
        if not present:
            assert all(part is None for part in parts)
        elif n:
            np.testing.assert_array_equal(np.concatenate(parts), expected)
