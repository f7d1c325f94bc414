"""Where fewer threads are to be had than were asked for, the search uses those."""

import logging

import numba

from dask_nrbfn.errors import plural
from dask_nrbfn.neighbors.approximate import numba_threads


def test_numba_threads__no_more_than_the_process_has(caplog):
    most = numba.config.NUMBA_NUM_THREADS
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        assert [numba_threads(wanted) for wanted in (1, most, most + 3)] == [1, most, most]
    assert caplog.messages == [
        f"approximate search: {plural(most, 'thread')}, because numba has fewer than {most + 3}"
    ]
