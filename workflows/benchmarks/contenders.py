"""Networks of this library and of others that are compared: a function each, and a name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isqrt
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

# Boosting with early stopping: the most rounds, and how many of them may bring no improvement.
_MOST_ROUNDS, _PATIENCE = 500, 50

# Squared widths are about the columns, once these are standardized.
_GAMMAS = (0.05, 0.2, 0.8, 3.2)


@dataclass(frozen=True)
class Task:
    """What is to be learned: rows that train, and how much of them is used."""

    of_numbers: bool
    n_rows: int
    n_features: int
    basis_size: int | None
    # Of our network, for the peers that have one too.
    n_basis: int
    # For the grid searches, and for the fit of the support vector machine.
    most_rows: int
    # Rows that xRFM draws; if None, as many as fit into memory.
    xrfm_rows: int | None = None
    # Settings that the search of xRFM tries.
    n_trials: int = 30

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
    """What is compared; `make` raises ImportError where a package is missing."""

    title: str
    make: Callable[[Task], Any]


def drawn_rows(n_rows: int, size: int | None) -> NDArray[np.int64]:
    """Return the numbers of a draw of rows, ascending; all, if there are no more."""
    if size is None or size >= n_rows:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, size, replace=False))


class Chosen(BaseEstimator):
    """An estimator with the best of several settings, fitted to and judged on so many rows."""

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return what the best predicts."""
        return self.best_estimator_.predict(X)


class DrawnSearch(Chosen):
    """The best of a grid by five folds of a draw of the rows, fitted to all rows or to the draw."""

    def __init__(
        self, estimator: Any, grid: Any, most_rows: int, n_jobs: int = 1, fits_drawn: bool = False
    ) -> None:
        self.estimator, self.grid = estimator, grid
        self.most_rows, self.n_jobs, self.fits_drawn = most_rows, n_jobs, fits_drawn

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Search, and fit what was found."""
        rows = drawn_rows(len(X), self.most_rows)
        search = GridSearchCV(self.estimator, self.grid, cv=5, n_jobs=self.n_jobs, refit=False)
        self.best_params_ = search.fit(X[rows], y[rows]).best_params_
        if self.fits_drawn:
            X, y = X[rows], y[rows]
        self.n_fitted_, self.n_judged_ = len(X), len(rows)
        self.best_estimator_ = clone(self.estimator).set_params(**self.best_params_).fit(X, y)
        return self


class HeldOut(Chosen):
    """The best of several estimators by a fifth of the rows, each fitted to the other four.

    Estimators take the held-out rows as `eval_set`, and may stop early by them.
    """

    def __init__(self, estimators: Any, of_numbers: bool, most_rows: int | None = None) -> None:
        self.estimators, self.of_numbers, self.most_rows = estimators, of_numbers, most_rows

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Fit all estimators, and keep the one with the least loss."""
        rows = drawn_rows(len(X), self.most_rows)
        strata = None if self.of_numbers else y[rows]
        X, X_judged, y, y_judged = train_test_split(
            X[rows], y[rows], test_size=0.2, random_state=0, stratify=strata
        )

        def loss(fitted: Any) -> float:
            found = mean_loss(fitted.predict(X_judged), y_judged, self.of_numbers)
            return np.inf if np.isnan(found) else found

        judged = [(X_judged, y_judged)]
        fits = (clone(estimator).fit(X, y, eval_set=judged) for estimator in self.estimators)
        self.best_estimator_ = min(fits, key=loss)
        self.best_params_ = getattr(self.best_estimator_, "setting", {})
        self.n_fitted_, self.n_judged_ = len(X), len(X_judged)
        return self


def mean_loss(found: NDArray[Any], y: NDArray[Any], of_numbers: bool) -> float:
    """Return the mean squared error of numbers, or the share of wrong labels."""
    found = np.reshape(found, y.shape)
    return float(np.mean((found - y) ** 2 if of_numbers else found != y))


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
    search = DrawnSearch(steps, grid, task.most_rows, available_threads(), fits_drawn=True)
    return _of_targets(task, search)


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


def lightgbm(task: Task, **options: Any) -> Any:
    """Return LightGBM as it comes, or with these options."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMRegressor if task.of_numbers else LGBMClassifier
    return kind(random_state=0, n_jobs=available_threads(), verbose=-1, **options)


def catboost(task: Task, **options: Any) -> Any:
    """Return CatBoost as it comes, or with these options."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    kind = CatBoostRegressor if task.of_numbers else CatBoostClassifier
    silent = {"verbose": False, "allow_writing_files": False}
    return kind(random_seed=0, thread_count=available_threads(), **silent, **options)


def stopped(task: Task, make: Callable[..., Any]) -> Any:
    """Return boosted trees that stop when held-out rows bring no further improvement."""
    trees = make(task, n_estimators=_MOST_ROUNDS, early_stopping_rounds=_PATIENCE)
    return HeldOut([trees], task.of_numbers)


