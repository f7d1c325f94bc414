"""Every kind of fit ends with the same bits on a cluster and in any chunks.

What test_every_fit patches stays patched until its module ends, and the workers have nothing of it.
"""

import pytest
from threadpoolctl import threadpool_limits

from dask_nrbfn.engine import InlineEngine
from tests.test_every_fit import KINDS, digest, finish, write


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_fit__any_engine_and_chunks(kind, tmp_path, two_workers):
    runs = []
    with threadpool_limits(1):
        for name, engine, chunk_rows in (("here", InlineEngine(), 50), ("there", two_workers, 7)):
            place = tmp_path / name
            place.mkdir()
            tables = write(kind, place, chunk_rows=chunk_rows)
            runs.append(finish(kind, tables, place / "run", engine, n_parts=3))
    assert digest(runs[0]) == digest(runs[1])
