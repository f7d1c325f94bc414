"""Predictions as series and frames, under the index of the rows."""

from collections.abc import Sequence
from typing import Any, Self

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.frames import as_frame

LIBRARIES = ("default", "pandas", "polars")


class PredictOutput:
    """What `set_output` sets: what predictions of rows in memory are."""

    # What has this name is copied by scikit-learn's clone.
    _sklearn_output_config: dict[str, str]

    def set_output(self, *, predict: str | None = None) -> Self:
        """Set what `predict`, `predict_proba` and `decision_function` return.

        Parameters
        ----------
        predict : {"default", "pandas", "polars"}, optional
            Arrays, as all of scikit-learn's classifiers and regressors return them; or series, and
            frames of several columns, of that library, with the index of a pandas X. Those of dask
            collections are dask arrays, and those of cubes DataArrays, in any case. None: what was
            set before.

        Raises
        ------
        ParameterError
            If it is none of these.
        """
        if predict is not None:
            if predict not in LIBRARIES:
                raise ParameterError(
                    f"predict is {predict!r}.", f"Give one of {', '.join(LIBRARIES)}."
                )
            self._sklearn_output_config = {"predict": predict}
        return self

    def _shown(self, values: NDArray[Any], X: Any, names: Sequence[str]) -> Any:
        """Return predictions (n,) of the last of some names, or (n, m), as they are to be."""
        library = getattr(self, "_sklearn_output_config", {}).get("predict", "default")
        if library == "default" or not isinstance(values, np.ndarray):
            return values
        if values.ndim == 1:
            shown: Any = nw.new_series(names[-1], values, backend=library)
        else:
            columns = dict(zip(names, values.T, strict=True))
            shown = nw.from_dict(columns, backend=library)
        native, frame = shown.to_native(), as_frame(X)
        if library == "pandas" and frame is not None:
            index = nw.maybe_get_index(frame)
            native.index = native.index if index is None else index
        return native
