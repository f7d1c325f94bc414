"""Networks that choose their own scale, basis, width, features and penalty."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.estimators.classifier import ClassNetwork
from dask_nrbfn.estimators.network import Network
from dask_nrbfn.estimators.regressor import NumberNetwork
from dask_nrbfn.estimators.runs import Settings
from dask_nrbfn.params import TUNED, FitLimits, TuneParams
from dask_nrbfn.storage.chunks import Mark
from dask_nrbfn.storage.location import RemoteLocation
from dask_nrbfn.storage.run import Run


class TunedNetwork(Network):
    """Network whose scale, basis, width, features and penalty are chosen by cross-validation."""

    def _values(self) -> dict[str, Any]:
        values = super()._values()
        return {name: value for name, value in values.items() if name not in TUNED}

    def _settings(self) -> Settings:
        own = self.get_params()
        tried = {name: own[name] for name in TuneParams.options() if name in own}
        return Settings(self._params(), TuneParams(**tried))

    def _take_run(self, run: Run) -> None:
        super()._take_run(run)
        tuning = describe_tuning(run)
        for name, value in tuning["chosen"].items():
            # Those of its rows are the attribute `basis_`.
            setattr(self, "source_" if name == "basis" else f"{name}_", value)
        self.path_, self.tried_ = tuning["path"], tuning["tried"]
        self.losses_ = tuning["losses"]


class NRBFNClassifierCV(TunedNetwork, ClassNetwork):
    """Network whose scale, basis, width, features and penalty are chosen by cross-validation.

    Parameters
    ----------
    effort : {"quick", "normal", "thorough"}, default="normal"
        How much is tried of what is None below, see `TuneParams`.
    folds : int, default=5
        Folds of the rows; the fold of a row is a hash of its number.
    alphas : sequence of float
        Values of alpha to try.
    penalties : sequence of {"weights", "kernel", "clusters"}, default=None
        Penalties to try, with every alpha and all features that they are for. None: by `effort`.
    localities : sequence of float, default=None
        Values of locality to try, with every alpha and penalty. None: 0.
    components : sequence of int, default=None
        Numbers of eigenfunctions to try, with every alpha and normalized features. None: the
        weights may be any.
    losses : sequence of {"squared", "squared-hinge", "logistic", "hinge"}, default=None
        Losses to try, after all else. None: by `effort`.
    width_factors : sequence of float, default=None
        Kernel widths to try, over the mean distance between rows and basis rows. None: those of
        each kernel, then some between and beyond them.
    features : sequence of {"normalized", "plain"}
        Kinds of features to try.
    kernels : sequence of {"gaussian", "laplacian", "matern32", "matern52"}, default=None
        Kernels to try. None: by `effort`.
    scales : sequence of {"none", "standard", "unit", "learned"}, default=None
        Scales to try. None: `scale`, and by `effort` others.
    bases : sequence of {"kmeans", "random", "sknn"}, default=None
        Tried only for a basis of a given size. None: `basis`, and by `effort` others than "sknn".
    basis_rules : sequence of {"least-confident", "uniform"}, default=None
        Tried only for a basis of a given size. None: by `effort`.
    search_basis : int, default=1000
        Basis rows while all but the penalty and the loss is tried, at most.
    search_rows : int, default=None
        Rows then. None: as many as make 256 MiB, from 20,000 to 100,000.
    n_neighbors, confidence_threshold, basis, basis_size, candidates, class_weight, neighbors, \
