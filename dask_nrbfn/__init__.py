"""Kernel-quality classification and regression of tables larger than memory.

Training rows lie in a chunked Zarr `Dataset`; a fit is a sequence of restartable stages that run on
dask workers and leave a `Run`, whose small `Model` predicts. `NRBFNClassifier` and
`NRBFNRegressor` are scikit-learn estimators on the same stages.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from dask_nrbfn.lazy import lazy_names

if TYPE_CHECKING:
    from dask_nrbfn.commands.describe import describe as describe
    from dask_nrbfn.commands.evaluate import Evaluation as Evaluation
    from dask_nrbfn.commands.evaluate import NumberEvaluation as NumberEvaluation
    from dask_nrbfn.commands.evaluate import evaluate_dataset as evaluate_dataset
    from dask_nrbfn.commands.evaluate import permutation_importances as permutation_importances
    from dask_nrbfn.commands.files import opened_rows as opened_rows
    from dask_nrbfn.commands.fit import fit_dataset as fit_dataset
    from dask_nrbfn.commands.fit import refresh_run as refresh_run
    from dask_nrbfn.commands.ingest import ingest_arrays as ingest_arrays
    from dask_nrbfn.commands.ingest import ingest_file as ingest_file
    from dask_nrbfn.commands.maps import predict_scene as predict_scene
    from dask_nrbfn.commands.onnx_model import export_onnx as export_onnx
    from dask_nrbfn.commands.plan import Plan as Plan
    from dask_nrbfn.commands.plan import plan_fit as plan_fit
    from dask_nrbfn.commands.predict import predict_dataset as predict_dataset
    from dask_nrbfn.commands.update import Judge as Judge
    from dask_nrbfn.commands.update import merge_runs as merge_runs
    from dask_nrbfn.commands.update import update_run as update_run
    from dask_nrbfn.engine.connection import connect as connect
    from dask_nrbfn.engine.options import EngineOptions as EngineOptions
    from dask_nrbfn.engine.tasks import DaskEngine as DaskEngine
    from dask_nrbfn.engine.tasks import InlineEngine as InlineEngine
    from dask_nrbfn.errors import IllConditionedWarning as IllConditionedWarning
    from dask_nrbfn.errors import NRBFNError as NRBFNError
    from dask_nrbfn.estimators.classifier import NRBFNClassifier as NRBFNClassifier
    from dask_nrbfn.estimators.diffusion import DiffusionMap as DiffusionMap
    from dask_nrbfn.estimators.regressor import NRBFNRegressor as NRBFNRegressor
    from dask_nrbfn.estimators.tuned import NRBFNClassifierCV as NRBFNClassifierCV
    from dask_nrbfn.estimators.tuned import NRBFNRegressorCV as NRBFNRegressorCV
    from dask_nrbfn.params import FitParams as FitParams
    from dask_nrbfn.params import TuneParams as TuneParams
    from dask_nrbfn.stages.basis import given_basis as given_basis
    from dask_nrbfn.storage.dataset import Dataset as Dataset
    from dask_nrbfn.storage.location import RemoteLocation as RemoteLocation
    from dask_nrbfn.storage.model import Model as Model
    from dask_nrbfn.storage.run import Run as Run
else:
    # All of it takes seconds to load, and a process rarely needs all of it.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "commands.describe": ["describe"],
            "commands.evaluate": [
                "Evaluation",
                "NumberEvaluation",
                "evaluate_dataset",
                "permutation_importances",
            ],
            "commands.files": ["opened_rows"],
            "commands.fit": ["fit_dataset", "refresh_run"],
            "commands.ingest": ["ingest_arrays", "ingest_file"],
            "commands.maps": ["predict_scene"],
            "commands.onnx_model": ["export_onnx"],
            "commands.plan": ["Plan", "plan_fit"],
            "commands.predict": ["predict_dataset"],
            "commands.update": ["Judge", "merge_runs", "update_run"],
            "engine.connection": ["connect"],
            "engine.options": ["EngineOptions"],
            "engine.tasks": ["DaskEngine", "InlineEngine"],
            "errors": ["IllConditionedWarning", "NRBFNError"],
            "estimators.classifier": ["NRBFNClassifier"],
            "estimators.diffusion": ["DiffusionMap"],
            "estimators.regressor": ["NRBFNRegressor"],
            "estimators.tuned": ["NRBFNClassifierCV", "NRBFNRegressorCV"],
            "params": ["FitParams", "TuneParams"],
            "stages.basis": ["given_basis"],
            "storage.dataset": ["Dataset"],
            "storage.location": ["RemoteLocation"],
            "storage.model": ["Model"],
            "storage.run": ["Run"],
        },
    )

__version__ = version("dask-nrbfn")
