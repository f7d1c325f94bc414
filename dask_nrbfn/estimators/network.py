"""What networks have in common, whatever their targets are."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from zarr.storage import MemoryStore

from dask_nrbfn.commands.version import read_model
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.estimators.cubes import Pixels, are_pixels
from dask_nrbfn.estimators.fitted import ModelEstimator
from dask_nrbfn.estimators.inputs import Table, chunked_dataset, is_chunked
from dask_nrbfn.estimators.output import PredictOutput
from dask_nrbfn.estimators.runs import (
    KeptRun,
    Settings,
    finished_run,
    own_run,
    workplace,
)
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.params import FitLimits, FitParams
from dask_nrbfn.sources.stored import schema_of
from dask_nrbfn.stages.confidence import name_rows
from dask_nrbfn.stages.refine import check_updatable
from dask_nrbfn.stages.searched import of_searched
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import remove_group
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run


class Network(PredictOutput, ModelEstimator, ABC):
    """Network that is fitted, updated and saved.

    Its heirs say what the targets are, and which settings a fit has.
    """

    min_recall: float = FitLimits.min_recall
    unlabelled: Any
    _of_numbers = False
    _kept_run: KeptRun | None = None

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        feature_dim: str | None = None,
    ) -> Self:
        """Train on rows and their targets.

        Parameters
        ----------
        X : array-like, zarr.Array or dask array (n, c), frame, dask dataframe, or Dataset
            A frame of pandas, polars, Arrow or another library may have columns of text,
            categories, dates and booleans.
        y : array-like, zarr.Array, dask array or series (n,), for numbers also (n, q)
            None for a `Dataset`, which has its own. Rows in which it is `unlabelled` are only
            candidates for the basis and count in scale and width.
        sample_weight : array-like, zarr.Array, dask array or series (n,), optional
            A row of weight w counts in the width and in the ridge system as w equal rows; in the
            search of neighbours it is one. Rows of weight 0 are left out; only where X is in
            memory may there be any. Which categories there are, and what fills gaps, is told by
            all other rows alike. None for a `Dataset`, which has its weights.
        feature_dim : str, optional
            X is xarray's DataArray, or a Dataset whose variables with this dimension are taken: its
            pixels are rows, whose features lie along it, but for those that lack one. Of a Dataset
            without it all variables but y are features. y is a DataArray of some or all of the
            other dimensions, the name of a variable of X, or, of several numbers, a Dataset or a
            list of names. Pixels whose y is NaN, None or empty are left out; with `unlabelled` they
            are rows without a label. Nothing is loaded whole.

        Raises
        ------
        ParameterError, DataError
            If a parameter or the data cannot be used. Both are `ValueError`.
        MemoryBudgetError
            If the basis does not fit the memory.
        """
        if are_pixels(X, feature_dim):
            X, y = Pixels(X, y, feature_dim), None
        if is_chunked(X):
            with workplace(self.store, X) as place:
                dataset = self._chunked_dataset(X, y, sample_weight, place, "dataset")
                classes = self._classes_of(dataset, y)
                self._train(dataset, place, classes)
            return self
        return self._fit_in_memory(X, y, sample_weight)

    def _fit_in_memory(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        """Train on arrays; `classes` are all there are, None: those of y."""
        schema = schema_of(X, self.missing, weights=sample_weight)
        table = self._table(X, y, sample_weight, schema, classes)
        dataset = table.dataset(schema, getattr(self, "feature_names_in_", None))
        self._train(dataset, MemoryStore(), table.classes)
        if table.kept is not None:
            self._number_rows(table.kept)
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
        check_updatable(self.params_.loss, "Call fit with all rows.")
        self._update(X, y, sample_weight, forget=True)
        return self

    @abstractmethod
    def _settings(self) -> Settings:
        """Return what is fitted, taken once: a generator or a random state gives other values."""

    @abstractmethod
    def _table(
        self, X: Any, y: Any, sample_weight: Any, schema: Schema | None, classes: Any = None
    ) -> Table:
        """Return arrays to fit, checked, of the given classes, or those of y."""

    @abstractmethod
    def _further_table(self, X: Any, y: Any, sample_weight: Any, stored: Model) -> Table:
        """Return arrays to add or forget, checked, with targets as those of the run's `stored`."""

    @abstractmethod
    def _classes_of(self, dataset: Dataset, y: Any) -> Any:
        """Return the classes of a dataset as they were given in `y`, (K,); none for numbers."""

    def _chunked_dataset(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        place: Location,
        name: str,
        schema: Schema | None = None,
    ) -> Dataset:
        """Return rows that are not in memory as a dataset; by default its schema is decided."""
        return chunked_dataset(
            X,
            y,
            sample_weight,
            place,
            name,
            numbers=self._of_numbers,
            unlabelled=self.unlabelled,
            missing=self.missing,
            schema=schema,
        )

    def _train(self, dataset: Dataset, place: Location, classes: Any) -> None:
        run = finished_run(
            dataset,
            place,
            self._settings(),
            basis=self._given_rows(),
            min_recall=self.min_recall,
        )
        self._take_run(run)
        self._take_model(replace(read_model(run, ""), classes=classes))
        self._kept_run = KeptRun.of_fit(run, self.store)

    def _take_run(self, run: Run) -> None:
        if "confidence" in run.stages:
            values = of_searched(run).read("confidence/values")
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
        """Let attributes with a row for every row count those of weight 0 too."""
        known = self._basis_rows >= 0
        self._basis_rows = np.where(known, np.flatnonzero(kept)[self._basis_rows], -1)
        self._take_basis_indices()
        if hasattr(self, "confidence_"):
            confidence = np.full(len(kept), np.nan)
            confidence[kept] = self.confidence_
            self.confidence_ = confidence

    def _fit_or_add(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> None:
        """Train on a first batch of rows, or let further rows join it."""
        check_updatable(getattr(self, "loss", FitParams.loss), "Call fit with all rows.")
        if hasattr(self, "basis_"):
            self._update(X, y, sample_weight, forget=False)
        elif self.store is None and is_chunked(X):
            raise ParameterError("the sums of the rows have no place.", "Give `store`.")
        elif is_chunked(X):
            self.fit(X, y, sample_weight)
        else:
            self._fit_in_memory(X, y, sample_weight, classes)

    def _update(self, X: Any, y: Any, sample_weight: Any, *, forget: bool) -> None:
        own = self._kept_run = own_run(self._kept_run, self.store)
        with self._batch(X, y, sample_weight, own.location) as dataset:
            self._kept_run = own.update(dataset, forget=forget)
        before, after = self._model, Model.load(own.location)
        self._take_model(replace(after, classes=before.classes))

    @contextmanager
    def _batch(self, X: Any, y: Any, sample_weight: Any, location: Location) -> Iterator[Dataset]:
        """Give rows as a dataset for the run at `location`."""
        if not is_chunked(X):
            table = self._further_table(X, y, sample_weight, Model.load(location))
            yield table.dataset(self.schema_, getattr(self, "feature_names_in_", None))
            return
        if isinstance(location, MemoryStore):
            raise ParameterError(
                f"the first rows were in memory, these are a {type(X).__name__}.",
                "Give arrays in memory, or begin with a Dataset or dask array and a store.",
            )
        with workplace(self.store, X) as place:
            name = f"batch-{uuid.uuid4().hex}"
            dataset = self._chunked_dataset(X, y, sample_weight, place, name, self.schema_)
            try:
                yield dataset
            finally:
                if dataset is not X:
                    remove_group(dataset.location)


class PlainNetwork(Network):
    """Network with the parameters that it is given."""

    @classmethod
    def load(cls, location: Location) -> Self:
        """Return the network of a saved model or a finished run; runs no code from the file."""
        return cls._of_model(Model.load(location))

    def _settings(self) -> Settings:
        return Settings(self._params())
