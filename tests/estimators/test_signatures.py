"""Estimators say in their signatures what the parameters are."""

import inspect

import pytest

from dask_nrbfn import (
    DiffusionMap,
    NRBFNClassifier,
    NRBFNClassifierCV,
    NRBFNRegressor,
    NRBFNRegressorCV,
)
from dask_nrbfn.params import TUNED, FitLimits, FitParams, TuneParams

OF_TABLES = {"unlabelled": None, "missing": "auto", "store": None, "verbose": 0, "device": "cpu"}
# Numbers have no classes, between which neighbours would look for borders.
OF_CLASSES = {
    *("class_weight", "confidence_threshold", "basis_rule", "basis_rules", "min_recall"),
    *("candidates", "neighbors", "n_partitions", "overlap", "loss", "losses"),
}


# What "auto" chooses for these depends on the rows.
OF_DATA = ("neighbors", "scale", "kernel")


def defaults_of(estimator):
    parameters = inspect.signature(estimator).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def defaults(kind, *, without=()):
    """Return those of a fit to classes, for which "auto" says too little in a signature."""
    resolved = vars(FitParams().resolve_auto(numbers=False))
    values = {name: each.default for name, each in kind.options().items() if name not in without}
    return {
        name: resolved[name] if value == "auto" and name not in OF_DATA else value
        for name, value in values.items()
    }


def test_classifiers__signatures_are_those_of_the_parameters():
    # A time limit is of tunings, and an estimator holds out folds.
    fitted = defaults(FitParams) | defaults(FitLimits, without={"time_limit"})
    assert defaults_of(NRBFNClassifier) == fitted | OF_TABLES
    tuned = defaults(FitParams, without=TUNED) | defaults(TuneParams, without={"validation"})
    assert defaults_of(NRBFNClassifierCV) == tuned | defaults(FitLimits) | OF_TABLES


def test_diffusion_map__signature_is_that_of_the_parameters():
    found, options = defaults_of(DiffusionMap), FitParams.options()
    own = OF_TABLES | {"n_components": 2, "basis": "random", "kernel": "gaussian"}
    del own["unlabelled"]
    assert {name: found.pop(name) for name in own} == own
    assert found == {name: options[name].default for name in found}


@pytest.mark.parametrize(
    ("regressor", "classifier", "suited"),
    [
        (NRBFNRegressor, NRBFNClassifier, {"basis": "kmeans", "features": "plain"}),
        (NRBFNRegressorCV, NRBFNClassifierCV, {"basis": "kmeans"}),
    ],
)
def test_regressors__signatures_are_those_of_the_classifiers(regressor, classifier, suited):
    shared = {name: v for name, v in defaults_of(classifier).items() if name not in OF_CLASSES}
    assert defaults_of(regressor) == shared | suited
