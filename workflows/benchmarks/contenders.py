"""Networks of this library and of others that are compared: a function each, and a name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier, RidgeCV
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from dask_nrbfn import NRBFNClassifier, NRBFNClassifierCV, NRBFNRegressor, NRBFNRegressorCV
from dask_nrbfn.engine.threads import available_threads

# Rows of labels that a network has without a basis size, and the size with more: one that takes
# all rows of low confidence would not end soon.
_MOST_WITHOUT_SIZE, _USUAL_SIZE = 20_000, 2000

# Squared widths are about the columns, once these are standardized.
_GAMMAS = (0.05, 0.2, 0.8, 3.2)


@dataclass(frozen=True)
class Task:
    """What is to be learned.

    Attributes
    ----------
    of_numbers : bool
    n_rows, n_features : int
        Of the rows that train.
    basis_size : int or None
        As asked for.
    n_basis : int
        Of our network, for the peers that have one too.
    most_rows : int
        On which a peer chooses its parameters, and that one is fitted to which costs their square.
    """

    of_numbers: bool
    n_rows: int
    n_features: int
    basis_size: int | None
    n_basis: int
    most_rows: int

    @property
    def size(self) -> int | None:
        """Return the basis size of our networks."""
        usual = self.of_numbers or self.n_rows <= _MOST_WITHOUT_SIZE
        return self.basis_size or (None if usual else _USUAL_SIZE)

    @property
    def gammas(self) -> list[float]:
        """Return what is tried for the gamma of a Gaussian kernel of standardized columns."""
        return [factor / self.n_features for factor in _GAMMAS]


@dataclass(frozen=True)
class Contender:
    """What is compared.

    Attributes
    ----------
    title : str
    make : callable
        Takes a `Task`, returns an estimator; raises ImportError where a package is missing.
    quadratic : bool
        Whether it is fitted to a draw of `Task.most_rows`, because it costs their square.
    """

    title: str
    make: Callable[[Task], Any]
    quadratic: bool = False


def drawn_rows(n_rows: int, size: int | None) -> NDArray[np.int64]:
    """Return the numbers of a draw of rows, ascending; all, if there are no more."""
    if size is None or size >= n_rows:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, size, replace=False))


class DrawnSearch(BaseEstimator):
    """The best of a grid by five folds of a draw of the rows, fitted to all of them."""

    def __init__(self, estimator: Any, grid: Any, most_rows: int, n_jobs: int = 1) -> None:
        self.estimator, self.grid = estimator, grid
        self.most_rows, self.n_jobs = most_rows, n_jobs

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Search, and fit what was found."""
        rows = drawn_rows(len(X), self.most_rows)
        search = GridSearchCV(self.estimator, self.grid, cv=5, n_jobs=self.n_jobs, refit=False)
        self.best_params_ = search.fit(X[rows], y[rows]).best_params_
        self.best_estimator_ = clone(self.estimator).set_params(**self.best_params_).fit(X, y)
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return what the best predicts."""
        return self.best_estimator_.predict(X)


def default(task: Task) -> Any:
    """Return our network as it comes."""
    kind = NRBFNRegressor if task.of_numbers else NRBFNClassifier
    return kind(scale="standard", basis_size=task.size)


def tuned(task: Task, **options: Any) -> Any:
    """Return our network that chooses its parameters, with these options."""
    kind = NRBFNRegressorCV if task.of_numbers else NRBFNClassifierCV
    return kind(basis_size=task.size, **options)


def boosting(task: Task) -> Any:
    """Return scikit-learn's boosted trees as they come."""
    kind = HistGradientBoostingRegressor if task.of_numbers else HistGradientBoostingClassifier
    return kind(random_state=0)


def machine(task: Task) -> Any:
    """Return a support vector machine of the best of 20 combinations."""
    grid = {"last__C": [0.5, 2.0, 8.0, 32.0, 128.0], "last__gamma": task.gammas}
    steps = _standardized(SVR() if task.of_numbers else SVC())
    # It computes with one thread; folds and combinations share the cores.
    return _of_targets(task, DrawnSearch(steps, grid, task.most_rows, available_threads()))


