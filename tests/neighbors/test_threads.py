"""Where fewer threads are to be had than were asked for, the search uses those."""

import logging
import os
import subprocess
import sys

import numba
import pytest

from dask_nrbfn.errors import plural
from dask_nrbfn.neighbors.approximate import numba_threads


def test_numba_threads__no_more_than_the_process_has(caplog):
    most = numba.config.NUMBA_NUM_THREADS
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        assert [numba_threads(wanted) for wanted in (1, most, most + 3)] == [1, most, most]
    assert caplog.messages == [
        f"approximate search: {plural(most, 'thread')}, because numba has fewer than {most + 3}"
    ]


# Fits, and searches for a run that began where there were more.
ON_ONE_CORE = """
import os
import dask_nrbfn
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import numpy as np
from dask_nrbfn import NRBFNClassifier
X = np.random.default_rng(0).normal(size=(300, 3))
network = NRBFNClassifier(neighbors="approximate", confidence_threshold=0.99)
assert network.fit(X, X[:, 0] > 0).score(X, X[:, 0] > 0) > 0.8
from dask_nrbfn.neighbors.approximate import approximate_neighbors
rows = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
assert approximate_neighbors(rows, n_neighbors=5, seed=0, threads=8).shape == (300, 5)
"""


# With fewer by NUMBA_NUM_THREADS fit the processes of a search, in tests/estimators.
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinities")
def test_approximate_neighbors__fewer_threads_than_the_machine_has():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", ON_ONE_CORE], env=environment, check=True)
