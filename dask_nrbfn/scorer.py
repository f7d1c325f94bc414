"""Scoring: scores of blocks of rows, and the results that are computed from scores."""

from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.intervals import masses
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.radial import Scratch
from dask_nrbfn.numeric.rows import Rows, is_csr, unmasked
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.storage.chunks import check_finite
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows, gpu_block_rows, narrow_block_rows
from dask_nrbfn.storage.model import Model

# Scoring sums nothing over rows, so a block is only as large as a fast product with the basis
# needs. In a small block more of the activations stay in the cache.
_MAX_BLOCK_ROWS = 1024


def _decisions(model: Model, scores: Floats) -> Floats:
    """Return the scores; with two classes the margin of the second class, (b,)."""
    if scores.shape[1] != 2:
        return scores
    difference: Floats = scores[:, 1] - scores[:, 0]
    # With another loss than the squared loss, each score is the negative of the other one.
    return difference if loss_named(model.params.loss).solved_at_once else difference / 2


def _numbers(model: Model, scores: Floats) -> Floats:
    """Return predicted numbers (b, q); those of a single target as (b,), as scikit-learn does."""
    values = model.clipped(scores)
    return values[:, 0] if scores.shape[1] == 1 else values


def _end(sign: float) -> Callable[[Model, Floats, float], Floats]:
    """Return the function of the lower or the upper end (b, q) of the intervals of rows."""

    def end(model: Model, scores: Floats, coverage: float) -> Floats:
        assert model.intervals is not None
        q = len(model.weights)
        half = model.intervals.half_widths(scores[:, q : 2 * q], coverage)
        ends = model.clipped(scores[:, :q]) + sign * half
        return model.clipped(ends) if model.intervals.may_clip(coverage) else ends

    return end


def _sets(model: Model, scores: Floats, coverage: float) -> NDArray[np.bool_]:
    """Return which labels are in the sets of rows, (b, K)."""
    assert model.intervals is not None
    probabilities = model.probabilities(scores[:, : len(model.weights)])
    return np.asarray(masses(probabilities) <= model.intervals.at(coverage))


def _label_sets(model: Model, scores: Floats, coverage: float) -> NDArray[Any]:
    """Return the labels in the set of each row as text, with bars between them."""
    labels = [str(label) for label in model.classes.tolist()]
    texts = ["|".join(compress(labels, own)) for own in _sets(model, scores, coverage)]
    return np.array(texts, dtype=np.dtypes.StringDType())


def _intervals(model: Model, scores: Floats, coverage: float) -> Floats:
    """Return both ends of the intervals of rows, (b, 2), or (b, q, 2) for several targets."""
    ends = [_end(sign)(model, scores, coverage) for sign in (-1.0, 1.0)]
    stacked = np.stack(ends, axis=2)
    return stacked[:, 0] if stacked.shape[1] == 1 else stacked


def _unlike(model: Model, scores: Floats, _: float) -> Floats:
    """Return the distance (b,) from the basis over that of rows which are hardly like any."""
    assert model.intervals is not None
    return np.asarray(scores[:, -1] / model.intervals.far)


EXTENDED: dict[str, Callable[[Model, Floats, float], NDArray[Any]]] = {
    "lower": _end(-1.0),
    "upper": _end(1.0),
    "intervals": _intervals,
    "sets": _sets,
    "label_sets": _label_sets,
    "unlike": _unlike,
}
"""Results by name: functions of a model, the extended scores of rows and a coverage.

"@" and the coverage follow the name of a result, as in "lower@0.9"; "unlike" has no coverage.
"""


def is_extended(name: str) -> bool:
    """Return whether a result needs extended scores, see `Model.scores`."""
    return name.partition("@")[0] in EXTENDED


RESULTS: dict[str, Callable[[Model, Floats], NDArray[Any]]] = {
    "labels": lambda model, scores: model.classes[scores.argmax(axis=1)],
    "confidence": lambda model, scores: model.probabilities(scores).max(axis=1),
    "scores": lambda _, scores: scores,
    "decisions": _decisions,
    "probabilities": Model.probabilities,
    "values": Model.clipped,
    "numbers": _numbers,
    # A missing feature makes all scores of its row NaN.
    "skipped": lambda _, scores: np.isnan(scores[:, 0]),
}
"""Results by name: functions of a model and the scores (b, q) of rows; (b,) or (b, q)."""


