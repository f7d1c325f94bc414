"""A process computes with the threads that it was given, not with those of the machine."""

import json
import os
import subprocess
import sys

import pytest
from threadpoolctl import threadpool_limits

from dask_nrbfn.engine import EngineOptions, InlineEngine, connect, describe_engine
from dask_nrbfn.engine.threads import available_threads
from tests.engine.processes import ENVIRONMENT

ASKED = """
import json, os, sys
from dask_nrbfn.engine import EngineOptions, InlineEngine, connect, describe_engine
if sys.argv[1:]:
    os.sched_setaffinity(0, [int(sys.argv[1])])
with connect(EngineOptions(workers=0)) as engine:
    threads = InlineEngine().threads, engine.threads, describe_engine(EngineOptions()).threads
print(json.dumps(threads))
"""


def threads_of_process(*arguments, **environment):
    """Return the threads of an engine made directly, of one of `connect`, and those of a worker."""
    command = [sys.executable, "-c", ASKED, *arguments]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT | environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinities")
def test_available_threads__affinity_that_is_narrowed_later():
    core = min(os.sched_getaffinity(0))
    assert threads_of_process(str(core)) == [1, 1, 1]


def test_available_threads__as_joblib_tells_its_workers():
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    assert threads_of_process(**limits)[:2] == [1, 1]


def test_available_threads__no_more_than_blas_was_told():
    with threadpool_limits(1):
        assert available_threads() == InlineEngine().threads == 1


def test_available_threads__given_ones_count():
    options = EngineOptions(workers=0, threads=3)
    with connect(options) as engine:
        assert engine.threads == describe_engine(options).threads == 3
