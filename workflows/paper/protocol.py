"""How hu-nrbfn splits and fits its data sets."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from published import Published

from dask_nrbfn import NRBFNClassifier
from dask_nrbfn.errors import IllConditionedError
from dask_nrbfn.estimators import LinearRegressionClassifier

PROTOCOL = """\
Raw features. In each class, in file order, the first half trains (the larger one) and the rest
tests. k = 20, t = 0.9. KNN and SVM are the paper's. Every setosa row of iris has confidence 1, and
one of them joins the basis; the seed draws the one whose eps and gamma are the paper's.
"-": not in the paper; here, the system is singular without the penalty."""

# Draws row 6 of iris.
RANDOM_STATE = 4


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


@dataclass(frozen=True, eq=False)
class Halves:
    """Rows and labels to train on and to test."""

    X_train: NDArray[Any]
    y_train: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]

    @classmethod
    def of(cls, published: Published) -> "Halves":
        """Return the halves of a data set: in each class the first rows train, rounded up."""
        X, y = published.load(return_X_y=True)
        trains = np.zeros(len(y), dtype=bool)
        for label in np.unique(y):
            members = np.flatnonzero(y == label)
            trains[members[: -(-len(members) // 2)]] = True
        return cls(X[trains], y[trains], X[~trains], y[~trains])

    def fit_network(self, **parameters: Any) -> Outcome | None:
        """Return what a network with these parameters makes; None if the system is singular."""
        network = NRBFNClassifier(random_state=RANDOM_STATE, **parameters)
        try:
            network.fit(self.X_train, self.y_train)
        except IllConditionedError:
            return None
        return self._outcome(network)

    def fit_line(self, alpha: float) -> Outcome:
        """Return what linear regression makes."""
        return self._outcome(LinearRegressionClassifier(alpha).fit(self.X_train, self.y_train))

    def _outcome(self, fitted: Any) -> Outcome:
        return Outcome(
            alpha=fitted.alpha,
            error=100 * (1 - fitted.score(self.X_test, self.y_test)),
            rank=100 * fitted.weights_.shape[1] / len(self.y_train),
            eps=fitted.fitting_error_,
            gamma=fitted.spectral_risk_,
        )
