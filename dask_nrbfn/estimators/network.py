"""The common base of estimators with a basis: parameters, fits, updates and predictions."""

import hashlib
import json
import logging
import os
import sys
import tempfile
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import zarr
from distributed import default_client
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.onnx_model import export_onnx
from dask_nrbfn.commands.update import kept_stages, update_run
from dask_nrbfn.engine import Engine, EngineOptions, InlineEngine, connect
from dask_nrbfn.errors import DataError, ParameterError, RunMismatchError
from dask_nrbfn.estimators.inputs import (
    TrainingRows,
    checked_rows,
    chunked_dataset,
    is_chunked,
    is_dask,
    set_columns,
)
from dask_nrbfn.estimators.predictions import PredictOutput, predict_lazily, result_of
from dask_nrbfn.numeric.device import Device
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitLimits, FitParams, Option, TuneParams, document
from dask_nrbfn.scorer import Scorer, is_extended
from dask_nrbfn.sources.tables import schema_of
from dask_nrbfn.stages.bases import with_neighbors
from dask_nrbfn.stages.basis import BASIS_ROWS, CONFIDENCES, given_basis, name_rows
from dask_nrbfn.stages.cells import CELL_ROWS
from dask_nrbfn.stages.model import read_model
from dask_nrbfn.stages.refine import check_updatable, is_refined
from dask_nrbfn.storage.dataset import Dataset, check_columns
from dask_nrbfn.storage.group import remove_group
from dask_nrbfn.storage.location import Location, RemoteLocation, join, normalize
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run, version_name

_OF_FIT = FitParams.options()
_OPTIONS = {
    **_OF_FIT,
    **FitLimits.options(),
    "basis": Option(
        "sknn",
        str,
        'Rows of low confidence ("sknn", for classes only), drawn rows ("random"), centres of '
        'clusters ("kmeans"), or the rows of an array.',
        metavar="one of kmeans, random, sknn, or array-like (r, p)",
    ),
    "class_weight": replace(
        _OF_FIT["class_weight"], choices=(), metavar='"balanced" or a dict of weights by class'
    ),
    "random_state": Option(
        0, str, _OF_FIT["random_state"].help, metavar="an integer, RandomState or None"
    ),
    "n_components": Option(2, int, "Number of coordinates.", least=1),
    "unlabelled": Option(
        None,
        str,
        'Marker of a missing label; NaN or "" stands for every missing value. For numbers, it is '
        "in all columns of y. Rows without a label can become basis rows and count in scale and "
        "width; everything else is learned from the other rows.",
        metavar="a label, or a number",
        none="every row has a label",
    ),
    "missing": Option(
        "auto",
        str,
        "impute: numbers get the median, categories one of their own, and columns with over 1 % "
        "missing an indicator feature. auto: impute if a fit in memory has gaps, else error.",
        choices=("auto", "error", "impute"),
    ),
    "store": Option(
        None,
        str,
        "Directory or URL that all workers can open. Fits on Zarr and dask arrays keep their rows "
        "and runs there, lazy predictions their models. An interrupted fit of the same rows and "
        "parameters resumes.",
        metavar="a path, URL or RemoteLocation",
        none="a temporary directory",
    ),
    "device": EngineOptions.options()["device"],
    "verbose": Option(0, int, "1: print the log of a fit, unless `logging` shows it.", least=0),
}
"""Definitions of the parameters of all estimators."""

_KINDS = {"classes": "NRBFNClassifier", "coordinates": "DiffusionMap", "numbers": "NRBFNRegressor"}

_printing = threading.Lock()


@contextmanager
def printed_log(verbose: int) -> Iterator[None]:
    """Print INFO lines that `logging` leaves out; its handlers get the same lines as before."""
    log = logging.getLogger("dask_nrbfn")
    user, least = logging.Logger(log.name), max(log.getEffectiveLevel(), logging.WARNING)

    def is_printed(record: logging.LogRecord) -> bool:
        if record.levelno >= least:
            user.callHandlers(record)
        return record.levelno < least

    # The INFO lines of fits in other threads are printed by the first of them.
    with _printing:
        prints = verbose and not (log.isEnabledFor(logging.INFO) and log.hasHandlers())
        if prints:
            vars(user).update(vars(log))
            printer = logging.StreamHandler(sys.stdout)
            printer.addFilter(is_printed)
            log.handlers, log.propagate = [printer], False
            log.setLevel(logging.INFO)
    try:
        yield
    finally:
        if prints:
            log.handlers, log.propagate = user.handlers, user.propagate
            log.setLevel(user.level)


