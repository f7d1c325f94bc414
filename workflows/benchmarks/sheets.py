"""Labelled rows for benchmarks, drawn chunk by chunk: blobs on curved sheets."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.sources.source import Block, Source

# Rows drawn from one generator, so that a row does not depend on how many are read at a time.
_BATCH_ROWS = 8192
_SHEETS_PER_CLASS = 3


class SheetSource(Source):
    """Rows of a mixture, a `dask_nrbfn.sources.Source` that never holds its table.

    Every class has three sheets: a plane, bent by its squares and products, with a blob of points
    on it and noise about it. The sheets overlap: a third of the rows have a confidence below 0.9.
    """

    def __init__(
        self, n_rows: int, n_features: int = 32, *, n_classes: int = 10, seed: int = 0
    ) -> None:
        super().__init__(
            n_rows=n_rows,
            n_features=n_features,
            x_dtype=np.dtype(np.float64),
            y_dtype=np.dtype(np.int64),
        )
        self.n_classes, self.seed = n_classes, seed

    def _parts(self, block_rows: int) -> Iterator[Block]:
        rng = np.random.default_rng(self.seed)
        n_sheets = self.n_classes * _SHEETS_PER_CLASS
        centres = 0.5 * rng.standard_normal((n_sheets, self.n_features))
        bends = rng.standard_normal((n_sheets, 5, self.n_features))
        for batch, start in enumerate(range(0, self.n_rows, _BATCH_ROWS)):
            own = np.random.default_rng([self.seed, batch])
            sheets = own.integers(n_sheets, size=min(_BATCH_ROWS, self.n_rows - start))
            X = np.empty((len(sheets), self.n_features))
            for sheet in range(n_sheets):
                members = sheets == sheet
                X[members] = centres[sheet] + _coordinates(own, members.sum()) @ bends[sheet]
            X += 0.6 * own.standard_normal(X.shape)
            yield Block(X, sheets % self.n_classes)


def _coordinates(rng: np.random.Generator, n_rows: int) -> NDArray[np.float64]:
    u, v = rng.standard_normal((2, n_rows))
    return np.column_stack([u, v, 0.5 * u * u, 0.5 * u * v, 0.5 * v * v])