def xrfm(task: Task) -> Any:
    """Return xRFM as it comes."""
    return _best_machine(task, [{}])


def searched_xrfm(task: Task, lpq_share: float) -> Any:
    """Return xRFM with the best of `Task.n_trials` drawn settings."""
    return _best_machine(task, drawn_settings(task.n_trials, lpq_share))


def _best_machine(task: Task, settings: list[dict[str, Any]]) -> Any:
    import xrfm  # noqa: F401  or it is not installed

    machines = [FeatureMachine(task.of_numbers, setting) for setting in settings]
    most_rows = min(filter(None, (task.xrfm_rows, _rows_in_memory())), default=None)
    return _of_targets(task, HeldOut(machines, task.of_numbers, most_rows))


def _rows_in_memory() -> int | None:
    """Return how many rows xRFM can take, or None for any number in leaves.

    A leaf has up to 60,000 rows. The direction of a split costs as much as a leaf, so that smaller
    leaves save nothing.
    """
    from psutil import virtual_memory

    # The kernel matrix of float32, the copy that is solved and a temporary one.
    n_rows = isqrt(virtual_memory().available // 12)
    return n_rows if n_rows < 60_000 else None


def drawn_settings(n_trials: int, lpq_share: float) -> list[dict[str, Any]]:
    """Return settings of xRFM from the search space of pytabkit's `XRFM_HPO_Classifier`.

    Notes
    -----
    With an `lpq_share` of 0.8, the space `default` of `sample_xrfm_params` in pytabkit 1.7.3
    (`models/alg_interfaces/xrfm_interfaces.py`); with 0, its space `only_l2`, which takes a tenth
    of the time on a processor. Categories are columns of indicators here.
    """
    rng = np.random.default_rng(0)

    def drawn() -> dict[str, Any]:
        exponent = rng.uniform(0.7, 1.4)
        return {
            "kernel": "lpq" if rng.random() < lpq_share else "l2",
            "bandwidth": np.exp(rng.uniform(np.log(0.5), np.log(200.0))),
            "exponent": exponent,
            "norm_p": exponent + (2 - exponent) * rng.uniform(0.0, 0.8),
            "diag": bool(rng.integers(2)),
            "reg": np.exp(rng.uniform(np.log(1e-6), np.log(10.0))),
        }

    return [drawn() for _ in range(n_trials)]


class FeatureMachine(BaseEstimator):
    """xRFM on standardized columns, with one of `drawn_settings`, or as it comes without any."""

    def __init__(self, of_numbers: bool, setting: dict[str, Any]) -> None:
        self.of_numbers, self.setting = of_numbers, setting

    def fit(self, X: NDArray[Any], y: NDArray[Any], eval_set: Any) -> Self:
        """Fit on the processor."""
        from psutil import virtual_memory
        from xrfm import xRFM

        # pytabkit's estimate for gradients: 12 numbers for every row, column and row of a batch.
        batch_rows = virtual_memory().available // (48 * X.size)
        self.machine_ = xRFM(
            **self._options(),
            device="cpu",
            n_threads=available_threads(),
            random_state=0,
            verbose=False,
            tuning_metric="mse" if self.of_numbers else "accuracy",
        )
        self.scaler_ = StandardScaler().fit(X)
        ((X_judged, y_judged),) = eval_set
        rows = (self._scaled(X), y, self._scaled(X_judged), y_judged)
        self.machine_.fit(*rows, M_batch_size=max(1, min(8192, batch_rows)))
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return labels or numbers."""
        return self.machine_.predict(self._scaled(X))

    def _scaled(self, X: NDArray[Any]) -> NDArray[np.float32]:
        return self.scaler_.transform(X).astype(np.float32)

    def _options(self) -> dict[str, Any]:
        """Return what pytabkit passes to xRFM with a setting."""
        if not self.setting:
            return {}
        model = {name: value for name, value in self.setting.items() if name != "reg"}
        return {
            "rfm_params": {"model": model, "fit": {"reg": self.setting["reg"], "iters": 5}},
            "classification_mode": "prevalence",
            "overlap_fraction": 0.1,
        }


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
    "lightgbm-stopped": Contender("LightGBM, 500 rounds", partial(stopped, make=lightgbm)),
    "catboost": Contender("CatBoost", catboost),
    "catboost-stopped": Contender("CatBoost, 500 rounds", partial(stopped, make=catboost)),
    "svc": Contender("SVC, 20 combinations", machine),
    "xrfm": Contender("xRFM", xrfm),
    "xrfm-l2": Contender("xRFM, best of trials, l2", partial(searched_xrfm, lpq_share=0.0)),
    "xrfm-tuned": Contender("xRFM, best of trials", partial(searched_xrfm, lpq_share=0.8)),
    "nystroem": Contender("Nystroem + ridge", nystroem),
    "neighbours": Contender("nearest neighbours", neighbours),
    "linear": Contender("logistic or linear", linear),
}