@contextmanager
def workplace(store: Location | None, X: Any) -> Iterator[Location]:
    """Yield `store`, a temporary directory, or for a dataset in memory a store in memory."""
    if isinstance(X, Dataset) and isinstance(X.location, MemoryStore):
        yield MemoryStore()
    elif store is not None:
        yield normalize(store)
    else:
        with tempfile.TemporaryDirectory(prefix="dask-nrbfn-") as directory:
            yield directory


@contextmanager
def _active_engine(dataset: Dataset, device: Device) -> Iterator[Engine]:
    """Yield an engine: the active client, or this process without one or for rows in memory."""
    options = EngineOptions(device=device)
    client = None
    # distributed raises ValueError without a client.
    with suppress(ValueError):
        client = default_client()
    if client is None or isinstance(dataset.location, MemoryStore):
        yield InlineEngine(device=device)
    else:
        with connect(options, client) as engine:
            yield engine


class _KeptRun(NamedTuple):
    """A run that is kept after a fit, with its sums over the rows.

    version: the last version that the network has loaded.
    shared: whether other fits of the same rows and parameters use the run. No network may change a
        shared run.
    """

    location: Location
    version: int
    shared: bool

    @classmethod
    def of_fit(cls, run: Run, store: Location | None) -> Self | None:
        """Return the run of a fit if it is in memory or in a store."""
        if isinstance(run.location, MemoryStore):
            if is_refined(run.chosen_params):
                return None
            # Arrays with one entry for each row, which no update reads.
            run.drop("neighbors", "confidence", "search")
            return cls(run.location, 0, shared=False)
        return None if store is None else cls(run.location, 0, shared=True)

    def update(self, dataset: Dataset, device: Device, *, forget: bool) -> Self:
        """Add or remove rows, and return the run with its new version."""
        in_memory = isinstance(self.location, MemoryStore)
        with _active_engine(dataset, device) as engine:
            update_run(self.location, dataset, engine, forget=forget, again=in_memory)
        if in_memory:
            # No other network reads the earlier version.
            Run.open(self.location).drop("moments", "cells/networks", version_name(self.version))
        return self._replace(version=self.version + 1)


def _own_run(kept: _KeptRun | None, store: Location | None) -> _KeptRun:
    """Return a run that only one network updates: the run of its fit, or a copy in `store`."""
    if kept is not None and not kept.shared:
        if len(Run.open(kept.location).versions) != kept.version:
            raise RunMismatchError(
                f"a copy of this network has changed {kept.location}.", "Fit this network again."
            )
        return kept
    if kept is None or store is None:
        raise ParameterError("the sums over the rows were not kept.", "Fit with a `store`.")
    location = join(store, f"updated-{uuid.uuid4().hex}")
    run = Run.open(kept.location)
    run.copy_fit(location, (*kept_stages(run), "moments"))
    return _KeptRun(location, 0, shared=False)


