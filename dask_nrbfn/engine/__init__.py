"""Engines that run tasks: in this process, or on any dask cluster.

A task is a module-level function of store locations and small parameters. It writes its result to
the store and returns a small summary; running it twice does no harm.
"""

from typing import TYPE_CHECKING

from dask_nrbfn.lazy import lazy_names

if TYPE_CHECKING:
    from dask_nrbfn.engine.connection import connect as connect
    from dask_nrbfn.engine.connection import describe_engine as describe_engine
    from dask_nrbfn.engine.options import EngineOptions as EngineOptions
    from dask_nrbfn.engine.tasks import DaskEngine as DaskEngine
    from dask_nrbfn.engine.tasks import Engine as Engine
    from dask_nrbfn.engine.tasks import InlineEngine as InlineEngine
else:
    # A command that runs no task starts without distributed.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "connection": ["connect", "describe_engine"],
            "options": ["EngineOptions"],
            "tasks": ["DaskEngine", "Engine", "InlineEngine"],
        },
    )
