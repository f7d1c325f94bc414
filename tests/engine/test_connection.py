import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import dask
import pytest
from dask.utils import parse_bytes
from distributed import Client, LocalCluster, default_client
from threadpoolctl import threadpool_info

from dask_nrbfn.engine import EngineOptions, InlineEngine, connect
from dask_nrbfn.engine.connection import describe_engine, local_cluster
from dask_nrbfn.engine.memory import usable_bytes
from dask_nrbfn.engine.threads import threads_of_workers, worker_environment
from dask_nrbfn.errors import ClusterError, ParameterError
from tests.engine import work
from tests.engine.processes import PATIENCE_S, free_port


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "tcp://a:1", "scheduler_file": "s.json"}, "scheduler and scheduler_file"),
        ({"scheduler": "tcp://a:1", "workers": 0}, "workers given with a running scheduler."),
        ({"scheduler_file": "s.json", "threads": 2, "memory": "2GiB"}, "threads and memory given"),
        ({"workers": -1}, "workers is -1."),
        ({"threads": 0}, "threads is 0."),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"device": "gpu", "workers": 2}, "workers is 2, but one process uses the GPU."),
        ({"memory": "4 GiBs"}, "memory is '4 GiBs'. Give bytes with a unit: 4GiB."),
        ({"memory": ""}, "memory is ''."),
        ({"memory": "4"}, "memory is '4'. A worker needs at least 256MiB to start."),
    ],
)
def test_options__what_is_not_allowed(options, message):
    with pytest.raises(ParameterError) as caught:
        EngineOptions(**options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("memory", ["256MiB", "4GiB", "4 GB", "1.5e9"])
def test_options__memory_with_units(memory):
    with connect(EngineOptions(workers=0, memory=memory)) as engine:
        assert engine.memory_bytes == parse_bytes(memory)


@pytest.mark.parametrize(("workers", "n_workers"), [(None, 1), (0, 1), (1000, 1000)])
def test_describe_engine__is_of_one_process_or_all_workers(workers, n_workers):
    engine = describe_engine(EngineOptions(workers=workers, memory="1GiB"))
    assert engine.n_workers == n_workers
    assert engine.threads == threads_of_workers(n_workers)
    # A nanny keeps a part of the memory of a worker.
    assert engine.memory_bytes == (usable_bytes(2**30, 1) if workers else 2**30)
    assert usable_bytes(2**30, 1) < 2**30
    assert threads_of_workers(1000) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_connect__no_workers_is_this_process(threads):
    before = threadpool_info()
    with connect(EngineOptions(workers=0, threads=threads)) as engine:
        assert isinstance(engine, InlineEngine)
        assert engine.in_memory
        assert engine.threads == threads
        assert engine.run(work.process_id, [(0,)], label="ids") == [os.getpid()]
        assert engine.run(work.task_threads, [()], label="threads") == [(threads, {1})]
    assert threadpool_info() == before


def test_connect__running_scheduler_by_address_and_file(two_workers, tmp_path, caplog):
    address = two_workers.client.scheduler.address
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"address": address}))
    for options in (EngineOptions(scheduler=address), EngineOptions(scheduler_file=str(path))):
        with caplog.at_level(logging.INFO, logger="dask_nrbfn"), connect(options) as engine:
            assert engine.run(work.square, [(5,)], label="squares") == [25]
            with pytest.raises(ValueError, match="No clients found"):
                default_client()
            other = engine.client
        assert other.status == "closed"
        assert f"up to 2 tasks at a time on {address}, threads of each: 1" in caplog.messages
    assert two_workers.run(work.square, [(6,)], label="squares") == [36]


def test_connect__tasks_that_hold_all_threads_do_not_wait_for_each_other(two_workers, tmp_path):
    held = [two_workers.client.submit(work.squares_of_tasks, tmp_path, number) for number in (1, 3)]
    assert [each.result(timeout=PATIENCE_S) for each in held] == [[1, 4], [9, 36]]
    assert two_workers.run(work.square, [(6,)], label="squares") == [36]


def test_connect__daemonic_process_is_told_that_it_may_not_start_workers(two_workers):
    message = r"may not start workers: it is daemonic.* Pass workers=0 to compute in this process"
    with pytest.raises(ClusterError, match=message):
        two_workers.run(work.start_workers, [()], label="start")


def settings_of_this_process():
    variables = {name: os.environ.get(name) for name in worker_environment(2)}
    return variables, dask.config.get("distributed.nanny.pre-spawn-environ")


@pytest.mark.slow
def test_local_cluster__has_its_threads_and_leaves_this_process_as_it_was(monkeypatch):
    for name in worker_environment(2):
        if name.endswith("_THREADS"):
            monkeypatch.setenv(name, "1")
    before = settings_of_this_process()
    with connect(EngineOptions(workers=1, threads=2, memory="1GiB")) as engine:
        (told,) = engine.run(work.environment, [()], label="environment")
    assert settings_of_this_process() == before
    assert (engine.n_workers, engine.threads) == (1, 2)
    assert (engine.limit_bytes, engine.memory_bytes) == (2**30, int(0.95 * 2**30))
    assert engine.client.status == "closed"
    assert told["variables"] == worker_environment(2)
    assert told["threads"] == told["numba"] == 2
    # The threads of BLAS would spin beside those of a task.
    assert set(told["blas"]) == {1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_local_cluster__a_signal_while_it_starts_arrives_afterwards(monkeypatch, number):
    arrived = []

    def start(**options):
        signal.raise_signal(number)
        assert not arrived
        return nullcontext()

    monkeypatch.setattr(sys.modules["dask_nrbfn.engine.connection"], "LocalCluster", start)
    before = signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        with local_cluster(EngineOptions(workers=1)):
            assert arrived == [number]
    finally:
        signal.signal(number, before)


def engine_of(options):
    with connect(options) as engine:
        return engine


def test_connect__nobody_listens():
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "500ms"}),
        pytest.raises(ClusterError) as caught,
    ):
        engine_of(EngineOptions(scheduler=address))
    assert caught.value.problem.startswith(f"no scheduler answers at {address} (")
    assert "Start it" in caught.value.remedy
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"address": null}'])
def test_connect__scheduler_file_unreadable(tmp_path, content):
    path = tmp_path / "scheduler.json"
    if content is not None:
        path.write_text(content)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "500ms"}),
        pytest.raises(ClusterError, match=r"scheduler\.json"),
    ):
        engine_of(EngineOptions(scheduler_file=str(path)))


def test_connect__scheduler_without_workers():
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        dask.config.set({"distributed.comm.timeouts.connect": "500ms"}),
    ):
        address = cluster.scheduler_address
        with (
            pytest.raises(ClusterError, match=f"the scheduler {address} has no workers"),
            connect(client=client),
        ):
            pytest.fail("the block must not run")


@pytest.mark.slow
def test_connect__script_without_a_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from dask_nrbfn import EngineOptions, connect\n"
        "with connect(EngineOptions(workers=1)):\n    pass\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("A worker imports the script, which starts workers again.")
    assert "ClusterError: a worker ended while it started." in last
    guard = 'Put the work of the script below `if __name__ == "__main__":`.'
    assert first.endswith(guard)
    assert last.endswith(guard)
    assert len(done.stderr.splitlines()) < 25