class Scorer:
    """Scores rows with a model, one block of activations at a time."""

    def __init__(
        self, model: Model, *, block_rows: int | None = None, extended: bool = False
    ) -> None:
        self.model, self.extended = model, extended
        # The networks of cells are small, and stay on the host.
        self._placed = None if model.cells is not None else model.features.on_device()
        self._xp: Any = np if self._placed is None else self._placed.xp
        if self._xp is not np:
            block_rows = gpu_block_rows(*model.basis.shape)
        self.block_rows = scoring_rows(model) if block_rows is None else block_rows
        self._buffer, self._scratch = np.empty((0, model.n_active)), Scratch(0, 0)

    def result(self, name: str, scores: Floats) -> NDArray[Any]:
        """Return a result of `RESULTS` or `EXTENDED` of rows with the given scores (b, .)."""
        if is_extended(name):
            kind, _, coverage = name.partition("@")
            return EXTENDED[kind](self.model, scores, float(coverage or 0.0))
        return RESULTS[name](self.model, scores[:, : len(self.model.weights)])

    def count_unlike(self, scores: Floats) -> int:
        """Return how many rows are farther from the basis than almost all held-out rows."""
        if not self.extended:
            return 0
        return int(np.count_nonzero(_unlike(self.model, scores, 0.0) > 1.0))

    def no_result(self, name: str) -> NDArray[Any]:
        """Return a result for no rows, which shows its dtype and width."""
        return self.result(name, np.empty((0, self._n_values)))

    @property
    def _n_values(self) -> int:
        return self.model.n_extended if self.extended else len(self.model.weights)

    def scores_of(self, X: Rows) -> Floats:
        """Return the scores of a block of feature rows (b, p), float64 (b, .)."""
        n_rows = X.shape[0]
        if self.model.cells is not None:
            n_rows = min(n_rows, _MAX_BLOCK_ROWS)
        if n_rows > len(self._buffer):
            self._buffer = self._xp.empty((n_rows, self.model.n_active))
            self._scratch = Scratch(n_rows, self.model.basis.shape[1], xp=self._xp)
        return self.model.scores(
            X,
            buffer=self._buffer[:n_rows],
            scratch=self._scratch.of(X),
            features=self._placed,
            extended=self.extended,
        )

    def blocks(
        self, dataset: Dataset, start: int, stop: int
    ) -> Iterator[tuple[Floats, NDArray[Any] | None, Floats | None]]:
        """Yield scores float64 (b, .), targets and weights of rows with the model's features."""
        for X, targets, weights in dataset.blocks(start, stop, self.block_rows):
            yield self.scores_of(X), targets, weights

    def table(
        self,
        X: Any,
        *,
        as_stored: bool = True,
        skip_gaps: bool = False,
        first_row: int = 0,
        within: str = "",
    ) -> Floats:
        """Return the scores, or the extended scores, of the rows of an array, float64 (n, .).

        X is an array, zarr.Array or CSR (n, p), or (n, c) if the model has a schema. `as_stored`:
        rows are encoded already, as by `stored_rows`. `skip_gaps`: rows with a gap that the model
        does not fill have NaN scores. `first_row` and `within` name rows in errors.
        """
        schema = self.model.schema
        scores = np.full((X.shape[0], self._n_values), np.nan)
        for start in range(0, len(scores), self.block_rows):
            rows = X[start : start + self.block_rows]
            if not is_csr(rows):
                rows = np.asarray(unmasked(rows))
            known: Any = slice(None)
            if skip_gaps:
                gaps = np.isnan(rows)
                fills = schema is not None and schema.fills
                known = ~(gaps.all(axis=1) if fills else gaps.any(axis=1))
                rows = rows[known]
            if rows.shape[0]:
                place = {"first_row": first_row + start, "within": within}
                block = scores[start : start + self.block_rows]
                block[known] = self.scores_of(self._features(rows, as_stored, **place))
        return scores

    def _features(self, rows: Any, as_stored: bool, **place: Any) -> Rows:
        """Return the features of checked rows."""
        schema = self.model.schema
        if schema is None:
            check_finite(rows, **place)
            return rows
        # Imports pyarrow, which models without a schema do not need.
        from dask_nrbfn.sources.tables import check_filled, stored_rows

        check_finite(rows, **place, gaps=True)
        if not as_stored:
            rows = stored_rows(rows, schema)
        check_filled(rows, schema, **place)
        return schema.expand(rows)


def activations_bytes(model: Model) -> int:
    """Return the number of bytes that the activations of a block take during scoring."""
    rows = min(scoring_rows(model), _MAX_BLOCK_ROWS)
    return 8 * rows * model.n_active


def scoring_rows(model: Model) -> int:
    """Return the number of rows of a block for scoring; with cells, enough rows for each cell."""
    rows = min(block_rows(model.n_active), _MAX_BLOCK_ROWS)
    n_values = model.basis.shape[1] + model.n_targets
    return max(rows, min(model.n_cells * rows, narrow_block_rows(n_values)))
