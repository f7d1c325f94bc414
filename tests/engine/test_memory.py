import re

import dask
import pytest
from dask.utils import parse_bytes
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.memory import (
    NNDESCENT_PROCESS_BYTES,
    PROCESS_BYTES,
    process_bytes,
    usable_bytes,
)
from dask_nrbfn.errors import MemoryBudgetError

GIB = 2**30


def check(held_bytes, memory_bytes):
    InlineEngine(memory_bytes=memory_bytes).check_budget(
        "moments", held_bytes, remedy="Lower basis_size from 14000 to 11200"
    )


def limited(limit_bytes, n_threads=1):
    """Return an engine on workers of `limit_bytes` that run tasks in `n_threads` threads."""
    usable = usable_bytes(limit_bytes, n_threads)
    return InlineEngine(memory_bytes=usable, worker_limit_bytes=limit_bytes)


def test_check_budget__message_tells_limit_and_what_can_be_used():
    with pytest.raises(MemoryBudgetError) as caught:
        limited(4 * GIB).check_budget("width", 4 * GIB, remedy="Lower basis_size")
    assert "limited to 4.00 GiB, of which 3.80 GiB can be used" in caught.value.problem
    assert caught.value.remedy == "Lower basis_size, or raise the workers' memory to 4.22 GiB."


def test_process_bytes__have_room_for_what_was_measured():
    """MiB of a worker at its peak, and what an l1 distance, an approximate search and CUDA add."""
    plain = process_bytes(l1=False)
    added = (process_bytes(l1=True) - plain, NNDESCENT_PROCESS_BYTES)
    added += (process_bytes(l1=False, gpu=True) - plain,)
    for stated, measured in zip((plain, *added), (278, 119, 453, 1200), strict=True):
        assert 1.0 <= stated / (measured * 2**20) <= 1.3
    assert plain == PROCESS_BYTES


@given(
    held_bytes=st.integers(2**30, 2**43),
    terminate=st.sampled_from([0.95, 0.8, 0.333, False]),
    n_threads=st.integers(1, 9),
)
def test_check_budget__memory_it_asks_for_is_enough(held_bytes, terminate, n_threads):
    with dask.config.set({"distributed.worker.memory.terminate": terminate}):
        with pytest.raises(MemoryBudgetError) as caught:
            limited(GIB // 2, n_threads).check_budget("x", held_bytes, remedy="Lower it")
        asked = parse_bytes(re.search(r"memory to (.*)\.$", caught.value.remedy).group(1))
        limited(asked, n_threads).check_budget("x", held_bytes, remedy="Lower it")


@pytest.mark.parametrize(
    ("terminate", "usable"), [(0.95, 950), (0.5, 500), (False, 1000), (0, 1000), (None, 1000)]
)
def test_usable_bytes__until_the_nanny_kills(terminate, usable):
    with dask.config.set({"distributed.worker.memory.terminate": terminate}):
        assert usable_bytes(1000, 1) == usable
        assert usable_bytes(1000, 2) == usable // 2
