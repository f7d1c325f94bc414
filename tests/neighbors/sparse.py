"""Rows in CSR, drawn as they come in texts and counts: repeated, empty, of one value."""

import numpy as np
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dask_nrbfn.numeric.rows import canonical


@st.composite
def sparse_rows(draw, *, min_rows=2, max_rows=40):
    """Draw rows (n, p) in CSR of few values, float32 or float64, some of them alike or empty."""
    n_rows = draw(st.integers(min_rows, max_rows))
    n_columns = draw(st.sampled_from([1, 3, 30, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    rows = rng.normal(size=(n_rows, n_columns)) * (rng.random((n_rows, n_columns)) < 0.2)
    rows = rows[rng.integers(0, n_rows, n_rows)] if draw(st.booleans()) else rows
    return canonical(csr_array(rows.astype(draw(st.sampled_from(["f4", "f8"])))))


def texts(n_rows, n_columns=2000, *, n_values=20, n_topics=8, seed=0):
    """Return rows of counts (n, p), float32, of words that follow Zipf and those of a topic."""
    rng = np.random.default_rng(seed)
    size = n_rows, n_values
    common = np.minimum(rng.zipf(1.3, size) - 1, n_columns - 1)
    words = rng.integers(0, n_columns, (n_topics, 50))[rng.integers(0, n_topics, n_rows)]
    own = np.take_along_axis(words, rng.integers(0, 50, size), axis=1)
    columns = np.where(rng.random(size) < 0.5, own, common).ravel()
    counts = np.ones(columns.size, np.float32), (np.repeat(np.arange(n_rows), n_values), columns)
    return canonical(csr_array(counts, shape=(n_rows, n_columns)))