def nystroem(task: Task) -> Any:
    """Return ridge regression on as many drawn rows as our basis has."""
    # A fold of the search has four of five of its rows.
    size = min(task.n_basis, min(task.n_rows, task.most_rows) * 4 // 5)
    rows = Nystroem(n_components=size, random_state=0)
    last = Ridge() if task.of_numbers else RidgeClassifier()
    grid = {"rows__gamma": task.gammas, "last__alpha": [1e-4, 1e-2, 1.0, 100.0]}
    steps = Pipeline([("scale", StandardScaler()), ("rows", rows), ("last", last)])
    return DrawnSearch(steps, grid, task.most_rows)


def neighbours(task: Task) -> Any:
    """Return the vote, or the mean, of the best number of neighbours."""
    kind = KNeighborsRegressor if task.of_numbers else KNeighborsClassifier
    steps = _standardized(kind(n_jobs=available_threads()))
    return DrawnSearch(steps, {"last__n_neighbors": [1, 5, 20]}, task.most_rows)


def linear(task: Task) -> Any:
    """Return logistic regression, of numbers a linear one."""
    numbers = RidgeCV(np.logspace(-3, 3, 7))
    return _standardized(numbers if task.of_numbers else LogisticRegression(max_iter=1000))


def lightgbm(task: Task) -> Any:
    """Return LightGBM as it comes."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMRegressor if task.of_numbers else LGBMClassifier
    return kind(random_state=0, n_jobs=available_threads(), verbose=-1)


def xrfm(task: Task) -> Any:
    """Return xRFM as it comes, on the processor."""
    import xrfm  # noqa: F401  or it is not installed

    return _of_targets(task, _standardized(FeatureMachine(task.of_numbers)))


class FeatureMachine(BaseEstimator):
    """xRFM, which chooses among its rounds by a fifth of the rows."""

    def __init__(self, of_numbers: bool) -> None:
        self.of_numbers = of_numbers

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Fit four of five rows."""
        from xrfm import xRFM

        strata = None if self.of_numbers else y
        parts = train_test_split(
            X.astype(np.float32), y, test_size=0.2, random_state=0, stratify=strata
        )
        X_train, X_judged, y_train, y_judged = parts
        metric = "mse" if self.of_numbers else "accuracy"
        self.machine_ = xRFM(device="cpu", random_state=0, verbose=False, tuning_metric=metric)
        self.machine_.fit(X_train, y_train, X_judged, y_judged)
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return labels or numbers."""
        return np.ravel(self.machine_.predict(X.astype(np.float32)))


def falkon(task: Task) -> Any:
    """Return Falkon with as many centres as our basis has rows, on the processor."""
    import falkon  # noqa: F401  or it is not installed

    grid = {
        "last__width": [(0.5 / gamma) ** 0.5 for gamma in task.gammas],
        "last__penalty": [1e-8, 1e-6, 1e-4],
    }
    size = min(task.n_basis, min(task.n_rows, task.most_rows) * 4 // 5)
    steps = _standardized(FalkonMachine(task.of_numbers, size))
    return _of_targets(task, DrawnSearch(steps, grid, task.most_rows))


class FalkonMachine(BaseEstimator):
    """Falkon on indicators of the classes, or on numbers."""

    def __init__(
        self, of_numbers: bool, n_centres: int, width: float = 1.0, penalty: float = 1e-6
    ) -> None:
        self.of_numbers, self.n_centres = of_numbers, n_centres
        self.width, self.penalty = width, penalty

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Solve for all targets at once."""
        import torch
        from falkon import Falkon, FalkonOptions
        from falkon.kernels import GaussianKernel

        targets = y.reshape(len(y), -1)
        if not self.of_numbers:
            self.classes_, codes = np.unique(y, return_inverse=True)
            targets = np.eye(len(self.classes_))[codes]
        options = FalkonOptions(use_cpu=True)
        kernel = GaussianKernel(self.width, opt=options)
        self.machine_ = Falkon(kernel, self.penalty, self.n_centres, seed=0, options=options)
        self.machine_.fit(*map(torch.from_numpy, (X, targets)))
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return labels or numbers."""
        import torch

        scores = self.machine_.predict(torch.from_numpy(X)).numpy()
        return np.squeeze(scores, 1) if self.of_numbers else self.classes_[scores.argmax(axis=1)]

    def score(self, X: NDArray[Any], y: NDArray[Any]) -> float:
        """Return what a grid is judged by: the greater, the better."""
        found = self.predict(X)
        return -float(np.mean((found - y) ** 2 if self.of_numbers else found != y))


def _standardized(last: Any) -> Pipeline:
    return Pipeline([("scale", StandardScaler()), ("last", last)])


def _of_targets(task: Task, estimator: Any) -> Any:
    """Return an estimator that sees numbers of mean 0 and deviation 1."""
    if not task.of_numbers:
        return estimator
    return TransformedTargetRegressor(estimator, transformer=StandardScaler())


CONTENDERS = {
    "default": Contender("ours, default", default),
    "quick": Contender("ours, tuned quick", partial(tuned, effort="quick", scale="standard")),
    "tuned": Contender("ours, tuned", tuned),
    "boosting": Contender("HistGradientBoosting", boosting),
    "lightgbm": Contender("LightGBM", lightgbm),
    "svc": Contender("SVC, 20 combinations", machine, quadratic=True),
    "xrfm": Contender("xRFM", xrfm, quadratic=True),
    "falkon": Contender("Falkon", falkon),
    "nystroem": Contender("Nystroem + ridge", nystroem),
    "neighbours": Contender("nearest neighbours", neighbours),
    "linear": Contender("logistic or linear", linear),
}
