"""Make an engine from options or from any dask Client."""

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import CancelledError, Client, LocalCluster, rejoin, secede

from dask_nrbfn.engine.memory import usable_bytes
from dask_nrbfn.engine.options import EngineOptions, parse_memory
from dask_nrbfn.engine.tasks import DaskEngine, Engine, InlineEngine, scheduler_lost
from dask_nrbfn.engine.threads import (
    available_threads,
    cluster_settings,
    threads_of_workers,
    worker_environment,
)
from dask_nrbfn.errors import ClusterError
from dask_nrbfn.numeric.device import open_gpu
from dask_nrbfn.numeric.threads import n_threads
from dask_nrbfn.private import is_importing_script, kill_workers, memory_limit, reach_scheduler

logger = logging.getLogger(__name__)

_GUARD = 'Put the work of the script below `if __name__ == "__main__":`.'


@contextmanager
def connect(options: EngineOptions | None = None, client: Client | None = None) -> Iterator[Engine]:
    """Yield an engine on `client`, on the cluster that `options` select, or in this process.

    Parameters
    ----------
    options : EngineOptions, optional
    client : distributed.Client, optional
        Used as it is and left open. A dask task that calls this frees its thread for the block.

    Yields
    ------
    Engine

    Raises
    ------
    ClusterError
        If the scheduler cannot be reached or has no workers.

    Notes
    -----
    If all workers are lost, tasks wait for a worker, by default for 5 minutes; dask's configuration
    key ``nrbfn.no-workers-timeout`` sets the time. Then, or as soon as the connection to the
    scheduler is lost, they raise ClusterError. The same job started again goes on.
    """
    options = options or EngineOptions()
    with ExitStack() as stack:
        if client is None and options.run_here:
            if options.device == "gpu":
                open_gpu()
            yield InlineEngine(
                bar=options.bar,
                threads=options.threads or available_threads(),
                memory_bytes=_memory_bytes(options),
                device=options.device,
            )
            return
        if client is None:
            if options.scheduler or options.scheduler_file:
                client = stack.enter_context(_scheduler_client(options))
            else:
                cluster = stack.enter_context(local_cluster(options))
                client = stack.enter_context(Client(cluster, set_as_default=False))
        engine = _engine(client, bar=options.bar)
        if options.device == "gpu":
            client.run(_check_gpu)
            engine.device = options.device
        stack.enter_context(_thread_given_up())
        yield engine


@contextmanager
def _thread_given_up() -> Iterator[None]:
    """Let the tasks of the block use the thread of this dask task, which would only wait."""
    try:
        secede()
    except (ValueError, AttributeError, KeyError):
        # This is no task, or it has no thread of the worker's pool.
        yield
        return
    try:
        yield
    finally:
        rejoin()


def _check_gpu() -> None:
    open_gpu()


def describe_engine(options: EngineOptions) -> InlineEngine:
    """Return an engine with the sizes of this process or a local cluster; starts no workers."""
    n_workers = options.workers or 1
    memory_bytes = _memory_bytes(options)
    if not options.run_here:
        memory_bytes = usable_bytes(memory_bytes, 1)
    return InlineEngine(
        n_workers=n_workers,
        threads=options.threads or threads_of_workers(n_workers),
        memory_bytes=memory_bytes,
    )


@contextmanager
def local_cluster(
    options: EngineOptions, *, host: str | None = None, port: int = 0
) -> Iterator[LocalCluster]:
    """Yield a cluster on this machine; each worker runs one task at a time, with several threads.

    The scheduler listens at `host`, by default for this machine only. A block that fails or is
    interrupted kills the workers: they would finish their tasks first, for seconds.
    """
    workers = options.workers or 1
    threads = options.threads or threads_of_workers(workers)
    if multiprocessing.current_process().daemon:
        raise ClusterError(
            "this process may not start workers: it is daemonic, as the workers of dask and of "
            "multiprocessing.Pool are.",
            "Pass `workers`=0 to compute in this process, or in a dask task the client of its "
            "scheduler: connect(client=distributed.get_client()).",
        )
    if is_importing_script():
        # The traceback of an error would hide this sentence.
        raise SystemExit(f"A worker imports the script, which starts workers again. {_GUARD}")
    with (
        _environment(worker_environment(threads)),
        dask.config.set(cluster_settings(threads)),
        ExitStack() as stack,
    ):
        with _held_signals():
            try:
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    memory_limit=_memory_bytes(options),
                    processes=True,
                    host=host,
                    scheduler_port=port,
                    dashboard_address=":0",
                )
            except RuntimeError:
                remedy = f"Read what it printed. {_GUARD}"
                raise ClusterError("a worker ended while it started.", remedy) from None
            stack.enter_context(cluster)
        try:
            yield cluster
        except BaseException:
            kill_workers(cluster)
            raise


