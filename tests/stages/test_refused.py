"""Mistakes of a user in the options of a fit: each is refused before the first task."""

from dataclasses import replace

import pytest
from scipy.sparse import csr_array

from dask_nrbfn.choices import PENALTIES
from dask_nrbfn.params import FitParams, TuneParams
from tests.stages.fits import assert_refused
from tests.tables import spirals, surfaces

DRAWN = FitParams(basis="random", basis_size=40)
PLAIN = replace(DRAWN, features="plain")
CELLS = replace(PLAIN, cells=4)
SPANNED = replace(DRAWN, features="normalized", components=9)
CANDIDATES = FitParams(basis_size=20, n_neighbors=6, candidates=80)
CENTRES = replace(PLAIN, basis="kmeans")
HINGE = {"losses": ("squared", "hinge")}


# Parameters, what a tuning is to try, and what the message says.
CLASSES = [
    (replace(CELLS, prune=5), None, "prune"),
    (replace(CELLS, components=3, features="normalized"), None, "components"),
    (replace(CELLS, locality=1e-3), None, "locality"),
    (replace(CELLS, loss="logistic"), None, "loss"),
    (replace(CELLS, cells=1000), None, "100 rows"),
    (CELLS, {"localities": (0.0, 1e-3)}, "locality"),
    (CELLS, HINGE, "loss"),
    (SPANNED, {"components": (3, 30), "features": ("plain",)}, "components is 30, but features is"),
    (SPANNED, {"components": (5, 41)}, "components is 41, but the basis has only 40 rows"),
    (replace(SPANNED, components=41), None, "components is 41, but the basis has only 40 rows"),
    (replace(SPANNED, penalty="kernel"), None, "but penalty is kernel. Give penalty=weights, or"),
    (replace(SPANNED, loss="hinge"), None, "but loss is hinge. Give loss=squared, or"),
    (replace(SPANNED, locality=0.1), None, "but locality is 0.1. Give components or locality"),
    (replace(SPANNED, prune=5), None, "but prune is 5. Give components or prune"),
    (replace(PLAIN, prune=41), None, r"prune is 41, but the basis has only 40 rows\. Set prune to"),
    (
        replace(DRAWN, prune=12, features="normalized"),
        None,
        "prune is 12, but features is normalized",
    ),
    (replace(CANDIDATES, basis="random"), None, "candidates is 80, but basis=random"),
    (replace(CANDIDATES, n_partitions=3), None, "candidates is 80, but neighbors or n_partitions"),
    (
        replace(CANDIDATES, candidates=10),
        None,
        "candidates is 10, but the basis has at least 20 rows",
    ),
    (
        replace(CANDIDATES, candidates=25),
        {"bases": ("random", "kmeans")},
        "candidates is 25, but bases=random does not use",
    ),
    (FitParams(), {"bases": ("random", "kmeans")}, "bases are random, kmeans, but the default"),
    (
        PLAIN,
        {"features": ("normalized",), "penalties": ("kernel",)},
        "penalties is kernel, but features is normalized. Give features=plain, or penalties=wei",
    ),
    (
        PLAIN,
        {"penalties": PENALTIES},
        "penalties is clusters, but basis is random. Give basis=kmea",
    ),
    (
        FitParams(penalty="clusters"),
        None,
        "penalty is clusters, but features is normalized and basis is sknn",
    ),
]
NUMBERS = [
    (DRAWN, {"losses": ("hinge",)}, "^losses is hinge, but the targets are numbers"),
    (replace(DRAWN, loss="hinge"), None, "^loss is hinge, but the targets are numbers"),
    (replace(DRAWN, basis="sknn"), None, "basis=sknn needs class labels"),
    (replace(DRAWN, class_weight="balanced"), None, "class_weight is balanced"),
    (replace(DRAWN, basis_size=101), None, "basis_size is 101.*1 to 100"),
    (FitParams(components=5, features="plain"), None, r"features is plain\. Give features=norm"),
]


OF_CSR = [
    (FitParams(scale="learned"), None, "^scale=learned needs dense rows"),
    (FitParams(), {"scales": ("none", "learned")}, "^scales=learned needs dense rows"),
]


def tuning_of(tried):
    return None if tried is None else TuneParams(effort="quick", folds=3, **tried)


@pytest.mark.parametrize(("params", "tried", "message"), CLASSES)
def test_fit__refused_before_the_first_task(params, tried, message):
    assert_refused(*spirals(100), params, message, tuning=tuning_of(tried))


@pytest.mark.parametrize(("params", "tried", "message"), OF_CSR)
def test_fit__of_rows_in_csr_that_it_would_fill(params, tried, message):
    X, y = spirals(100)
    assert_refused(csr_array(X), y, params, message, tuning=tuning_of(tried))


@pytest.mark.parametrize(("params", "tried", "message"), NUMBERS)
def test_fit__of_numbers_refused_before_the_first_task(params, tried, message):
    assert_refused(*surfaces(100), params, message, tuning=tuning_of(tried))
