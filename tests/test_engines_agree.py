"""Every kind of fit ends with the same bits on a cluster, in a module without patches.

What test_every_fit patches stays patched until its module ends, and the workers have nothing of it.
"""

import pytest
from threadpoolctl import threadpool_limits

from dask_nrbfn.engine import InlineEngine
from tests.test_every_fit import KINDS, digest, finish, write


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_fit__engines_agree_to_the_bit(kind, tmp_path, two_workers):
    tables = write(kind, tmp_path, chunk_rows=50)
    with threadpool_limits(1):
        runs = [
            finish(kind, tables, tmp_path / place, engine, n_parts=3)
            for place, engine in (("here", InlineEngine()), ("there", two_workers))
        ]
    assert digest(runs[0]) == digest(runs[1])
