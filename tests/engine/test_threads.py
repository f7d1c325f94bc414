"""A process computes with the threads that it was given, not with those of the machine."""

import os
from threading import Barrier, Thread

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dask_nrbfn.engine import EngineOptions, InlineEngine, connect, describe_engine
from dask_nrbfn.engine.threads import available_threads
from dask_nrbfn.numeric.threads import n_threads, side_by_side, task_threads


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
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_task_threads__blas_has_one_until_the_last_task_ends():
    together, numbers = Barrier(2), []

    def task():
        with task_threads():
            together.wait(timeout=60)
        numbers.append((n_threads(), threads_of_blas()))
        together.wait(timeout=60)

    with threadpool_limits(3):
        thread = Thread(target=task)
        with task_threads(5):
            thread.start()
            together.wait(timeout=60)
            together.wait(timeout=60)
            assert (n_threads(), threads_of_blas()) == (5, {1})
        thread.join()
        assert numbers == [(3, {1})]
        assert (n_threads(), threads_of_blas()) == (3, {3})


def test_side_by_side__in_order_with_one_thread_each():
    together = Barrier(3)

    def step(value):
        together.wait(timeout=60)
        # The steps of a step run one after another.
        return value, threads_of_blas(), n_threads(), side_by_side(str, [1, 2])

    with task_threads(3):
        found = side_by_side(step, range(6))
        assert found == [(value, {1}, 1, ["1", "2"]) for value in range(6)]
        # A step that is alone has all threads.
        assert side_by_side(lambda _: n_threads(), [0, 0], at_once=1) == [3, 3]
        assert side_by_side(step, []) == []


def test_side_by_side__error_is_raised_after_all_running_steps():
    together, ended = Barrier(2), []

    def step(value):
        together.wait(timeout=60)
        if not value:
            raise ValueError("step 0")
        ended.append(value)

    with task_threads(2), pytest.raises(ValueError, match="step 0"):
        side_by_side(step, [0, 1])
    assert ended == [1]
