"""A process computes with the threads that it was given, not with those of the machine."""

import os
from threading import Barrier

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dask_nrbfn.engine import EngineOptions, InlineEngine, connect, describe_engine
from dask_nrbfn.engine.threads import available_threads
from dask_nrbfn.numeric.threads import side_by_side


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinities")
def test_available_threads__affinity_that_is_narrowed_later():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with connect(EngineOptions(workers=0)) as engine:
            assert engine.threads == InlineEngine().threads == 1
            assert describe_engine(EngineOptions()).threads == 1
    finally:
        os.sched_setaffinity(0, before)


def test_available_threads__no_more_than_blas_was_told():
    with threadpool_limits(1):
        assert available_threads() == InlineEngine().threads == 1


def test_available_threads__given_ones_count():
    options = EngineOptions(workers=0, threads=3)
    with connect(options) as engine:
        assert engine.threads == describe_engine(options).threads == 3


def threads_of_blas(_=None):
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_side_by_side__in_order_and_with_one_thread_each():
    with threadpool_limits(3):
        before, together = threads_of_blas(), Barrier(3)

        def step(value):
            together.wait(timeout=60)
            return value, set(threads_of_blas())

        found = side_by_side(step, range(6), at_once=3)
        assert found == [(value, {1}) for value in range(6)]
        assert side_by_side(threads_of_blas, [0], at_once=3) == [[1] * len(before)]
        assert side_by_side(threads_of_blas, [], at_once=3) == []
        assert threads_of_blas() == before
