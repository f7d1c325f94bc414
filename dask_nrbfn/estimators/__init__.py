"""Estimators with the interface of scikit-learn."""

from dask_nrbfn.estimators.classifier import NRBFNClassifier
from dask_nrbfn.estimators.diffusion import DiffusionMap
from dask_nrbfn.estimators.regressor import NRBFNRegressor
from dask_nrbfn.estimators.tuned import NRBFNClassifierCV, NRBFNRegressorCV

__all__ = [
    "DiffusionMap",
    "NRBFNClassifier",
    "NRBFNClassifierCV",
    "NRBFNRegressor",
    "NRBFNRegressorCV",
]
