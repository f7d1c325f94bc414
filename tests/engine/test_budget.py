import re

import pytest
from dask.utils import parse_bytes

from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.budget import PROCESS_BYTES, check_budget
from dask_nrbfn.errors import MemoryBudgetError

GIB = 2**30


def check(needed_bytes, memory_bytes):
    check_budget(
        "moments",
        needed_bytes,
        InlineEngine(memory_bytes=memory_bytes),
        remedy="Lower basis_size from 14000 to 11200",
    )


def test_check_budget__what_fits_passes():
    check(GIB, GIB + PROCESS_BYTES)
    check(0, PROCESS_BYTES)


def test_check_budget__one_byte_too_many():
    with pytest.raises(MemoryBudgetError):
        check(GIB + 1, GIB + PROCESS_BYTES)


def test_check_budget__message_has_bytes_and_what_to_change():
    with pytest.raises(MemoryBudgetError) as caught:
        check(3 * GIB, 2 * GIB)
    assert re.fullmatch(
        r"a moments task needs 3\.\d+ GiB, workers have 2\.0+ GiB for a task\.",
        caught.value.problem,
    )
    assert re.fullmatch(
        r"Lower basis_size from 14000 to 11200, or raise the workers' memory to 3\.\d+ GiB\.",
        caught.value.remedy,
    )
    assert isinstance(caught.value, MemoryError)


@pytest.mark.parametrize("needed_bytes", [GIB, 3 * GIB + 12_345_678, 777 * GIB, 5000 * GIB])
def test_check_budget__memory_it_asks_for_is_enough(needed_bytes):
    with pytest.raises(MemoryBudgetError) as caught:
        check(needed_bytes, GIB)
    asked = re.search(r"memory to (.*)\.$", caught.value.remedy).group(1)
    check(needed_bytes, parse_bytes(asked))
