"""The classifier, and the base of all networks whose targets are labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.estimators.inputs import TrainingRows, compute_all, is_chunked, training_rows
from dask_nrbfn.estimators.network import LearningNetwork, PlainNetwork, documented
from dask_nrbfn.numeric.hashing import distinct_labels
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitLimits
from dask_nrbfn.sources.dtypes import means_empty
from dask_nrbfn.sources.frames import label_column, labels_of, plain_dtype
from dask_nrbfn.sources.source import shown_names
from dask_nrbfn.stages.columns import check_classes, check_targets
from dask_nrbfn.storage.chunks import are_labelled
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.model import Model


@dataclass(kw_only=True, eq=False, repr=False)
class ClassNetwork(ClassifierMixin, LearningNetwork):  # type: ignore[misc]
    """Network whose targets are labels."""

    _predicts = "classes"

    confidence_threshold: float | None = None
    candidates: int | str = "auto"
    class_weight: Mapping[Any, float] | str | None = None
    neighbors: str = "auto"
    n_partitions: int | None = None
    overlap: int = 2
    min_recall: float = FitLimits.min_recall

    def partial_fit(
        self, X: Any, y: Any = None, classes: ArrayLike | None = None, sample_weight: Any = None
    ) -> Self:
        """Fit to a first batch of rows, or add further rows to those that were fitted before.

        The first batch decides the parameters, the basis and the width, so it is best a random
        draw of all rows. The network then equals one that was fitted to the rows of all batches at
        once with this basis and width; ``class_weight="balanced"`` keeps the weights of the first
        batch.

        Parameters
        ----------
        X, y, sample_weight
            See `fit`. If the first batch was in memory, all batches must be.
        classes : array-like (K,), optional
            All possible classes; by default those of the first batch. Ignored after the first
            batch. A class without rows has the score 0 until a batch has some. A first batch that
            is not in memory must have rows of all classes.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If the first batch was a dataset or dask array and there is no `store` to keep its sums
            in; if a batch that is not in memory follows one in memory; if the loss is not the
            squared loss.
        AlreadyAddedError
            With a store, if a batch of exactly these rows was added before. In memory the rows
            count once more, as in scikit-learn.
        RunMismatchError
            If a copy of this network added rows to the same run in `store`.
        DataError
            If a label is not in `classes_`.

        Notes
        -----
        After arrays in memory the network keeps the sums over rows, ``4 r (r + 1)`` bytes, and a
        second copy of the model; otherwise both are in `store`. `save` does not write the sums.
        """
        if hasattr(self, "classes_"):
            classes = None
        self._fit_or_add(X, y, sample_weight, classes)
        if classes is None:
            return self
        missing = np.setdiff1d(classes, self.classes_).tolist()
        if missing:
            for name in list(vars(self)):
                if name.endswith("_"):
                    delattr(self, name)
            raise DataError(
                f"the first batch has no row of the class {missing[0]!r}.",
                "Begin with a batch that has rows of every class.",
            )
        return self

    def predict(self, X: Any) -> Any:
        """Return the label of every row, (n,).

        Parameters
        ----------
        X : as for `fit`
            The result is lazy for a dask collection.
        """
        labels = self._predict(X, "labels")
        return self._as_output(labels, X, ["label"])

    def decision_function(self, X: Any) -> Any:
        """Return the scores, (n, K); with two classes (n,), positive for the second.

        With the squared loss the scores of a row sum to 1, up to the penalty. With another loss
        each score is positive or negative by itself; with the logistic loss it is a log odds,
        unless few passes were better on held-out rows.

        Parameters
        ----------
        X : as for `fit`
        """
        scores = self._predict(X, "decisions")
        return self._as_output(scores, X, [f"score_{label}" for label in self.classes_])

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities, (n, K).

        Scores are clipped to [0, 1] and normalized. With the logistic loss they become
        ``1 / (1 + e^-score)`` first, with the hinge losses ``(1 + score) / 2``. A network that was
        tuned or chose alpha returns the softmax of the scores with a temperature, and with a bias
        of each class, that fit held-out rows best, see `dask_nrbfn.numeric.calibration`. The
        largest probability always belongs to the predicted label: where a bias makes another class
        more probable, both get the same probability. With ``class_weight="balanced"`` the
        probabilities are those of rows that have equally many of each class.

        Parameters
        ----------
        X : as for `fit`
        """
        shares = self._predict(X, "probabilities")
        return self._as_output(shares, X, [f"probability_{label}" for label in self.classes_])

    def predict_set(self, X: Any, *, coverage: float = 0.9) -> Any:
        """Return sets of labels that contain the class of new rows with a probability.

        Adaptive sets without random parts (Romano, Sesia & Candès, "Classification with valid and
        adaptive coverage", 2020). The predicted label is always in the set, so sets of classes that
        are easy to tell apart contain the class more often than asked. The probability is that of
        rows drawn like the training rows.

        Parameters
        ----------
        X : as for `fit`
            The result is lazy for a dask collection.
        coverage : float, default=0.9
            The probability.

        Returns
        -------
        bool ndarray (n, K)
            Whether each of `classes_` is in the set.

        Raises
        ------
        ParameterError
            If the fit held out no rows, or too few for the coverage.
        """
        sets = self._predict(X, f"sets@{coverage}", coverages=[coverage])
        return self._as_output(sets, X, [str(label) for label in self.classes_])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy: the share of rows whose label is predicted.

        Parameters
        ----------
        X, y, sample_weight
            See `fit`. Predictions, labels and weights of dask collections are computed; use
            `evaluate_dataset` if they do not fit into memory.
        """
        predicted, y, weights = compute_all(self.predict(X), y, sample_weight)
        return float(accuracy_score(labels_of(y).values, predicted, sample_weight=weights))

    def _values(self) -> dict[str, Any]:
        values = super()._values()
        if isinstance(self.class_weight, Mapping):
            del values["class_weight"]
        return values

    def _training_rows(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, classes: Any = None
    ) -> TrainingRows:
        rows = self._labelled_rows(X, y, sample_weight, schema, reset=True)
        labelled = self._are_labelled(rows.targets)
        present, places, _ = distinct_labels(rows.targets[labelled])
        classes = present if classes is None else np.unique(classes)
        check_classes(classes)
        codes = np.full(len(labelled), -1)
        codes[labelled] = self._class_codes(classes, present)[places]
        mark = None if self.unlabelled is None else -1
        return rows._replace(targets=codes, classes=classes, unlabelled=mark)

    def _further_rows(self, X: Any, y: Any, sample_weight: Any, stored: Model) -> TrainingRows:
        rows = self._labelled_rows(X, y, sample_weight, self.schema_, reset=False)
        rows = rows.labelled_only(self._are_labelled(rows.targets))
        # A run may have stored the classes in another form, such as their codes.
        codes = self._class_codes(self.classes_, rows.targets)
        return rows._replace(targets=stored.classes[codes])

    def _class_codes(self, classes: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
        """Return the codes of labels in sorted classes; raise DataError if one is unknown."""
        unknown = sorted(set(labels.tolist()) - set(classes.tolist()))
        if unknown:
            raise DataError(
                f"label {unknown[0]!r} is not a class of the first rows.",
                "Fit again with rows of all classes, or pass all `classes` with the first rows.",
            )
        return np.searchsorted(classes, labels)

    def _labelled_rows(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, *, reset: bool
    ) -> TrainingRows:
        """Return rows and labels with sample weights, times the class weights of a mapping."""
        rows, labels = training_rows(self, X, y, schema, reset=reset)
        by_class = None
        if isinstance(self.class_weight, Mapping):
            by_class = _class_weights(self.class_weight, labels)
        return TrainingRows.of(rows, labels, sample_weight, by_class)

    def _are_labelled(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask of the labels of `training_rows` that are not missing."""
        if not means_empty(self.unlabelled):
            return are_labelled(labels, self.unlabelled)
        is_text = labels.dtype.kind in "OU"
        return are_labelled(labels, str(self.unlabelled)) if is_text else ~np.isnan(labels)

    def _classes_of(self, dataset: Dataset, y: Any) -> NDArray[Any]:
        check_targets(dataset, None)
        # Booleans and whole floats are stored as int64; restore their type.
        dtype = plain_dtype((label_column(y) if is_chunked(y) else np.asarray(y)).dtype)
        return dataset.classes.astype(dtype) if dtype.kind in "bf" else dataset.classes

    def _take_model(self, model: Model) -> None:
        super()._take_model(model)
        self.classes_ = model.classes


