"""Networks whose scale, basis, width, features and penalty are chosen by cross-validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.estimators.classifier import ClassNetwork
from dask_nrbfn.estimators.network import LearningNetwork, documented
from dask_nrbfn.estimators.regressor import NumberNetwork
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.params import TUNED, FitLimits, TuneParams
from dask_nrbfn.spec import Combination
from dask_nrbfn.storage.run import Run


@dataclass(kw_only=True, eq=False, repr=False)
class TunedNetwork(LearningNetwork):
    """Network whose scale, basis, width, features and penalty are chosen by cross-validation."""

    _options = LearningNetwork._options | dict(TuneParams.options())

    effort: str = TuneParams.effort
    folds: int = TuneParams.folds
    alphas: Sequence[float] = TuneParams.alphas
    penalties: Sequence[str] | None = None
    localities: Sequence[float] | None = None
    components: Sequence[int] | None = None
    width_factors: Sequence[float] | None = None
    features: Sequence[str] = TuneParams.features
    kernels: Sequence[str] | None = None
    scales: Sequence[str] | None = None
    bases: Sequence[str] | None = None
    search_basis: int = TuneParams.search_basis
    search_rows: int | None = None
    time_limit: float | None = FitLimits.time_limit

    def _values(self) -> dict[str, Any]:
        values = super()._values()
        return {name: value for name, value in values.items() if name not in TUNED}

    def _tuning(self) -> TuneParams:
        own = self.get_params()
        return TuneParams(**{name: own[name] for name in TuneParams.options() if name in own})

    def _take_run(self, run: Run) -> None:
        super()._take_run(run)
        tuning = self._take_chosen(run)
        self.path_, self.losses_ = tuning["path"], tuning["losses"]
        error = "relative_error" if run.of_numbers else "error_rate"
        path = [tuning["chosen"] | each | {"round": 0} for each in self.path_]
        self.cv_results_ = _cv_results(tuning["tried"] or path, error)

    def _take_chosen(self, run: Run) -> dict[str, Any]:
        """Take the chosen values and the held-out figures of a run; return its tuning."""
        tuning = describe_tuning(run)
        for name, value in tuning["chosen"].items():
            # The attribute `basis_` holds the basis rows.
            setattr(self, "source_" if name == "basis" else f"{name}_", value)
        return tuning

    def _take_version(self, run: Run) -> None:
        super()._take_version(run)
        self._take_chosen(run)


# The parameters of a combination that a search tries.
_COMBINED = [field.name for field in fields(Combination)] + list(Ridge._fields)


def _cv_results(tried: Sequence[Mapping[str, Any]], error: str) -> dict[str, Any]:
    """Return combinations in the form of scikit-learn's searches; later rounds rank first."""
    losses = np.array([np.nan if each[error] is None else each[error] for each in tried])
    rounds = np.array([each["round"] for each in tried])
    ranks = np.empty(len(tried), dtype=np.int32)
    ranks[np.lexsort((losses, -rounds))] = np.arange(1, len(tried) + 1)
    params = [{name: each[name] for name in _COMBINED} for each in tried]
    columns = {f"param_{name}": [each[name] for each in params] for name in _COMBINED}
    scores = {"mean_test_score": 1.0 - losses, "rank_test_score": ranks, "round": rounds}
    return {**columns, "params": params, **scores}


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class NRBFNClassifierCV(TunedNetwork, ClassNetwork):
    """Network whose scale, basis, width, features and penalty are chosen by cross-validation.

    Attributes
    ----------
    alpha_, locality_, width_factor_ : float
        The chosen values.
    scale_, source_, basis_rule_, features_, kernel_, penalty_, loss_ : str
        The chosen values; `source_` is the chosen kind of basis.
    components_ : int or None
        The chosen number.
    error_rate_, log_loss_ : float
        Error rate and log loss of held-out rows with the chosen parameters, weighted by the sample
        weights. The log loss is that of the calibrated probabilities. After an update, the held-out
        figures also count its rows, which networks without them predicted.
    n_judged_ : int
        The number of rows behind the held-out figures.
    temperature_, log_slope_ : float
    biases_ : list of float
        The calibration of `predict_proba`, see `dask_nrbfn.numeric.calibration.Calibration`.
    expected_calibration_error_ : float
        Error of the held-out rows on which the calibration was fitted.
    path_ : list of dict
        For every penalty, locality and alpha: error_rate of held-out rows, and their log_loss at
        the best temperature without biases; fitting_error, spectral_risk and reciprocal_condition
        of all rows; absolute_error, absolute_risk and absolute_objective; and up to 4,096 basis
        rows also rank and attainable, see `dask_nrbfn.numeric.risk.SpectralBounds`. None if the
        system is singular.
    cv_results_ : dict of list and ndarray (m,)
        The combinations that were tried, in the form of scikit-learn's `GridSearchCV`: params,
        param_alpha and so on, mean_test_score (the accuracy on held-out rows), rank_test_score and
        round. Later rounds have more rows and rank first. A tuning compares by the Brier score, so
        the chosen combination may have another rank. The entries of `path_` without a search.
    losses_ : list of dict
        For every loss the number of passes over the rows, the rule that stopped the passes, and the
        figures of held-out rows. Empty if only the squared loss was tried.

    Notes
    -----
    Folds are held out with their basis rows. Width, scaling, shares of clusters and the choice of
    the basis come from all rows, so the error rate serves to compare. See `NRBFNClassifier` for the
    other attributes.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> network = NRBFNClassifierCV(scale="standard").fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    basis: str | ArrayLike = "sknn"
    losses: Sequence[str] | None = None
    basis_rules: Sequence[str] | None = None


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class NRBFNRegressorCV(TunedNetwork, NumberNetwork):
    """Network for numbers whose scale, basis, width, features and penalty are cross-validated.

    Attributes
    ----------
    alpha_, locality_, width_factor_ : float
        The chosen values.
    scale_, source_, features_, kernel_, penalty_ : str
        The chosen values; `source_` is the chosen kind of basis.
    components_ : int or None
        The chosen number.
    relative_error_ : float
        ``1 - R^2`` of held-out rows, averaged over the targets.
    r2_, rmse_, mae_ : list of float
        R^2, root mean squared and mean absolute error of held-out rows for every target.
    n_judged_ : int
        The number of rows behind the held-out figures.
    path_ : list of dict
        These figures for every penalty, locality and alpha, and the figures of all rows as in
        `NRBFNClassifierCV`.
    cv_results_ : dict of list and ndarray (m,)
        As in `NRBFNClassifierCV`, with R^2 as score.

    Notes
    -----
    See `NRBFNClassifierCV` for the held-out rows, `NRBFNRegressor` for the other attributes.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = NRBFNRegressorCV(scale="standard").fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.4)
    True
    """
