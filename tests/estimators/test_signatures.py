"""Estimators say in their signatures what the parameters are."""

import inspect

import pytest

from dask_nrbfn import (
    NRBFNClassifier,
    NRBFNClassifierCV,
    NRBFNRegressor,
    NRBFNRegressorCV,
)
from dask_nrbfn.params import TUNED, FitLimits, FitParams, TuneParams


def defaults_of(estimator):
    parameters = inspect.signature(estimator).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def defaults(*kinds):
    """Return those of a fit to classes, for which "auto" says too little in a signature."""
    values = {name: option.default for kind in kinds for name, option in kind.options().items()}
    resolved = vars(FitParams().resolve_auto(numbers=False))
    return {
        name: resolved[name] if value == "auto" and name not in ("neighbors", "scale") else value
        for name, value in values.items()
    }


OF_TABLES = {"unlabelled": None, "missing": "auto", "store": None, "verbose": 0, "device": "cpu"}


def test_classifier__signature_is_that_of_the_parameters():
    expected = defaults(FitParams, FitLimits) | OF_TABLES
    del expected["time_limit"]  # of tunings
    assert defaults_of(NRBFNClassifier) == expected


def test_classifier_cv__signature_is_that_of_the_parameters():
    fixed = {name: value for name, value in defaults(FitParams).items() if name not in TUNED}
    tried = defaults(TuneParams)
    del tried["validation"]  # a dataset; an estimator holds out folds
    expected = fixed | tried | defaults(FitLimits) | OF_TABLES
    assert defaults_of(NRBFNClassifierCV) == expected


# Numbers have no classes, between which neighbours would look for borders.
OF_CLASSES = {
    *("class_weight", "confidence_threshold", "basis_rule", "basis_rules", "min_recall"),
    *("candidates", "neighbors", "n_partitions", "overlap", "loss", "losses"),
}
SUITED = {"basis": "kmeans", "features": "plain"}


@pytest.mark.parametrize(
    ("regressor", "classifier"),
    [(NRBFNRegressor, NRBFNClassifier), (NRBFNRegressorCV, NRBFNClassifierCV)],
)
def test_regressors__signatures_are_those_of_the_classifiers(regressor, classifier):
    expected = {
        name: value for name, value in defaults_of(classifier).items() if name not in OF_CLASSES
    }
    if regressor is NRBFNRegressor:
        expected |= SUITED
    else:
        expected |= {"basis": SUITED["basis"]}
    assert defaults_of(regressor) == expected
