"""Engines that run tasks: in this process, or on any dask cluster.

A task is a module-level function of store locations and small parameters. It writes its result to
the store and returns a small summary; running it twice does no harm.
"""

from typing import TYPE_CHECKING

from dask_nrbfn.lazy import lazy_names

if TYPE_CHECKING:
    from dask_nrbfn.engine.connection import EngineOptions, connect, describe_engine
    from dask_nrbfn.engine.tasks import DaskEngine, Engine, InlineEngine
else:
    # A command that runs no task starts without distributed.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "connection": ["EngineOptions", "connect", "describe_engine"],
            "tasks": ["DaskEngine", "Engine", "InlineEngine"],
        },
    )

__all__ = [
    "DaskEngine",
    "Engine",
    "EngineOptions",
    "InlineEngine",
    "connect",
    "describe_engine",
]
