"""scikit-learn's support vector machine, searched as hu-nrbfn has it."""

from sklearn.model_selection import BaseCrossValidator, GridSearchCV
from sklearn.svm import SVC


def searched_machine(width: float, folds: BaseCrossValidator) -> GridSearchCV:
    """Return SVM of hu-nrbfn, Table 1: C and sigma by folds, sigma about that of a network."""
    sigmas = [1.4**power * width for power in range(-4, 5)]
    grid = {
        "C": [2.0**power for power in range(-1, 13)],
        "gamma": [0.5 / sigma**2 for sigma in sigmas],
    }
    return GridSearchCV(SVC(), grid, cv=folds)