@contextmanager
def _held_signals() -> Iterator[None]:
    """Give this process its signals after the block; what the block starts never gets Ctrl-C.

    A terminal sends Ctrl-C to the workers too, which would print tracebacks. A cluster that is
    interrupted while it starts would leave processes behind.
    """
    # The first process that multiprocessing starts brings up this tracker, which unblocks signals.
    resource_tracker.ensure_running()
    held: list[int] = []
    handlers: dict[int, Any] = {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers[number] = signal.signal(number, lambda signum, _frame: held.append(signum))
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for each in held:
        signal.raise_signal(each)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and restore the old ones at the end.

    Workers inherit them. A nanny would keep existing variables, such as the OMP_NUM_THREADS=1 of a
    batch system, and would not remove its own.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _scheduler_client(options: EngineOptions) -> Iterator[Client]:
    """Yield a client of a running scheduler, which does not become dask's default client."""
    address = place = str(options.scheduler)
    if options.scheduler_file is not None:
        address = _read_scheduler_file(options.scheduler_file)
        place = f"{address}, the address in {options.scheduler_file}"
    try:
        _run(reach_scheduler(address))
        client = Client(address, set_as_default=False)
    except (OSError, RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise ClusterError(
            f"no scheduler answers at {place} ({error}).", "Start it, or give its address."
        ) from error
    its_logger = logging.getLogger("distributed.client")
    before = its_logger.disabled
    try:
        yield client
    finally:
        # A client that has lost its scheduler tries to connect again, and would log a traceback.
        its_logger.disabled = before or client.status != "running"
        try:
            client.close()
        finally:
            its_logger.disabled = before


def _run(coroutine: Coroutine[None, None, None]) -> None:
    """Run a coroutine in a thread; an interrupt of the caller does not wait for the thread."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(coroutine))
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    done.result()


def _read_scheduler_file(path: str) -> str:
    """Return the address in a file; a Client waits forever for one that is unreadable."""
    try:
        with open(path) as file:
            return str(json.load(file)["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{path} is not a scheduler file ({type(error).__name__}: {error}).",
            "Give the file that the scheduler wrote: dask scheduler --scheduler-file.",
        ) from error


def _threads_once_loaded() -> int:
    """Return the threads of a worker; this loads what `PROCESS_BYTES` counts."""
    import sklearn.neighbors  # noqa: F401

    return n_threads()


def _engine(client: Client, *, bar: bool) -> DaskEngine:
    """Return an engine on the workers of a client."""
    engine = DaskEngine(client=client, bar=bar)
    dashboard = None
    no_workers = ClusterError(
        f"the scheduler {engine.address} has no workers.", "Start a dask worker."
    )
    try:
        client.wait_for_workers(1, timeout=dask.config.get("distributed.comm.timeouts.connect"))
        workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
        threads = client.run(_threads_once_loaded, on_error="return").values()
        # A scheduler that was started without a dashboard has no link to one.
        with suppress(KeyError):
            dashboard = client.dashboard_link
    except TimeoutError as error:
        raise no_workers from error
    except (CancelledError, OSError) as error:
        raise scheduler_lost(engine.address) from error
    for answer in threads:
        if isinstance(answer, Exception) and not isinstance(answer, OSError):
            raise answer
    known = [answer for answer in threads if isinstance(answer, int)]
    if not workers or not known:
        # All of them died.
        raise no_workers
    engine.n_workers = sum(worker["nthreads"] for worker in workers)
    engine.threads = min(known)
    engine.memory_bytes, engine.worker_limit_bytes = min(map(_worker_memory, workers))
    timeout = dask.config.get("nrbfn.no-workers-timeout", "5 minutes")
    engine.no_workers_timeout_s = float(parse_timedelta(timeout))
    message = "up to %d tasks at a time on %s, threads of each: %d"
    logger.info(message, engine.n_workers, engine.address, engine.threads)
    if dashboard:
        logger.info("dashboard: %s", dashboard)
    return engine


def _worker_memory(worker: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that a task of a worker may use, and the worker's limit."""
    n_threads, limit = worker["nthreads"], worker["memory_limit"]
    if not limit:
        return memory_limit() // n_threads, memory_limit()
    return usable_bytes(limit, n_threads), limit


def _memory_bytes(options: EngineOptions) -> int:
    if options.memory is not None:
        return parse_memory(options.memory)
    return int(memory_limit() // max(1, options.workers or 1))
