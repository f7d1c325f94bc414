"""The classifier, and what networks have in common whose targets are labels."""

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.estimators.inputs import Table, is_chunked, is_dask
from dask_nrbfn.estimators.network import Network, PlainNetwork
from dask_nrbfn.estimators.rows import training_rows
from dask_nrbfn.estimators.scores import accuracy
from dask_nrbfn.numeric.hashing import distinct_labels
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.params import FitLimits
from dask_nrbfn.sources.dtypes import means_empty
from dask_nrbfn.sources.frames import plain_dtype
from dask_nrbfn.stages.columns import check_classes, check_targets
from dask_nrbfn.storage.chunks import Mark, are_labelled
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import RemoteLocation
from dask_nrbfn.storage.model import Model


class ClassNetwork(ClassifierMixin, Network):  # type: ignore[misc]
    """Network whose targets are labels."""

    class_weight: Mapping[Any, float] | str | None

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
            As for `fit`. What follows arrays in memory is in memory too.
        classes : array-like (K,), optional
            All classes there are, by default those of the first batch. Only looked at with that
            one. A class without rows has the score 0 until a batch has some; a first batch that
            is no array in memory has rows of all classes.

        Raises
        ------
        ParameterError
            If the first rows were a dataset or dask array and there is no `store`, without which
            their sums are not kept; if other rows follow arrays in memory; if the loss is not the
            squared one.
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
            classes = None
        self._fit_or_add(X, y, sample_weight, classes)
        missing = [] if classes is None else np.setdiff1d(classes, self.classes_).tolist()
        if missing:
            for name in [name for name in vars(self) if name.endswith("_")]:
                delattr(self, name)
            raise DataError(
                f"the first batch has no row of the class {missing[0]!r}.",
                "Begin with a batch that has rows of every class.",
            )
        return self

    def predict(self, X: Any, *, feature_dim: str | None = None) -> Any:
        """Return the label of every row, (n,); lazily for a dask array.

        With `feature_dim` X is a DataArray: its pixels are rows, whose features lie along it and
        are found by its coordinates. A Dataset has the variables that were fitted. The
        result has the other dimensions, lazily where X is a dask array. Pixels that lack a feature
        have NaN; so whole numbers become float64, text objects.
        """
        labels = self._predict(X, "labels", feature_dim, name="label")
        return self._shown(labels, X, ["label"])

    def decision_function(self, X: Any, *, feature_dim: str | None = None) -> Any:
        """Return the scores, (n, K); with two classes (n,), positive for the second.

        A row's scores sum to 1 up to the penalty; with another loss than the squared one each is
        positive or negative by itself, with the logistic one log odds unless few passes were better
        on held-out rows. Lazily for a dask array. With `feature_dim` as `predict`; what has K of
        them has a dimension "class" where X has its features.
        """
        scores = self._predict(X, "decisions", feature_dim, name="score")
        return self._shown(scores, X, [f"score_{label}" for label in self.classes_])

    def predict_proba(self, X: Any, *, feature_dim: str | None = None) -> Any:
        """Return class probabilities, (n, K); lazily for a dask array.

        Scores clipped to [0, 1] and normalized; with the logistic loss ``1 / (1 + e^-score)``, with
        the hinge losses ``(1 + score) / 2`` clipped, normalized. Of a tuned network, whatever its
        loss, the softmax of the scores at the temperature that fits held-out rows best. The largest
        is always that of the label. With `feature_dim` as `decision_function`.
        """
        shares = self._predict(X, "probabilities", feature_dim, name="probability")
        return self._shown(shares, X, [f"probability_{label}" for label in self.classes_])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose label is predicted; of dask collections by blocks."""
        if is_dask(X):
            return accuracy(self.predict(X), y, sample_weight)
        return float(super().score(X, y, sample_weight))

    def _values(self) -> dict[str, Any]:
        values = super()._values()
        if isinstance(self.class_weight, Mapping):
            del values["class_weight"]
        return values

    def _table(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, classes: Any = None
    ) -> Table:
        table = self._labelled(X, y, sample_weight, schema, reset=True)
        labelled = self._are_labelled(table.targets)
        present, own, _ = distinct_labels(table.targets[labelled])
        classes = present if classes is None else np.unique(classes)
        check_classes(classes)
        codes = np.full(len(labelled), -1)
        codes[labelled] = self._places(classes, present)[own]
        mark = None if self.unlabelled is None else -1
        return table._replace(targets=codes, classes=classes, unlabelled=mark)

    def _further_table(self, X: Any, y: Any, sample_weight: Any, stored: Model) -> Table:
        table = self._labelled(X, y, sample_weight, self.schema_, reset=False)
        table = table.of_labelled(self._are_labelled(table.targets))
        # A run may have stored the classes as something else, such as their codes.
        codes = self._places(self.classes_, table.targets)
        return table._replace(targets=stored.classes[codes])

    def _places(self, classes: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places of labels among classes, which are sorted."""
        unknown = sorted(set(labels.tolist()) - set(classes.tolist()))
        if unknown:
            raise DataError(
                f"label {unknown[0]!r} is none of the classes of the first rows.",
                "Fit anew with rows of all classes, or name them as `classes` with the first rows.",
            )
        return np.searchsorted(classes, labels)

    def _labelled(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, *, reset: bool
    ) -> Table:
        """Return rows and labels with the weights of rows and of classes given by name."""
        rows, labels = training_rows(self, X, y, schema, unlabelled=self.unlabelled, reset=reset)
        by_class = None
        if isinstance(self.class_weight, Mapping):
            by_class = compute_sample_weight(self.class_weight, labels)
        return Table.of(rows, labels, sample_weight, by_class)

    def _are_labelled(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of the labels that `training_rows` gives are none of those missing."""
        if not means_empty(self.unlabelled):
            return are_labelled(labels, self.unlabelled)
        return (
            are_labelled(labels, str(self.unlabelled))
            if labels.dtype.kind in "OU"
            else ~np.isnan(labels)
        )

    def _chunked_dataset(self, *arguments: Any, **options: Any) -> Dataset:
        if isinstance(self.class_weight, Mapping):
            raise ParameterError(
                "`class_weight` by class is for arrays in memory.",
                'Give sample_weight, or class_weight="balanced".',
            )
        return super()._chunked_dataset(*arguments, **options)

    def _classes_of(self, dataset: Dataset, y: Any) -> NDArray[Any]:
        check_targets(dataset, None)
        # Stored as int64, bool and whole floats come back as what they were.
        dtype = plain_dtype((y if is_chunked(y) else np.asarray(y)).dtype)
        return dataset.classes.astype(dtype) if dtype.kind in "bf" else dataset.classes

    def _take_model(self, model: Model) -> None:
        if model.embeds:
            raise DataError("the model is one of coordinates.", "Load it with DiffusionMap.")
        if model.target_names is not None:
            raise DataError("the model is one of numbers.", "Load it with NRBFNRegressor.")
        super()._take_model(model)
        self.classes_ = model.classes


class NRBFNClassifier(ClassNetwork, PlainNetwork):
    """Normalized radial basis function network on a soft-kNN basis.

    Parameters
    ----------
    n_neighbors : int, default=None
        Neighbours from which a row's confidence in its own label, or its locality, is computed;
        less than the number of rows. None: 20, or all other rows where there are fewer.
    confidence_threshold : float, default=0.9
        Rows with a confidence below it form the basis.
    alpha : float, default=1e-13
        Ridge penalty, relative to the trace of the gram matrix.
    penalty : {"weights", "kernel", "clusters"}, default="weights"
        What the ridge keeps small: the squared norm of the weights; the norm in the kernel's own
        space, with plain features; or the squares of the weights over the shares of the rows in
        each cluster, with plain features of a "kmeans" basis.
    locality : float, default=0.0
        Penalty of differences between the scores of neighbours that are nearer than any row of
        another class, relative to the trace of the gram matrix. 0: none.
    loss : {"squared", "squared-hinge", "logistic", "hinge"}, default="squared"
        What the network keeps small beside the penalty: the distance from the class indicators, or
        a loss of each class against the others, in up to 10 more passes over the rows. A network
        with one of these takes no further rows.
    prune : int, default=None
        Keep only so many of the basis rows, those that explain most; with plain features.
    components : int, default=None
        Combine only so many eigenfunctions of the basis, the smoothest ones; with normalized
        features. None: the weights may be any.
    basis : {"sknn", "random", "kmeans"} or array-like (r, p), default="sknn"
        Rows of low confidence, drawn rows, cluster centres, or these rows.
    basis_size : int, default=None
        Number of basis rows. None: with "sknn" all rows below the threshold, at most 10,000 and as
        many as fit the memory; with "random" and "kmeans" a quarter of the rows, at most 1,000.
    basis_rule : {"least-confident", "uniform"}, default="least-confident"
        Which rows of low confidence form a basis of a given size: the least confident, or a draw
        among the rows below the threshold.
    candidates : int, "auto" or "all", default="auto"
        Drawn rows among which those of low confidence are looked for. "auto": with a basis size 20
        for each basis row and at least 50,000, up to half of the rows; else all.
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
    svd : int, default=None
        Replace every row by so many coordinates of a truncated SVD, which all else then acts on.
        None: the rows as they are.
    scale : {"auto", "none", "standard", "unit", "learned"}, default="auto"
        Columns to mean 0 and variance 1, on top of that each by the square root of a weight that is
        learned on a sample, or rows to unit length.
    metric_rounds : int, default=5
        Rounds in which the weights of columns are learned, at most.
    n_parts : int, default=None
        Parts that each pass over the rows is cut into.
    random_state : int, RandomState instance or None, default=0
        Seeds the approximate search and the choice among equally confident rows.
    unlabelled : int, float or str, default=None
        The label in y of rows that have none; with NaN or "" also missing ones. They are candidates
        for a "random" or "kmeans" basis and count in scale and width; everything else is learned
        from the other rows. None: every row has a label.
    missing : {"error", "impute"}, default="error"
        What becomes of rows without a value in a column: refused, or filled with its median, a
        category with one of its own; where more than 1 % lack one a feature says which do.
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
        Soft-kNN confidence of every training row, NaN for those of weight 0 or without a label and
        for those that are no candidates; only with a "sknn" basis.
    feature_weights_, feature_importances_ : ndarray (p,), float64
        Only with a "learned" scale: the weights of the features, and the same of sum 1.
    params_ : FitParams
        The parameters of the fit.
    fitting_error_ : float
        eps of the training rows; 1 is a perfect fit. With another loss than the squared one this
        and the next are of the network from which it began.
    spectral_risk_ : float
        gamma; large where the fit uses the minor directions of the features.
    n_features_in_ : int
        Columns of X that are used.
    feature_names_in_ : ndarray (n_features_in_,)
        Their names, only when all are strings.
    schema_ : Schema or None
        What the columns of a frame are, which features are made of them, and what fills gaps;
        None: the columns are the features.
    feature_names_ : ndarray (p,)
        Names of the features, only when the columns have some.

    Notes
    -----
    hu-nrbfn (see `dask_nrbfn.numeric`), Algorithms 1 to 3. Arrays in memory are
    fitted in this process; Zarr arrays, dask collections and datasets on the active
    `distributed.Client`, or without one in this process, chunk by chunk.

    A frame of pandas, polars, Arrow or another library, or of dask, may have columns of text,
    categories, booleans and dates; `ingest` makes the same of such a table. Frames to predict have
    these columns by name, in any order, others are left out; of numbers alone they have those of
    the fit, as scikit-learn wants it. A category that no row of the fit had is none of them.

    A model that was loaded has no ``confidence_`` and ``basis_indices_``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> network = NRBFNClassifier(scale="standard").fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.95)
    True
    """

    def __init__(
        self,
        n_neighbors: int | None = None,
        confidence_threshold: float = 0.9,
        alpha: float = 1e-13,
        *,
        penalty: str = "weights",
        locality: float = 0.0,
        loss: str = "squared",
        prune: int | None = None,
        components: int | None = None,
        basis: str | ArrayLike = "sknn",
        basis_size: int | None = None,
        basis_rule: str = "least-confident",
        candidates: int | str = "auto",
        features: str = "normalized",
        kernel: str = "gaussian",
        width_factor: float = 1.0,
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
        self.alpha = alpha
        self.penalty = penalty
        self.locality = locality
        self.loss = loss
        self.prune = prune
        self.components = components
        self.basis = basis
        self.basis_size = basis_size
        self.basis_rule = basis_rule
        self.candidates = candidates
        self.features = features
        self.kernel = kernel
        self.width_factor = width_factor
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
