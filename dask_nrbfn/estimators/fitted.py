"""What estimators have in common that give scores of rows by a basis."""

import os
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from dask_nrbfn.commands.describe import describe_model
from dask_nrbfn.commands.onnx_model import write_onnx
from dask_nrbfn.estimators.cubes import are_pixels, predict_cube
from dask_nrbfn.estimators.inputs import is_dask
from dask_nrbfn.estimators.predictions import predict_lazily, scorer_of
from dask_nrbfn.estimators.rows import checked_rows, set_columns
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import Location, RemoteLocation
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run


class ModelEstimator(BaseEstimator):  # type: ignore[misc]
    """Estimator that has parameters of a fit and, once it is fitted, a model."""

    basis: str | ArrayLike
    random_state: int | np.random.RandomState | None
    missing: str
    store: str | os.PathLike[str] | RemoteLocation | None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that was refused may have left what it knew of the columns.
        return hasattr(self, "_model")

    def save(self, location: Location, *, overwrite: bool = False) -> None:
        """Write the model as a Zarr group at `location`, where nothing may be.

        With `overwrite` it replaces an old model there when it is complete.
        """
        check_is_fitted(self)
        self._model.save(location, overwrite=overwrite)

    def to_onnx(
        self, path: str | os.PathLike[str], *, dtype: str = "float64", overwrite: bool = False
    ) -> None:
        """Write the model as an ONNX file, as `export_onnx` does that of a run."""
        check_is_fitted(self)
        told = describe_model(self._model)
        write_onnx(self._model, path, told=told, dtype=dtype, overwrite=overwrite)

    @classmethod
    def _of_model(cls, model: Model) -> Self:
        """Return the estimator of a model, with the parameters that it was fitted with."""
        params = model.params.to_dict()
        if model.params.basis_is_given:
            params |= {"basis": model.scaling.restore(model.basis), "basis_size": None}
        if model.schema is not None and model.schema.fills:
            params["missing"] = "impute"
        estimator = cls(**{name: params[name] for name in cls._get_param_names() if name in params})
        estimator._take_model(model)
        return estimator

    def _values(self) -> dict[str, Any]:
        """Return the parameters that are those of a fit."""
        own = self.get_params()
        return {name: own[name] for name in FitParams.options() if name in own}

    def _params(self) -> FitParams:
        values, given = self._values(), self._given_rows()
        if given is not None:
            del values["basis"]
        if not isinstance(self.random_state, int | np.integer):
            values["random_state"] = check_random_state(self.random_state).randint(2**31)
        params = FitParams(**values)
        return params if given is None else given_basis(params, given)

    def _given_rows(self) -> ArrayLike | None:
        """Return the basis rows that are given, None if a source of them is."""
        return None if isinstance(self.basis, str) else self.basis

    def _take_run(self, run: Run) -> None:
        self._basis_rows = run.read("basis/rows")

    def _take_model(self, model: Model) -> None:
        self._model = model
        self.params_ = model.params
        self.basis_ = model.basis
        self._take_basis_indices()
        self.width_ = model.width
        self.weights_ = model.weights
        self._take_feature_weights(model.scaling.feature_weights)
        set_columns(self, model.n_features, model.feature_names, model.schema)

    def _take_feature_weights(self, weights: Floats | None) -> None:
        if weights is not None:
            self.feature_weights_ = weights
            self.feature_importances_ = weights / weights.sum()
        elif hasattr(self, "feature_weights_"):
            del self.feature_weights_, self.feature_importances_

    def _take_basis_indices(self) -> None:
        # What was loaded does not know its rows.
        if hasattr(self, "_basis_rows"):
            places = self._model.places
            self.basis_indices_ = self._basis_rows if places is None else self._basis_rows[places]

    def _predict(self, X: Any, result: str, feature_dim: str | None = None, *, name: str) -> Any:
        """Return a result of `RESULTS` for rows; lazily for a dask array.

        With `feature_dim` the rows are the pixels of a cube, and the result has this `name`.
        """
        check_is_fitted(self)
        if are_pixels(X, feature_dim):
            return predict_cube(self._model, X, feature_dim, result, self.store, name=name)
        if is_dask(X):
            return predict_lazily(self._model, X, result, self.store)
        scorer = scorer_of(self._model)
        return scorer.result(result, self._scores(X, scorer))

    def _scores(self, X: Any, scorer: Scorer) -> Floats:
        model = self._model
        if isinstance(X, Dataset):
            X = model.encoded(X)
            return np.concatenate([block.scores for block in scorer.blocks(X, 0, X.n_rows)])
        as_stored = not isinstance(X, zarr.Array)
        if as_stored:
            X = checked_rows(self, X, model.schema)
        if model.schema is None:
            model.check_columns(X.shape[1])
        return scorer.table(X, as_stored=as_stored)