def _class_weights(given: Mapping[Any, float], labels: NDArray[Any]) -> Floats:
    """Return the weight of the class of each label, 1 for classes that `given` lacks, (n,)."""
    present, places = np.unique(labels, return_inverse=True)
    classes = present.tolist()
    unknown = [label for label in given if label not in classes]
    if unknown and not {*classes} <= {*given}:
        raise ParameterError(
            f"`class_weight` has {unknown[0]!r}, but the labels of y are {shown_names(classes)}.",
            "Give weights by labels of the type that y has.",
        )
    weights: Floats = np.array([given.get(label, 1.0) for label in classes], dtype=np.float64)
    return weights[places]


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class NRBFNClassifier(PlainNetwork, ClassNetwork):
    """Normalized radial basis function network on a soft-kNN basis.

    Attributes
    ----------
    basis_ : ndarray (r, p), float64
        Scaled basis rows.
    basis_indices_ : ndarray (r,), int64
        Their row indices in the training data; -1 for rows that are not training rows.
    width_ : float
        Kernel width sigma.
    alpha_ : float or None
        The given or chosen alpha; None with several cells.
    weights_ : ndarray (K, r), float64
    classes_ : ndarray (K,)
    confidence_ : ndarray (n,), float64
        Soft-kNN confidence of every training row, only with an "sknn" basis. NaN for rows of
        weight 0, without a label, or not among the candidates.
    feature_weights_, feature_importances_ : ndarray (p,), float64
        Learned weights of the features, and the same with sum 1; only with a "learned" scale.
    params_ : FitParams
        The parameters of the fit.
    fitting_error_ : float
        eps of the training rows; 1 is a perfect fit. With another loss than the squared loss, this
        and `spectral_risk_` describe the network from which the iterations started.
    spectral_risk_ : float
        gamma; large if the fit depends on directions in which the features vary little.
    n_features_in_ : int
        Number of columns of X that are used.
    feature_names_in_ : ndarray (n_features_in_,)
        Names of these columns, only if all are strings.
    schema_ : Schema or None
        Kinds of the columns of a frame, the features made from them and the imputed values. None:
        the columns are the features.
    feature_names_ : ndarray (p,)
        Names of the features, only if the columns have names.

    Notes
    -----
    hu-nrbfn (see `dask_nrbfn.numeric`), Algorithms 1 to 3. Arrays in memory are fitted in this
    process. Zarr arrays, dask collections and datasets are fitted chunk by chunk on the active
    `distributed.Client`, or in this process if there is none.

    A frame of pandas, polars, Arrow, dask or another library may have columns of text, categories,
    booleans and dates; `ingest` treats tables the same way. Frames to predict must have these
    columns in any order; extra columns are ignored. If all columns are numeric, they must be those
    of the fit, as in scikit-learn. An unseen category belongs to none of the known ones.

    A loaded model has no ``confidence_`` and ``basis_indices_``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> network = NRBFNClassifier(scale="standard", alpha=1e-8).fit(X[::2], y[::2])
    >>> bool(network.score(X[1::2], y[1::2]) > 0.95)
    True
    """

    loss: str = "squared"
    basis: str | ArrayLike = "sknn"
    basis_rule: str = "uniform"