n_partitions, overlap, min_recall, svd, scale, metric_rounds, n_parts, random_state, unlabelled, \
missing, store
        As for `NRBFNClassifier`.

    Attributes
    ----------
    alpha_, locality_, width_factor_ : float
        The chosen ones.
    scale_, source_, basis_rule_, features_, kernel_, penalty_, loss_ : str
        The chosen ones; the source is that of the basis.
    components_ : int or None
        The chosen number.
    error_rate_, log_loss_ : float
        Of rows that were held out, with the chosen parameters; shares of their weight.
    temperature_ : float
        At which `predict_proba` is calibrated on the held-out scores.
    path_ : list of dict
        For every penalty, locality and alpha the held-out error_rate, log_loss and temperature, the
        fitting_error, spectral_risk and reciprocal_condition of all rows, absolute_error,
        absolute_risk and absolute_objective, and up to 4,096 basis rows rank, attainable, ideal
        and perturbed: see `dask_nrbfn.numeric.risk.SpectralBounds`. None where the system is
        singular.
    tried_ : list of dict
        The combinations that were tried, and their error rates on a small basis.
    losses_ : list of dict
        For every loss the passes over the rows, what stopped them, and how the held-out rows are
        labelled; empty if the squared one alone was tried.

    Notes
    -----
    Each fold is held out with its basis rows; width, scaling and shares of clusters are those of
    all rows, and so is the choice of the basis: the error rate serves to compare. See
    `NRBFNClassifier` for the other attributes.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> network = NRBFNClassifierCV(scale="standard").fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    def __init__(
        self,
        n_neighbors: int | None = None,
        confidence_threshold: float = 0.9,
        *,
        effort: str = TuneParams.effort,
        folds: int = TuneParams.folds,
        alphas: Sequence[float] = TuneParams.alphas,
        penalties: Sequence[str] | None = None,
        localities: Sequence[float] | None = None,
        components: Sequence[int] | None = None,
        losses: Sequence[str] | None = None,
        width_factors: Sequence[float] | None = None,
        features: Sequence[str] = TuneParams.features,
        kernels: Sequence[str] | None = None,
        scales: Sequence[str] | None = None,
        bases: Sequence[str] | None = None,
        basis_rules: Sequence[str] | None = None,
        search_basis: int = TuneParams.search_basis,
        search_rows: int | None = None,
        basis: str | ArrayLike = "sknn",
        basis_size: int | None = None,
        candidates: int | str = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        neighbors: str = "auto",
        n_partitions: int | None = None,
        overlap: int = 2,
        min_recall: float = FitLimits.min_recall,
        svd: int | None = None,
        scale: str = "auto",
        metric_rounds: int = 5,
        n_parts: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
        unlabelled: Mark | None = None,
        missing: str = "error",
        store: str | os.PathLike[str] | RemoteLocation | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.confidence_threshold = confidence_threshold
        self.effort = effort
        self.folds = folds
        self.alphas = alphas
        self.penalties = penalties
        self.localities = localities
        self.components = components
        self.losses = losses
        self.width_factors = width_factors
        self.features = features
        self.kernels = kernels
        self.scales = scales
        self.bases = bases
        self.basis_rules = basis_rules
        self.search_basis = search_basis
        self.search_rows = search_rows
        self.basis = basis
        self.basis_size = basis_size
        self.candidates = candidates
        self.class_weight = class_weight
        self.neighbors = neighbors
        self.n_partitions = n_partitions
        self.overlap = overlap
        self.min_recall = min_recall
        self.svd = svd
        self.scale = scale
        self.metric_rounds = metric_rounds
        self.n_parts = n_parts
        self.random_state = random_state
        self.unlabelled = unlabelled
        self.missing = missing
        self.store = store


class NRBFNRegressorCV(TunedNetwork, NumberNetwork):
    """Network for numbers whose scale, basis, width, features and penalty are cross-validated.

    Parameters
    ----------
    effort, folds, alphas, penalties, localities, components, width_factors, features, kernels, \
scales, bases, search_basis, search_rows
        As for `NRBFNClassifierCV`.
    n_neighbors, basis, basis_size, svd, scale, metric_rounds, n_parts, random_state, unlabelled, \
missing, store
        As for `NRBFNRegressor`.

    Attributes
    ----------
    alpha_, locality_, width_factor_ : float
        The chosen ones.
    scale_, source_, features_, kernel_, penalty_ : str
        The chosen ones; the source is that of the basis.
    components_ : int or None
        The chosen number.
    relative_error_ : float
        ``1 - R^2`` of rows that were held out, on average over the targets.
    r2_, rmse_, mae_ : list of float
        R^2, root mean squared and mean absolute error of every target, likewise.
    path_ : list of dict
        For every penalty, locality and alpha these figures, and those that `NRBFNClassifierCV` has
        of all rows.
    tried_ : list of dict
        The combinations that were tried, and their figures on a small basis.

    Notes
    -----
    See `NRBFNClassifierCV` for what is held out, `NRBFNRegressor` for the other attributes.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = NRBFNRegressorCV(scale="standard").fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.4)
    True
    """

    def __init__(
        self,
        *,
        effort: str = TuneParams.effort,
        folds: int = TuneParams.folds,
        alphas: Sequence[float] = TuneParams.alphas,
        penalties: Sequence[str] | None = None,
        localities: Sequence[float] | None = None,
        components: Sequence[int] | None = None,
        width_factors: Sequence[float] | None = None,
        features: Sequence[str] = TuneParams.features,
        kernels: Sequence[str] | None = None,
        scales: Sequence[str] | None = None,
        bases: Sequence[str] | None = None,
        search_basis: int = TuneParams.search_basis,
        search_rows: int | None = None,
        n_neighbors: int | None = None,
        basis: str | ArrayLike = "kmeans",
        basis_size: int | None = None,
        svd: int | None = None,
        scale: str = "auto",
        metric_rounds: int = 5,
        n_parts: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
        unlabelled: Mark | None = None,
        missing: str = "error",
        store: str | os.PathLike[str] | RemoteLocation | None = None,
    ) -> None:
        self.effort = effort
        self.folds = folds
        self.alphas = alphas
        self.penalties = penalties
        self.localities = localities
        self.components = components
        self.width_factors = width_factors
        self.features = features
        self.kernels = kernels
        self.scales = scales
        self.bases = bases
        self.search_basis = search_basis
        self.search_rows = search_rows
        self.n_neighbors = n_neighbors
        self.basis = basis
        self.basis_size = basis_size
        self.svd = svd
        self.scale = scale
        self.metric_rounds = metric_rounds
        self.n_parts = n_parts
        self.random_state = random_state
        self.unlabelled = unlabelled
        self.missing = missing
        self.store = store
