"""The contract of scikit-learn's estimators, and what of it is not promised."""

import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import (
    check_fit_idempotent,
    check_methods_sample_order_invariance,
    check_methods_subset_invariance,
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)

from dask_nrbfn import (
    DiffusionMap,
    NRBFNClassifier,
    NRBFNClassifierCV,
    NRBFNRegressor,
    NRBFNRegressorCV,
)

# A basis without neighbours or clusters keeps the promise that weights count as repeated rows, if
# the columns, whose scale ignores weights, stay as they are.
DRAWN = {"basis": "random", "basis_size": 4, "alpha": 1e-6, "scale": "none"}
# The least that leaves something to choose.
QUICK = {"effort": "quick", "width_factors": (1.0,), "alphas": (1e-6, 1e-3), "folds": 2}
QUICK |= {"features": ("normalized",)}
# The checks fit tables of 10 to 20 rows, on which 20 neighbours are an error by design.
ESTIMATORS = [
    NRBFNClassifier(n_neighbors=5),
    NRBFNRegressor(alpha=1e-6),
    DiffusionMap(),
]
TUNED = [NRBFNClassifierCV(n_neighbors=5, **QUICK), NRBFNRegressorCV(**QUICK)]


def not_promised(network):
    if isinstance(network, DiffusionMap):
        return {}
    is_regressor = isinstance(network, NRBFNRegressor | NRBFNRegressorCV)
    # A repeated row is a neighbour of its copies; a row of double weight is not its own.
    reason = f"{'clusters' if is_regressor else 'the neighbours of a row'} have no weights"
    check = "check_sample_weight_equivalence_on"
    return dict.fromkeys([f"{check}_dense_data", f"{check}_sparse_data"], reason)


@pytest.mark.fast_cases(8)
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=not_promised)
def test_estimators__scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(TUNED, expected_failed_checks=not_promised)
def test_tuned__scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("network", [NRBFNClassifier(**DRAWN), NRBFNRegressor(**DRAWN)])
@pytest.mark.parametrize(
    "check",
    [
        check_sample_weight_equivalence_on_dense_data,
        check_sample_weight_equivalence_on_sparse_data,
        check_fit_idempotent,
        check_methods_sample_order_invariance,
        check_methods_subset_invariance,
    ],
)
def test_drawn__scikit_learn_contract_of_weights_and_seeds(network, check):
    check(type(network).__name__, clone(network))
