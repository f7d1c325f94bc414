"""How hu-nrbfn splits and fits its data sets."""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from comparators.forward import ForwardNetwork
from comparators.linear import LinearRegressionClassifier
from comparators.machines import searched_machine
from comparators.neighbours import MajorityOfNeighbors
from comparators.netlab import NetlabNetwork
from sets import FOLDS, DataSet, Split
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV

from dask_nrbfn import NRBFNClassifier
from dask_nrbfn.errors import IllConditionedError
from papers.hu_printed import TABLE_2, TABLE_6

# Draws row 6 of iris.
RANDOM_STATE = 4

FIXED_ALPHA = 1e-13
PAPER = {"kernel": "gaussian", "scale": "none", "confidence_threshold": 0.9}
# From the largest: of equal errors the first is chosen.
ALPHAS = [1e-5, 1e-9, 1e-13]

# Sets whose halves the paper draws, so that the order of the rows does not matter.
DRAWN_HALVES = ("glass", "sonar", "yaleb")

# Rows up to which methods are run that hold a component or a column for every row.
SMALL = 2000
NETLAB_SEEDS = range(10)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A fit: alpha, test error and rank of the features in percent of the rows, eps and gamma."""

    alpha: float
    error: float
    rank: float
    eps: float
    gamma: float

    @property
    def tradeoff(self) -> float:
        """``eps + alpha gamma``."""
        return self.eps + self.alpha * self.gamma


def fit_network(split: Split, **parameters: Any) -> Outcome | None:
    """Return what a network with these parameters makes; None if the system is singular."""
    of_paper = PAPER | {"alpha": FIXED_ALPHA}
    network = NRBFNClassifier(random_state=RANDOM_STATE, **of_paper | parameters)
    try:
        return outcome_of(network.fit(split.X_train, split.y_train), split)
    except IllConditionedError:
        return None


def outcome_of(fitted: Any, split: Split) -> Outcome:
    """Return the figures of a network or of linear regression."""
    return Outcome(
        alpha=fitted.alpha,
        error=error_of(fitted, split),
        rank=100 * min(1, fitted.weights_.shape[1] / len(split.y_train)),
        eps=fitted.fitting_error_,
        gamma=fitted.spectral_risk_,
    )


def error_of(fitted: Any, split: Split) -> float:
    """Return the test error of a classifier in percent."""
    return 100 * float((fitted.predict(split.X_test) != split.y_test).mean())


class Fits:
    """All fits of a split, each made when it is asked for.

    They are None where a system is singular, or the split too large for the method.
    """

    def __init__(self, name: str, split: Split) -> None:
        self.split = split
        self._alphas = {method: float(rows[name]["alpha"]) for method, rows in TABLE_6.items()}
        self._support = float(TABLE_2[name]["SVM"]) / 100

    @cached_property
    def line(self) -> Outcome:
        """Linear regression."""
        line = LinearRegressionClassifier(self._alphas["LRC"])
        return outcome_of(line.fit(self.split.X_train, self.split.y_train), self.split)

    @cached_property
    def network(self) -> Outcome:
        """The network, with the penalty that the paper chose."""
        return outcome_of(self._model, self.split)

    @cached_property
    def unpenalized(self) -> Outcome | None:
        """The network without a penalty."""
        return fit_network(self.split, alpha=0.0)

    @cached_property
    def same_size(self) -> Outcome | None:
        """The network with as many basis rows as the paper's machine has support vectors."""
        size = round(self._support * len(self.split.y_train))
        return fit_network(self.split, alpha=self._model.alpha, basis_size=size)

    @cached_property
    def fixed(self) -> Outcome | None:
        """The network with the penalty that the paper has for all sets."""
        return fit_network(self.split, alpha=FIXED_ALPHA)

    @cached_property
    def random_basis(self) -> Outcome | None:
        """The network with drawn rows as its basis."""
        alpha, size = self._model.alpha, len(self._model.basis_)
        return fit_network(self.split, alpha=alpha, basis="random", basis_size=size)

    @cached_property
    def majority(self) -> float | None:
        """Error of KNN."""
        return self._error(MajorityOfNeighbors())

    @cached_property
    def forward(self) -> float | None:
        """Error of ROLS, with the penalty of the least error on five folds."""
        model = ForwardNetwork(self._model.width_, len(self._model.basis_), FIXED_ALPHA)
        return self._small_error(GridSearchCV(model, {"alpha": ALPHAS}, cv=FOLDS))

    @cached_property
    def netlab(self) -> float | None:
        """Error of RBFNnl, on average over its seeds."""
        size = len(self._model.basis_)
        errors = (self._small_error(NetlabNetwork(size, seed)) for seed in NETLAB_SEEDS)
        found = [error for error in errors if error is not None]
        return float(np.mean(found)) if found else None

    @cached_property
    def machine(self) -> float | None:
        """Error of SVM."""
        return self._small_error(searched_machine(self._model.width_, FOLDS))

    @cached_property
    def _model(self) -> NRBFNClassifier:
        alpha = self._alphas["nRBFN"]
        model = NRBFNClassifier(random_state=RANDOM_STATE, alpha=alpha, **PAPER)
        return model.fit(self.split.X_train, self.split.y_train)

    def _small_error(self, model: BaseEstimator) -> float | None:
        return None if len(self.split.y_train) > SMALL else self._error(model)

    def _error(self, model: Any) -> float:
        return error_of(model.fit(self.split.X_train, self.split.y_train), self.split)


@cache
def fits_of(data: DataSet) -> list[Fits]:
    """Return the fits of every split of a data set."""
    if data.given:
        splits = list(data.official())
    elif data.name in DRAWN_HALVES:
        splits = list(data.drawn(0.5, by_class=True))
    else:
        splits = [data.first_half()]
    return [Fits(data.name, split) for split in splits]
