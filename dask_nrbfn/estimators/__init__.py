"""Scikit-learn faces of the stages."""

from dask_nrbfn.estimators.classifier import NRBFNClassifier

__all__ = ["NRBFNClassifier"]