@dataclass(kw_only=True, eq=False, repr=False)
class ModelEstimator(BaseEstimator):  # type: ignore[misc]
    """Estimator with the parameters of a fit and, once it is fitted, a model."""

    _options: ClassVar[dict[str, Option]] = _OPTIONS
    _predicts: ClassVar[str]

    basis: str | ArrayLike = "kmeans"
    basis_size: int | None = None
    scale: str = "auto"
    n_parts: int | None = None
    random_state: int | np.random.RandomState | None = 0
    missing: str = "auto"
    store: str | os.PathLike[str] | RemoteLocation | None = None
    verbose: int = 0
    device: Device = "cpu"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed may have set the attributes that describe the columns.
        return hasattr(self, "_model")

    def save(self, location: Location, *, overwrite: bool = False) -> None:
        """Write the model as a Zarr group.

        Parameters
        ----------
        location : path, URL or store
        overwrite : bool
            Replace an old model at `location` once the new one is complete.
        """
        check_is_fitted(self)
        self._model.save(location, overwrite=overwrite)

    def to_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "float64",
        inputs: str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the model as an ONNX file.

        Parameters
        ----------
        path, dtype, inputs, overwrite : as in export_onnx
            See `export_onnx`.
        """
        check_is_fitted(self)
        export_onnx(self._model, path, dtype=dtype, inputs=inputs, overwrite=overwrite)

    @classmethod
    def _of_model(cls, model: Model) -> Self:
        """Return the estimator of a model, with the parameters of its fit."""
        params = model.params.to_dict()
        if model.params.basis_is_given:
            params |= {"basis": model.scaling.restore(model.basis), "basis_size": None}
        if model.schema is not None and model.schema.fills:
            params["missing"] = "impute"
        estimator = cls(**{name: params[name] for name in cls._get_param_names() if name in params})
        estimator._take_model(model)
        return estimator

    def _values(self) -> dict[str, Any]:
        """Return the parameters that are also parameters of a fit."""
        own = self.get_params()
        return {name: own[name] for name in FitParams.options() if name in own}

    def _params(self) -> FitParams:
        """Return the parameters of one fit; with a RandomState the next call has another seed."""
        values, given = self._values(), self._given_rows()
        if given is not None:
            del values["basis"]
        if not isinstance(self.random_state, int | np.integer):
            values["random_state"] = check_random_state(self.random_state).randint(2**31)
        params = FitParams(**values)
        return params if given is None else given_basis(params, given)

    def _fitted_run(self, dataset: Dataset, place: Location, **options: Any) -> Run:
        """Return the finished run under `place` of a dataset and parameters, which name it."""
        location, params = place, self._params()
        if not isinstance(dataset.location, MemoryStore):
            tuning, limit = options.get("tuning"), options.get("time_limit")
            tried = None if tuning is None else tuning.to_dict()
            identity = json.dumps([dataset.fingerprint, params.to_dict(), tried, limit])
            digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
            kind = "embedding" if "embeds" in options else "run"
            location = join(place, f"{kind}-{digest}")
        options["basis"] = self._given_rows()
        with printed_log(self.verbose), _active_engine(dataset, self.device) as engine:
            return fit_dataset(dataset, location, params, engine, **options)

    def _given_rows(self) -> ArrayLike | None:
        """Return `basis` if it is an array of basis rows."""
        return None if isinstance(self.basis, str) else self.basis

    def _take_run(self, run: Run) -> None:
        self._basis_rows = (CELL_ROWS if CELL_ROWS.is_in(run) else BASIS_ROWS).read(run)

    def _take_model(self, model: Model) -> None:
        predicts = "classes"
        if model.embeds:
            predicts = "coordinates"
        elif model.target_names is not None:
            predicts = "numbers"
        if predicts != self._predicts:
            raise DataError(f"the model predicts {predicts}.", f"Load it with {_KINDS[predicts]}.")
        self._model = model
        self.params_ = model.params
        self.basis_ = model.basis
        self._take_basis_indices()
        self.width_ = model.width
        self.weights_ = model.weights
        self._take_feature_weights(model.feature_weights)
        set_columns(self, model.n_features, model.feature_names, model.schema)

    def _take_feature_weights(self, weights: Floats | None) -> None:
        if weights is not None:
            self.feature_weights_ = weights
            self.feature_importances_ = weights / weights.sum()
        elif hasattr(self, "feature_weights_"):
            del self.feature_weights_, self.feature_importances_

    def _take_basis_indices(self) -> None:
        # A loaded model does not know its rows.
        if hasattr(self, "_basis_rows"):
            places = self._model.places
            self.basis_indices_ = self._basis_rows if places is None else self._basis_rows[places]

    def _predict(
        self, X: Any, result: str, *, clip: bool = True, coverages: Sequence[float] = ()
    ) -> Any:
        """Return a result of `Scorer` for rows; lazily for a dask array."""
        check_is_fitted(self)
        if is_extended(result):
            self._model.check_intervals(coverages)
        device = EngineOptions(device=self.device).device
        model = self._model if clip else replace(self._model, target_range=None)
        if is_dask(X):
            return predict_lazily(model, X, result, self.store, device)
        return result_of(model, partial(self._scores, X), result, device)

    def _scores(self, X: Any, scorer: Scorer) -> Floats:
        model = self._model
        if isinstance(X, Dataset):
            X = X.encoded_like(model)
            return np.concatenate([scores for scores, *_ in scorer.blocks(X, 0, X.n_rows)])
        as_stored = not isinstance(X, zarr.Array)
        if as_stored:
            X = checked_rows(self, X, model.schema)
        if model.schema is None:
            check_columns(X.shape[1], model.n_features)
        return scorer.table(X, as_stored=as_stored)


Estimator = TypeVar("Estimator", bound=ModelEstimator)


def documented(estimator: type[Estimator]) -> type[Estimator]:
    """Add the parameters of an estimator to its docstring."""
    document(estimator, estimator._options)
    return estimator


@dataclass(kw_only=True, eq=False, repr=False)
class LearningNetwork(PredictOutput, ModelEstimator, ABC):
    """Network that is fitted to targets, updated and saved; subclasses define the targets."""

    n_neighbors: int | None = None
    metric_rounds: int | None = None
    cells: int | str | None = None
    unlabelled: Any = None
    _kept_run: _KeptRun | None = field(default=None, init=False)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the network to rows and their targets.

        Parameters
        ----------
        X : array-like, zarr.Array or dask array (n, c), frame, dask dataframe, or Dataset
            A frame of pandas, polars, Arrow or another library may have columns of text,
            categories, dates and booleans.
        y : array-like, zarr.Array, dask array or series (n,), for numbers also (n, q)
            None for a `Dataset`, which contains its targets. Rows whose target is `unlabelled` can
            become basis rows, and count only in the scale and the width.
        sample_weight : array-like, zarr.Array, dask array or series (n,), optional
            A row of weight w counts in the width and in the ridge system as w equal rows; the
            search for neighbours and the scale of the columns ignore weights. Rows of weight 0 are
            left out; they are allowed only if X is in memory. Categories and fill values are found
            from the other rows, all with equal weight. None for a `Dataset`, which contains its
            weights.

        Returns
        -------
        self

        Raises
        ------
        ParameterError, DataError
            If a parameter or the data cannot be used. Both are a `ValueError`.
        MemoryBudgetError
            If the basis does not fit into memory.
        """
        return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        """Fit to rows; `classes` are all classes of rows in memory, by default those of y."""
        if is_chunked(X):
            with workplace(self.store, X) as place:
                dataset = chunked_dataset(self, X, y, sample_weight, place, "dataset")
                self._train(dataset, place, self._classes_of(dataset, y))
            return self
        schema = schema_of(X, self.missing, weights=sample_weight)
        rows = self._training_rows(X, y, sample_weight, schema, classes)
        dataset = rows.dataset(schema, getattr(self, "feature_names_in_", None))
        self._train(dataset, MemoryStore(), rows.classes)
        if rows.kept is not None:
            self._number_rows(rows.kept)
        return self

    def forget(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Remove rows that were fitted or added.

        Basis rows among these rows stay in ``basis_``.

        Parameters
        ----------
        X, y, sample_weight
            Rows as given to `fit` or `partial_fit`.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            See `partial_fit`.
        DataError
            If some rows cannot have been fitted or added, or no rows would be left.
        """
        check_is_fitted(self)
        check_updatable(self.params_.loss, "Call fit with all rows.")
        self._update(X, y, sample_weight, forget=True)
        return self

    def unlike(self, X: Any) -> Any:
        """Return how far rows are from all that was learned.

        Parameters
        ----------
        X : as for `fit`
            The result is lazy for a dask collection.

        Returns
        -------
        float64 ndarray (n,)
            Distance to the nearest basis row, over the distance within which 99.9 % of the held-out
            training rows are. Rows above 1 are hardly like any of them.

        Raises
        ------
        ParameterError
            If the fit held out no rows.
        """
        return self._as_output(self._predict(X, "unlike"), X, ["unlike"])

    def _tuning(self) -> TuneParams | None:
        """Return the parameters of the tuning, or None."""
        return None

    @abstractmethod
    def _training_rows(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, classes: Any = None
    ) -> TrainingRows:
        """Return checked arrays to fit, with the given classes or those of y."""

    @abstractmethod
    def _further_rows(self, X: Any, y: Any, sample_weight: Any, stored: Model) -> TrainingRows:
        """Return checked arrays to add or forget, with targets in the form of the run's model."""

    @abstractmethod
    def _classes_of(self, dataset: Dataset, y: Any) -> Any:
        """Return the classes of a dataset with the dtype of `y`, (K,); none for numbers."""

    def _train(self, dataset: Dataset, place: Location, classes: Any) -> None:
        limits = {name: getattr(self, name, default) for name, default in vars(FitLimits()).items()}
        run = self._fitted_run(dataset, place, tuning=self._tuning(), **limits)
        self._take_run(run)
        self._take_model(replace(read_model(run, ""), classes=classes))
        self._kept_run = _KeptRun.of_fit(run, self.store)

    def _take_run(self, run: Run) -> None:
        if "confidence" in run.stages:
            values = CONFIDENCES.read(with_neighbors(run))
            self.confidence_ = np.full(run.n_rows, np.nan)
            self.confidence_[name_rows(run, np.arange(len(values)))] = values
        elif hasattr(self, "confidence_"):
            del self.confidence_
        super()._take_run(run)

    def _take_model(self, model: Model) -> None:
        super()._take_model(model)
        self.fitting_error_ = model.fitting_error
        self.spectral_risk_ = model.spectral_risk

    def _number_rows(self, kept: NDArray[np.bool_]) -> None:
        """Renumber the attributes about training rows so that rows of weight 0 count too."""
        known = self._basis_rows >= 0
        self._basis_rows = np.where(known, np.flatnonzero(kept)[self._basis_rows], -1)
        self._take_basis_indices()
        if hasattr(self, "confidence_"):
            confidence = np.full(len(kept), np.nan)
            confidence[kept] = self.confidence_
            self.confidence_ = confidence

    def _fit_or_add(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> None:
        """Fit to a first batch of rows, or add further rows to it."""
        check_updatable(getattr(self, "loss", FitParams.loss), "Call fit with all rows.")
        if hasattr(self, "basis_"):
            self._update(X, y, sample_weight, forget=False)
        elif self.store is None and is_chunked(X):
            raise ParameterError(
                "the sums over the rows cannot be kept without a `store`.",
                "Pass a `store` to the constructor.",
            )
        else:
            self._fit(X, y, sample_weight, classes)

    def _update(self, X: Any, y: Any, sample_weight: Any, *, forget: bool) -> None:
        own = self._kept_run = _own_run(self._kept_run, self.store)
        with self._batch(X, y, sample_weight, own.location) as dataset:
            self._kept_run = own.update(dataset, self.device, forget=forget)
        self._take_version(Run.open(own.location))

    def _take_version(self, run: Run) -> None:
        """Take the latest model of a run."""
        after = Model.load(run.location)
        self._take_model(replace(after, classes=self._model.classes))

    @contextmanager
    def _batch(self, X: Any, y: Any, sample_weight: Any, location: Location) -> Iterator[Dataset]:
        """Yield rows as a dataset for the run at `location`."""
        if not is_chunked(X):
            rows = self._further_rows(X, y, sample_weight, Model.load(location))
            yield rows.dataset(self.schema_, getattr(self, "feature_names_in_", None))
            return
        if isinstance(location, MemoryStore):
            raise ParameterError(
                f"the first rows were in memory, but X is a {type(X).__name__}.",
                "Pass arrays in memory, or begin with a Dataset or dask array and a store.",
            )
        with workplace(self.store, X) as place:
            name = f"batch-{uuid.uuid4().hex}"
            dataset = chunked_dataset(self, X, y, sample_weight, place, name, self.schema_)
            try:
                yield dataset
            finally:
                if dataset is not X:
                    remove_group(dataset.location)


@dataclass(kw_only=True, eq=False, repr=False)
class PlainNetwork(LearningNetwork):
    """Network with fixed parameters."""

    alpha: float | str = FitParams.alpha
    penalty: str = "weights"
    locality: float = 0.0
    prune: int | None = None
    components: int | None = None
    features: str = "normalized"
    kernel: str = "auto"
    width_factor: float = 1.0

    def _take_model(self, model: Model) -> None:
        super()._take_model(model)
        self.alpha_ = None if model.cells is not None else model.params.chosen_alpha

    @classmethod
    def load(cls, location: Location) -> Self:
        """Return the network of a saved model or a finished run; executes no code from it."""
        return cls._of_model(Model.load(location))
