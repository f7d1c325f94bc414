"""Coordinates of rows: their products with the singular vectors of a run."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_nrbfn.errors import DamagedDataError, DamagedResultError, MissingDataError
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.storage.array import get_array, read_rows
from dask_nrbfn.storage.group import Location, open_group

STAGE = "svd"
"""The stage that finds the singular vectors, and its group in the run."""

VECTORS = f"{STAGE}/components"
"""The array of the singular vectors in a run."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The map from p features to D coordinates of a row.

    Attributes
    ----------
    run : Location or None
        The run with the singular vectors, which are read with the first rows. None: random vectors,
        to measure times.
    n_features, n_coordinates : int
    """

    run: Location | None
    n_features: int
    n_coordinates: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates."""
        return tuple(f"svd_{place}" for place in range(1, 1 + self.n_coordinates))

    @cached_property
    def vectors(self) -> Floats:
        """The singular vectors, float64 (p, D)."""
        if self.run is None:
            rng = np.random.default_rng(0)
            return rng.standard_normal((self.n_features, self.n_coordinates))
        try:
            return read_rows(get_array(open_group(self.run, kind="run"), VECTORS))
        except (MissingDataError, DamagedDataError) as error:
            raise DamagedResultError(error.problem, error.remedy, STAGE, ()) from error

    def apply(self, X: Rows) -> Floats:
        """Return the coordinates, float64 (b, D), of rows (b, p)."""
        # Loads scipy, which is not needed to write or describe a dataset.
        from dask_nrbfn.numeric.svd import project

        return project(X, self.vectors)

    def held_bytes(self, n_rows: int) -> int:
        """Return the bytes of the coordinates of `n_rows` rows and of the singular vectors."""
        from dask_nrbfn.numeric.svd import project_bytes

        return project_bytes(n_rows, self.n_features, self.n_coordinates)
