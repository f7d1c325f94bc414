"""How tasks run: in this process, or on any dask cluster.

A task is a module-level function of store locations and small parameters. It writes its result to
the store and returns a small summary; running it twice does no harm.
"""

from dask_nrbfn.engine.connect import EngineOptions, connect, describe_engine
from dask_nrbfn.engine.logs import log_json
from dask_nrbfn.engine.metrics import exported_metrics
from dask_nrbfn.engine.tasks import DaskEngine, Engine, InlineEngine
from dask_nrbfn.engine.watch import StageFigures, Watch, watched_stage

__all__ = [
    "DaskEngine",
    "Engine",
    "EngineOptions",
    "InlineEngine",
    "StageFigures",
    "Watch",
    "connect",
    "describe_engine",
    "exported_metrics",
    "log_json",
    "watched_stage",
]
