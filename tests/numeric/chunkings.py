"""Ways to cut rows into blocks."""

import numpy as np
from hypothesis import strategies as st


@st.composite
def row_chunkings(draw, max_rows=40):
    """Draw block lengths of at least 1: single rows, one block, and ragged ones in between."""
    n_rows = draw(st.integers(1, max_rows))
    cuts = draw(st.sets(st.integers(1, n_rows), max_size=n_rows))
    edges = sorted({0, n_rows} | cuts)
    return list(np.diff(edges))


def split(array, lengths):
    return np.split(array, np.cumsum(lengths)[:-1])
