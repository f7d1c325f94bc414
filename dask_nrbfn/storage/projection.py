"""Coordinates in the place of the features of rows, by components that a run has found."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_nrbfn.errors import DamagedDataError, DamagedResultError, MissingDataError
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.storage.array import get_array, read_rows
from dask_nrbfn.storage.group import Location, open_group

STAGE = "svd"
"""The stage that finds the components, and its group in the run."""

COMPONENTS = f"{STAGE}/components"
"""Where they are in a run."""


@dataclass(frozen=True, eq=False)
class Projection:
    """What makes coordinates of rows.

    Attributes
    ----------
    run : Location or None
        That has the components; they are read with the first rows. None: there are none yet, and
        others stand for them, to measure times with.
    n_features, n_components : int
        Number p of features, and D of coordinates.
    """

    run: Location | None
    n_features: int
    n_components: int

    @property
    def names(self) -> tuple[str, ...]:
        """What the coordinates are called."""
        return tuple(f"svd_{place}" for place in range(1, 1 + self.n_components))

    @cached_property
    def components(self) -> Floats:
        """What rows are multiplied by, float64 (p, D)."""
        if self.run is None:
            rng = np.random.default_rng(0)
            return rng.standard_normal((self.n_features, self.n_components))
        try:
            return read_rows(get_array(open_group(self.run, kind="run"), COMPONENTS))
        except (MissingDataError, DamagedDataError) as error:
            raise DamagedResultError(error.problem, error.remedy, STAGE, ()) from error

    def apply(self, X: Rows) -> Floats:
        """Return the coordinates, float64 (b, D), of rows (b, p)."""
        # Loads scipy, which what writes or describes a dataset does not need.
        from dask_nrbfn.numeric.svd import project

        return project(X, self.components)

    def held_bytes(self, n_rows: int) -> int:
        """Return the bytes of the coordinates of so many rows, and of what makes them."""
        from dask_nrbfn.numeric.svd import project_bytes

        return project_bytes(n_rows, self.n_features, self.n_components)
