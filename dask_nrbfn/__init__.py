"""Kernel-quality classification of labelled tables larger than memory.

Training rows lie in a chunked Zarr `Dataset`; a fit is a sequence of restartable stages that run on
dask workers and leave a `Run`, whose small `Model` predicts. `NRBFNClassifier` is the scikit-learn
face of the same stages.
"""

from importlib.metadata import version

from dask_nrbfn.engine import DaskEngine, EngineOptions, InlineEngine, connect
from dask_nrbfn.errors import IllConditionedWarning, NRBFNError
from dask_nrbfn.estimators import (
    LinearRegressionClassifier,
    NRBFNClassifier,
    NRBFNClassifierCV,
)
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.check import check_dataset
from dask_nrbfn.stages.fit import fit_dataset, given_basis, tune_dataset
from dask_nrbfn.stages.ingest import ingest_arrays, ingest_dask, ingest_file, ingest_source
from dask_nrbfn.stages.plan import Plan, plan_fit
from dask_nrbfn.stages.predict import Evaluation, evaluate_dataset, predict_dataset
from dask_nrbfn.stages.refresh import refresh_run
from dask_nrbfn.stages.update import Judge, branch_run, merge_runs, update_run
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import RemoteLocation
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run

__version__ = version("dask-nrbfn")

__all__ = [
    "DaskEngine",
    "Dataset",
    "EngineOptions",
    "Evaluation",
    "FitParams",
    "IllConditionedWarning",
    "InlineEngine",
    "Judge",
    "LinearRegressionClassifier",
    "Model",
    "NRBFNClassifier",
    "NRBFNClassifierCV",
    "NRBFNError",
    "Plan",
    "RemoteLocation",
    "Run",
    "TuneParams",
    "branch_run",
    "check_dataset",
    "connect",
    "evaluate_dataset",
    "fit_dataset",
    "given_basis",
    "ingest_arrays",
    "ingest_dask",
    "ingest_file",
    "ingest_source",
    "merge_runs",
    "plan_fit",
    "predict_dataset",
    "refresh_run",
    "tune_dataset",
    "update_run",
]
