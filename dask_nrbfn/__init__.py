"""Kernel-quality classification and regression of tables larger than memory.

Training rows lie in a chunked Zarr `Dataset`; a fit is a sequence of restartable stages that run on
dask workers and leave a `Run`, whose small `Model` predicts. `NRBFNClassifier` and
`NRBFNRegressor` are scikit-learn estimators on the same stages.
"""

from typing import TYPE_CHECKING

from dask_nrbfn.errors import IllConditionedWarning, NRBFNError
from dask_nrbfn.lazy import lazy_names
from dask_nrbfn.params import FitParams, TuneParams

if TYPE_CHECKING:
    from dask_nrbfn.commands.describe import describe
    from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation, evaluate_dataset
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.fit import embed_dataset, fit_dataset, refresh_run, tune_dataset
    from dask_nrbfn.commands.ingest import ingest_arrays, ingest_file
    from dask_nrbfn.commands.maps import predict_scene
    from dask_nrbfn.commands.onnx_model import export_onnx
    from dask_nrbfn.commands.plan import Plan, plan_fit
    from dask_nrbfn.commands.predict import predict_dataset
    from dask_nrbfn.commands.update import Judge, merge_runs, update_run
    from dask_nrbfn.engine.connection import connect
    from dask_nrbfn.engine.options import EngineOptions
    from dask_nrbfn.engine.tasks import DaskEngine, InlineEngine
    from dask_nrbfn.estimators.classifier import NRBFNClassifier
    from dask_nrbfn.estimators.diffusion import DiffusionMap
    from dask_nrbfn.estimators.regressor import NRBFNRegressor
    from dask_nrbfn.estimators.tuned import NRBFNClassifierCV, NRBFNRegressorCV
    from dask_nrbfn.stages.basis import given_basis
    from dask_nrbfn.storage.dataset import Dataset
    from dask_nrbfn.storage.location import RemoteLocation
    from dask_nrbfn.storage.model import Model
    from dask_nrbfn.storage.run import Run
    from dask_nrbfn.version import __version__ as __version__
else:
    # All of it takes seconds to load, and a process rarely needs all of it.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "engine.connection": ["connect"],
            "engine.options": ["EngineOptions"],
            "engine.tasks": ["DaskEngine", "InlineEngine"],
            "estimators.classifier": ["NRBFNClassifier"],
            "estimators.diffusion": ["DiffusionMap"],
            "estimators.regressor": ["NRBFNRegressor"],
            "estimators.tuned": ["NRBFNClassifierCV", "NRBFNRegressorCV"],
            "commands.describe": ["describe"],
            "commands.files": ["opened_rows"],
            "commands.fit": ["embed_dataset", "fit_dataset", "refresh_run", "tune_dataset"],
            "commands.ingest": ["ingest_arrays", "ingest_file"],
            "commands.onnx_model": ["export_onnx"],
            "commands.plan": ["Plan", "plan_fit"],
            "commands.evaluate": ["Evaluation", "NumberEvaluation", "evaluate_dataset"],
            "commands.predict": ["predict_dataset"],
            "commands.maps": ["predict_scene"],
            "commands.update": ["Judge", "merge_runs", "update_run"],
            "stages.basis": ["given_basis"],
            "storage.dataset": ["Dataset"],
            "storage.location": ["RemoteLocation"],
            "storage.model": ["Model"],
            "storage.run": ["Run"],
            "version": ["__version__"],
        },
    )

__all__ = [
    "DaskEngine",
    "Dataset",
    "DiffusionMap",
    "EngineOptions",
    "Evaluation",
    "FitParams",
    "IllConditionedWarning",
    "InlineEngine",
    "Judge",
    "Model",
    "NRBFNClassifier",
    "NRBFNClassifierCV",
    "NRBFNError",
    "NRBFNRegressor",
    "NRBFNRegressorCV",
    "NumberEvaluation",
    "Plan",
    "RemoteLocation",
    "Run",
    "TuneParams",
    "connect",
    "describe",
    "embed_dataset",
    "evaluate_dataset",
    "export_onnx",
    "fit_dataset",
    "given_basis",
    "ingest_arrays",
    "ingest_file",
    "merge_runs",
    "opened_rows",
    "plan_fit",
    "predict_dataset",
    "predict_scene",
    "refresh_run",
    "tune_dataset",
    "update_run",
]
