"""Estimators say in their signatures what the parameters are."""

import inspect

from dask_nrbfn import NRBFNClassifier, NRBFNClassifierCV
from dask_nrbfn.params import TUNED, FitLimits, FitParams, TuneParams


def defaults_of(estimator):
    """Return the parameters of an estimator and their defaults."""
    parameters = inspect.signature(estimator).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def defaults(*kinds):
    return {name: option.default for kind in kinds for name, option in kind.options().items()}


def test_classifier__signature_is_that_of_the_parameters():
    assert defaults_of(NRBFNClassifier) == defaults(FitParams, FitLimits) | {"store": None}


def test_classifier_cv__signature_is_that_of_the_parameters():
    fixed = {name: value for name, value in defaults(FitParams).items() if name not in TUNED}
    tried = defaults(TuneParams)
    del tried["validation"]  # a dataset; an estimator holds out folds
    expected = fixed | tried | defaults(FitLimits) | {"store": None}
    assert defaults_of(NRBFNClassifierCV) == expected
