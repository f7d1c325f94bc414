"""The classifier."""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

import dask.array as da
import numpy as np
import zarr
from distributed import default_client
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import check_classes, fit_dataset, given_basis, tune_dataset
from dask_nrbfn.commands.ingest import dask_rows, ingest_arrays, ingest_dask
from dask_nrbfn.commands.predict import check_same_columns
from dask_nrbfn.commands.update import branch_run, merge_version, read_model, update_run
from dask_nrbfn.engine import Engine, InlineEngine, connect
from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import DataError, ExistsError, ParameterError, RunMismatchError
from dask_nrbfn.estimators.rows import plain_array, training_rows
from dask_nrbfn.numeric.content import distinct_labels
from dask_nrbfn.params import FitLimits, FitParams, TuneParams
from dask_nrbfn.sources.frames import plain_dtype
from dask_nrbfn.stages.parts import block_rows
from dask_nrbfn.storage.dataset import Dataset, check_finite
from dask_nrbfn.storage.group import exists, remove_group
from dask_nrbfn.storage.location import Location, RemoteLocation, join, normalize
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import version_name, versions_of


class Settings(NamedTuple):
    """What an estimator fits: parameters, and what is tried to find better ones."""

    params: FitParams
    tuning: TuneParams | None = None


class _Table(NamedTuple):
    """Rows with labels and weights, and their numbers among the rows given unless all of them."""

    rows: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    numbers: NDArray[np.int64] | None


class _OwnRun(NamedTuple):
    """A run that one network adds rows to, and the version that it has seen last."""

    location: Location
    version: int


# What is as long as the rows, and was copied where it is an attribute.
_NOT_FOR_UPDATES = ("neighbors", "confidence", "search")


class NRBFNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Normalized radial basis function network on a soft-kNN basis.

    Parameters
    ----------
    n_neighbors : int, default=20
        Neighbours from which a row's confidence in its own label is computed; less than the
        number of rows.
    confidence_threshold : float, default=0.9
        Rows with a confidence below it form the basis.
    alpha : float, default=1e-13
        Ridge penalty, relative to the trace of the gram matrix.
    basis : {"sknn", "random", "kmeans"} or array-like (r, p), default="sknn"
        Rows of low confidence, drawn rows, cluster centres, or these rows.
    basis_size : int, default=None
        Number of basis rows; "random" and "kmeans" need it. None: all rows below the threshold, or
        as many as fit the memory.
    basis_rule : {"least-confident", "uniform"}, default="least-confident"
        Which rows of low confidence form a basis of a given size: the least confident, or a draw
        among the rows below the threshold.
    features : {"normalized", "plain"}, default="normalized"
        Activations of a row divided by their sum, or as they are.
    kernel : {"gaussian", "laplacian", "matern32", "matern52"}, default="gaussian"
    width_factor : float, default=1.0
        Kernel width over the mean distance between rows and basis rows.
    class_weight : dict, "balanced" or None, default=None
        Weight of each class; "balanced": all weigh the same together.
    neighbors : {"auto", "exact", "approximate"}, default="auto"
        How neighbours are searched.
    n_partitions : int, default=None
        Number of partitions in which neighbours are searched. None: one if that fits.
    overlap : int, default=2
        Number of partitions that a row belongs to on average.
    min_recall : float, default=0.95
        Least share of the true neighbours that an approximate search must find.
    scale : {"none", "standard", "unit"}, default="none"
        Columns to mean 0 and variance 1, or rows to unit length.
    n_parts : int, default=None
        Parts that each pass over the rows is cut into.
    random_state : int, RandomState instance or None, default=0
        Seeds the approximate search and the choice among equally confident rows.
    store : str, path or RemoteLocation, default=None
        Where fits on Zarr and dask arrays keep their rows and their run, and where models for lazy
        predictions are put: a directory or URL that all workers can open. A fit of the same rows
        and parameters that was interrupted goes on from there. None: a temporary directory.

    Attributes
    ----------
    basis_ : ndarray (r, p), float64
        Basis rows, scaled.
    basis_indices_ : ndarray (r,), int64
        Their row numbers in the training data; -1 for rows that are none of it.
    width_ : float
        Sigma of the kernel.
    weights_ : ndarray (K, r), float64
    classes_ : ndarray (K,)
    confidence_ : ndarray (n,), float64
        Soft-kNN confidence of every training row, NaN for those of weight 0; only with a "sknn"
        basis.
    params_ : FitParams
        The parameters of the fit.
    fitting_error_ : float
        eps of the training rows; 1 is a perfect fit.
    spectral_risk_ : float
        gamma; large where the fit uses the minor directions of the features.
    n_features_in_ : int
    feature_names_in_ : ndarray (p,)
        Only when X had column names that are all strings.

    Notes
    -----
    hu-nrbfn (see `dask_nrbfn.numeric`), Algorithms 1 to 3. Arrays in memory are
    fitted in this process; Zarr arrays, dask collections and datasets on the active
    `distributed.Client`, or without one in this process, chunk by chunk.

    A model that was loaded has no ``confidence_`` and ``basis_indices_``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> network = NRBFNClassifier(scale="standard").fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.95)
    True
    """

    _own_run: "_OwnRun | None"
    _fitted_run: Location | None
    basis_indices_: NDArray[np.int64]
    confidence_: NDArray[np.float64]

    def __init__(
        self,
        n_neighbors: int = 20,
        confidence_threshold: float = 0.9,
        alpha: float = 1e-13,
        *,
        basis: str | ArrayLike = "sknn",
        basis_size: int | None = None,
        basis_rule: str = "least-confident",
        features: str = "normalized",
        kernel: str = "gaussian",
        width_factor: float = 1.0,
        class_weight: Mapping[Any, float] | str | None = None,
        neighbors: str = "auto",
        n_partitions: int | None = None,
        overlap: int = 2,
        min_recall: float = FitLimits.min_recall,
        scale: str = "none",
        n_parts: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
        store: str | os.PathLike[str] | RemoteLocation | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.confidence_threshold = confidence_threshold
        self.alpha = alpha
        self.basis = basis
        self.basis_size = basis_size
        self.basis_rule = basis_rule
        self.features = features
        self.kernel = kernel
        self.width_factor = width_factor
        self.class_weight = class_weight
        self.neighbors = neighbors
        self.n_partitions = n_partitions
        self.overlap = overlap
        self.min_recall = min_recall
        self.scale = scale
        self.n_parts = n_parts
        self.random_state = random_state
        self.store = store

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on rows and labels.

        Parameters
        ----------
        X : array-like, zarr.Array or dask array (n, p), dask dataframe, or Dataset
        y : array-like, zarr.Array, dask array or series (n,)
            None for a `Dataset`, which has its labels.
        sample_weight : array-like, zarr.Array, dask array or series (n,), optional
            A row of weight w counts in the width and in the ridge system as w equal rows; in the
            search of neighbours it is one. Rows of weight 0 are left out; only where X is in
            memory may there be any. None for a `Dataset`, which has its weights.

        Raises
        ------
        ParameterError, DataError
            If a parameter or the data cannot be used. Both are `ValueError`.
        MemoryBudgetError
            If the basis does not fit the memory.
        """
        if isinstance(X, Dataset):
            _check_nothing_beside(y, sample_weight)
            self._fit_dataset(X)
        elif _is_lazy(X):
            self._fit_lazy(X, y, sample_weight)
        else:
            self._fit_arrays(X, y, sample_weight)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: ArrayLike | None = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train on a first batch of rows, or let further rows join those that were fitted before.

        The first batch decides on parameters, basis and width, and is best a draw of all rows. The
        network is then the same as if the rows of all batches had been fitted at once with this
        basis and width; ``class_weight="balanced"`` keeps the weights that the first batch gave.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`. The first batch has rows of all classes. What follows arrays in memory is
            in memory too.
        classes : array-like (K,), optional
            All classes there are. Only looked at with the first batch, which must have them.

        Raises
        ------
        ParameterError
            If the first rows were a dataset or dask array and there is no `store`, without which
            their sums are not kept; if other rows follow arrays in memory.
        AlreadyAddedError
            In a store, if a batch of exactly these rows was added before. In memory they count
            once more, as scikit-learn has it.
        RunMismatchError
            If a copy of this network added rows to the same run in `store`.
        DataError
            If a label is none of `classes_`.

        Notes
        -----
        Networks that began with arrays in memory keep the sums over rows, ``4 r (r + 1)`` bytes,
        and a second copy of the model; those of others are kept in `store`. `save` leaves the sums
        out.
        """
        if hasattr(self, "classes_"):
            self._update(X, y, sample_weight, forget=False)
            return self
        if self.store is None and (isinstance(X, Dataset) or _is_lazy(X)):
            raise ParameterError("the sums of the rows have no place.", "Give `store`.")
        self.fit(X, y, sample_weight)
        missing = [] if classes is None else np.setdiff1d(classes, self.classes_).tolist()
        if missing:
            for name in [name for name in vars(self) if name.endswith("_")]:
                delattr(self, name)
            raise DataError(
                f"the first batch has no row of the class {missing[0]!r}.",
                "Begin with a batch that has rows of every class.",
            )
        return self

    def forget(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Take away rows that were fitted or added.

        Basis rows among them stay in ``basis_``.

        Parameters
        ----------
        X, y, sample_weight
            As they were given before.

        Raises
        ------
        ParameterError
            As for `partial_fit`.
        DataError
            If the rows cannot all have been fitted or added, or none would be left.
        """
        check_is_fitted(self)
        self._update(X, y, sample_weight, forget=True)
        return self

    def predict(self, X: Any) -> Any:
        """Return the label of every row, (n,); lazily for a dask array."""
        check_is_fitted(self)
        if _is_dask(X):
            return self._map_dask(X, "labels")
        return self.classes_[self._scores(X).argmax(axis=1)]

    def decision_function(self, X: Any) -> Any:
        """Return the scores, (n, K); with two classes (n,), positive for the second.

        A row's scores sum to 1 up to the penalty. Lazily for a dask array.
        """
        check_is_fitted(self)
        if _is_dask(X):
            return self._map_dask(X, "decisions")
        return _decisions(self._scores(X))

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities, (n, K); lazily for a dask array.

        Scores clipped to [0, 1] and normalized; of a tuned network the softmax of the scores at the
        temperature that fits held-out rows best.
        """
        check_is_fitted(self)
        if _is_dask(X):
            return self._map_dask(X, "probabilities")
        return self._model.probabilities(self._scores(X))

    def save(self, location: Location, *, overwrite: bool = False) -> None:
        """Write the model as a Zarr group at `location`, where nothing may be.

        With `overwrite` it replaces an old model there when it is complete.
        """
        check_is_fitted(self)
        self._model.save(location, overwrite=overwrite)

    @staticmethod
    def load(location: Location) -> "NRBFNClassifier":
        """Return the network of a saved model or a finished run; runs no code from the file."""
        model = Model.load(location)
        params = model.params.to_dict()
        if model.params.basis_is_given:
            params["basis"] = model.scaling.restore(model.basis)
        network = NRBFNClassifier(**params)
        network._take_model(model)
        return network

    def _values(self) -> dict[str, Any]:
        """Return the parameters that are those of a fit."""
        own = self.get_params()
        return {name: own[name] for name in FitParams.options() if name in own}

    def _params(self) -> FitParams:
        values = self._values()
        if isinstance(self.class_weight, Mapping):
            del values["class_weight"]
        given = None if isinstance(self.basis, str) else values.pop("basis")
        if not isinstance(self.random_state, int | np.integer):
            values["random_state"] = check_random_state(self.random_state).randint(2**31)
        params = FitParams(**values)
        return params if given is None else given_basis(params, given)

    def _settings(self) -> Settings:
        """Return what is fitted, taken once: a generator or a random state gives other values."""
        return Settings(self._params())

    def _fit_arrays(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        rows, labels = training_rows(self, X, y)
        table = self._weighted(rows, labels, sample_weight)
        classes, codes, _ = distinct_labels(table.labels)
        check_classes(classes)
        dataset = ingest_arrays(table.rows, codes, MemoryStore(), weights=table.weights)
        run = self._train(dataset, MemoryStore(), InlineEngine(), self._settings())
        names = getattr(self, "feature_names_in_", None)
        self._take_run(run, classes, None if names is None else tuple(names))
        if table.numbers is not None:
            self._number_rows(table.numbers, len(rows))
        for stage in _NOT_FOR_UPDATES:
            run.drop(stage)
        self._own_run, self._fitted_run = _OwnRun(run.location, 0), None

    def _weighted(
        self, rows: NDArray[Any], labels: NDArray[Any], sample_weight: ArrayLike | None
    ) -> "_Table":
        """Return the rows whose weight is not 0."""
        weights = self._row_weights(rows, labels, sample_weight)
        if weights is None or weights.all():
            return _Table(rows, labels, weights, None)
        kept = np.flatnonzero(weights)
        return _Table(rows[kept], labels[kept], weights[kept], kept)

    def _update(self, X: Any, y: Any, sample_weight: Any, *, forget: bool) -> None:
        location, version = own = self._updatable_run()
        if len(versions_of(Run.open(location).attributes)) != version:
            raise RunMismatchError(
                f"a copy of this network has changed {location} since.", "Fit it again."
            )
        with self._batch(X, y, sample_weight, location) as dataset:
            if isinstance(location, MemoryStore):
                update_run(location, dataset, InlineEngine(), forget=forget, again=True)
                # Nobody else reads it.
                for place in ("moments", version_name(version)):
                    Run.open(location).drop(place)
            else:
                with _active_engine(dataset) as engine:
                    update_run(location, dataset, engine, forget=forget)
        self._own_run = own._replace(version=version + 1)
        names = getattr(self, "feature_names_in_", None)
        model = Model.load(location)
        names = None if names is None else tuple(names)
        self._take_model(replace(model, classes=self.classes_, feature_names=names))

    def _updatable_run(self) -> "_OwnRun":
        """Return a run that belongs to this network alone; made at the first update in a store."""
        if (own := getattr(self, "_own_run", None)) is not None:
            return own
        if (fitted := getattr(self, "_fitted_run", None)) is None or self.store is None:
            raise ParameterError("the sums over the rows were not kept.", "Fit with a `store`.")
        location = join(self.store, f"updated-{uuid.uuid4().hex}")
        branch_run(fitted, location)
        merge_version(location, fitted, InlineEngine(), of_fit=True)
        self._own_run = _OwnRun(location, 1)
        return self._own_run

    @contextmanager
    def _batch(self, X: Any, y: Any, sample_weight: Any, location: Location) -> Iterator[Dataset]:
        """Give rows as a dataset for the run at `location`."""
        lazy = isinstance(X, Dataset) or _is_lazy(X)
        if lazy and isinstance(location, MemoryStore):
            raise ParameterError(
                f"the first rows were in memory, these are a {type(X).__name__}.",
                "Give arrays in memory, or begin with a Dataset or dask array and a store.",
            )
        if lazy:
            self._check_class_weight()
        if isinstance(X, Dataset):
            _check_nothing_beside(y, sample_weight)
            yield X
        elif lazy:
            weights = None if sample_weight is None else _to_dask(sample_weight)
            with self._workplace() as directory:
                place = join(directory, f"batch-{uuid.uuid4().hex}")
                try:
                    yield ingest_dask(_to_dask(X), _to_dask(y), place, weights=weights)
                finally:
                    remove_group(place)
        else:
            rows, labels = training_rows(self, X, y, reset=False)
            table = self._weighted(rows, labels, sample_weight)
            # A run may have stored the classes as something else, such as their codes.
            labels = Model.load(location).classes[self._codes(table.labels)]
            yield ingest_arrays(table.rows, labels, MemoryStore(), weights=table.weights)

    def _codes(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Return the place of each label in `classes_`."""
        unknown = sorted(set(labels.tolist()) - set(self.classes_.tolist()))
        if unknown:
            raise DataError(
                f"label {unknown[0]!r} is none of the classes of the first rows.",
                "Fit anew with rows of all classes.",
            )
        return np.searchsorted(self.classes_, labels)

    def _number_rows(self, kept: NDArray[np.int64], n_rows: int) -> None:
        """Let attributes with a row for every row count those of weight 0 too."""
        known = self.basis_indices_ >= 0
        self.basis_indices_ = np.where(known, kept[self.basis_indices_], -1)
        if hasattr(self, "confidence_"):
            confidence = np.full(n_rows, np.nan)
            confidence[kept] = self.confidence_
            self.confidence_ = confidence

    def _train(
        self, dataset: Dataset, location: Location, engine: Engine, settings: Settings
    ) -> Run:
        params, tuning = settings
        basis = None if isinstance(self.basis, str) else self.basis
        if tuning is None:
            return fit_dataset(
                dataset, location, params, engine, basis=basis, min_recall=self.min_recall
            )
        return tune_dataset(
            dataset, location, params, tuning, engine, basis=basis, min_recall=self.min_recall
        )

    def _row_weights(
        self, rows: NDArray[Any], labels: NDArray[Any], sample_weight: ArrayLike | None
    ) -> NDArray[np.float64] | None:
        """Return the weights of rows and of classes given by name; None if all are 1."""
        by_name = isinstance(self.class_weight, Mapping)
        if sample_weight is None and not by_name:
            return None
        weights: NDArray[np.float64] = _check_sample_weight(
            sample_weight, rows, dtype=np.float64, ensure_non_negative=True
        )
        if by_name:
            weights = weights * compute_sample_weight(self.class_weight, labels)
        return weights

    def _fit_lazy(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._check_class_weight()
        with self._workplace() as place:
            rows, labels = _to_dask(X), _to_dask(y)
            dataset = ingest_dask(
                rows,
                labels,
                join(place, "dataset"),
                weights=None if sample_weight is None else _to_dask(sample_weight),
                overwrite=True,
            )
            # Stored as int64, bool and whole floats come back as what they were.
            dtype = plain_dtype(labels.dtype)
            given = dtype if dtype.kind in "bf" else dataset.classes.dtype
            self._fit_in(place, dataset, dataset.classes.astype(given))

    def _fit_dataset(self, dataset: Dataset) -> None:
        self._check_class_weight()
        if isinstance(normalize(dataset.location), MemoryStore):
            self._fit_in(None, dataset, dataset.classes)
            return
        with self._workplace() as place:
            self._fit_in(place, dataset, dataset.classes)

    def _check_class_weight(self) -> None:
        if isinstance(self.class_weight, Mapping):
            raise ParameterError(
                "`class_weight` by class is for arrays in memory.",
                'Give sample_weight, or class_weight="balanced".',
            )

    def _fit_in(self, place: Location | None, dataset: Dataset, classes: NDArray[Any]) -> None:
        """Fit under a directory or URL; None: in this process's memory."""
        settings = self._settings()
        location = MemoryStore() if place is None else _run_location(place, dataset, settings)
        with _active_engine(dataset) as engine:
            run = self._train(dataset, location, engine, settings)
        self._take_run(run, classes, dataset.feature_names)
        self._own_run = _OwnRun(location, 0) if place is None else None
        self._fitted_run = None if self.store is None else location

    @contextmanager
    def _workplace(self) -> Iterator[Location]:
        if self.store is not None:
            yield normalize(self.store)
            return
        with tempfile.TemporaryDirectory(prefix="dask-nrbfn-") as directory:
            yield directory

    def _take_run(self, run: Run, classes: NDArray[Any], names: tuple[str, ...] | None) -> None:
        model = read_model(run, "")
        self._take_model(replace(model, classes=classes, feature_names=names))
        if "confidence" in run.stages:
            self.confidence_ = run.read("confidence/values")
        elif hasattr(self, "confidence_"):
            del self.confidence_
        self.basis_indices_ = run.read("basis/rows")

    def _take_model(self, model: Model) -> None:
        self._model = model
        self.params_ = model.params
        self.basis_ = model.basis
        self.width_ = model.width
        self.weights_ = model.weights
        self.classes_ = model.classes
        self.fitting_error_ = model.fitting_error
        self.spectral_risk_ = model.spectral_risk
        self.n_features_in_ = model.n_features
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _scores(self, X: Any) -> NDArray[np.float64]:
        if isinstance(X, Dataset):
            check_same_columns(self._model, X)
            X = X.X
        if not isinstance(X, zarr.Array):
            X = plain_array(self, X)
        self._model.check_columns(X.shape[1])
        return _scores_in_blocks(self._model, X, threads=blas_threads())

    def _map_dask(self, X: Any, wanted: str) -> da.Array:
        rows = dask_rows(X)
        self._model.check_columns(rows.shape[1])
        if hasattr(X, "columns"):
            self._model.check_names(tuple(map(str, X.columns)))
        rows = rows.rechunk({1: -1})
        columns = len(self.classes_)
        flat = wanted == "labels" or (wanted == "decisions" and columns == 2)
        dtype = self.classes_.dtype if wanted == "labels" else np.dtype(np.float64)
        return rows.map_blocks(
            _predict_block,
            self._published_model(),
            wanted,
            dtype,
            meta=np.empty((0,) if flat else (0, columns), dtype=dtype),
            drop_axis=1 if flat else None,
            chunks=(rows.chunks[0],) if flat else (rows.chunks[0], (columns,)),
        )

    def _published_model(self) -> str | RemoteLocation:
        """Write the model where workers can open it, so that it is not part of any graph.

        Without a store it stays until this process ends, and with it the lazy predictions.
        """
        place = _process_directory() if self.store is None else self.store
        location = join(place, f"model-{self._model.digest()}")
        if not exists(location):
            # Another process may write the same one at the same time.
            with suppress(ExistsError):
                self._model.save(location)
        return location


def _check_nothing_beside(y: Any, sample_weight: Any) -> None:
    if y is not None or sample_weight is not None:
        raise ParameterError(
            "y or `sample_weight` is given beside a Dataset.", "A Dataset has its own."
        )


def _run_location(place: Location, dataset: Dataset, settings: Settings) -> str | RemoteLocation:
    """Return where the run of these rows and parameters is, and no other."""
    given = [None if values is None else values.to_dict() for values in settings]
    identity = json.dumps([dataset.fingerprint, *given])
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    return join(place, f"run-{digest}")


def _is_dask(X: Any) -> bool:
    return isinstance(X, da.Array) or hasattr(X, "to_dask_array")


def _is_lazy(X: Any) -> bool:
    return isinstance(X, zarr.Array) or _is_dask(X)


def _to_dask(values: Any) -> Any:
    if isinstance(values, zarr.Array):
        return da.from_zarr(values)
    if values is None:
        raise DataError("y is missing.", "Give one label per row of X.")
    return values if _is_dask(values) else da.from_array(np.asarray(values), chunks=-1)


@contextmanager
def _active_engine(dataset: Dataset) -> Iterator[Engine]:
    try:
        client = default_client()
    except ValueError:
        client = None
    if client is None or isinstance(dataset.location, MemoryStore):
        yield InlineEngine()
        return
    with connect(client=client) as engine:
        yield engine


def _decisions(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


@cache
def _process_directory() -> str:
    directory = tempfile.mkdtemp(prefix="dask-nrbfn-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _scores_in_blocks(
    model: Model, X: Any, *, threads: int, first_row: int = 0, within: str = ""
) -> NDArray[np.float64]:
    step = block_rows(len(model.basis))
    scores = np.empty((X.shape[0], len(model.classes)))
    buffer = np.empty((min(step, len(scores)), len(model.basis)))
    for start in range(0, len(scores), step):
        rows = np.asarray(X[start : start + step])
        check_finite(rows, first_row=first_row + start, within=within)
        scores[start : start + step] = model.scores(
            rows, buffer=buffer[: len(rows)], threads=threads
        )
    return scores


# The location names the content, so a cached model cannot be out of date.
@lru_cache(maxsize=1)
def _open_model(location: str | RemoteLocation) -> Model:
    return Model.load(location)


def _predict_block(
    X: NDArray[Any],
    location: str | RemoteLocation,
    wanted: str,
    dtype: np.dtype[Any],
    block_info: Mapping[int, Mapping[str, Any]],
) -> NDArray[Any]:
    model = _open_model(location)
    first_row, within = block_info[0]["array-location"][0][0], ""
    if np.isnan(first_row):
        # To know how many rows are before it, all blocks before it would have to be computed.
        first_row, within = 0, f" of block {block_info[0]['chunk-location'][0]}"
    # Other blocks keep the other cores busy.
    scores = _scores_in_blocks(model, X, threads=1, first_row=int(first_row), within=within)
    if wanted == "labels":
        # A stored model has fewer types of labels than an estimator may be given.
        return model.classes.astype(dtype)[scores.argmax(axis=1)]
    return _decisions(scores) if wanted == "decisions" else model.probabilities(scores)
