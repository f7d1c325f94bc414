"""Sources of basis rows, rows in memory or in groups, pools to choose from, rows with neighbours.

Each value of the parameter `basis` is a `BasisSource` that is listed in `dask_nrbfn.choices`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.choices import BASES
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.neighbors.plan import SearchedRows
from dask_nrbfn.numeric.confidence import RowPool, choose_basis, keep_best
from dask_nrbfn.numeric.hashing import hash_numbers, hash_rows
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.small_fit import SmallTable
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import GIVEN_PREFIX, FitParams
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.run import Run, RunArray
from dask_nrbfn.weighting import RowWeights

# Basis rows of a fit without `basis_size`, unless the source finds its own number.
_DEFAULT_SIZE = 1000

# Maximum number of basis rows that a source finds by a given threshold, because noisy labels would
# give an unbounded basis. The largest basis of hu-nrbfn, of MNIST, has 8,787 rows.
MOST_FOUND = 10_000

# The same without a given threshold. Where classes overlap, most rows are below 0.9. All of them
# take several times as long, and the errors are about the same.
MOST_USUAL = 2000

# Maximum number of sampled rows whose confidence is computed: comparing all pairs takes seconds.
MOST_SCORED = 20_000

# Candidates for a basis of a given size. With fewer candidates the least confident rows are farther
# from the borders of the classes.
_CANDIDATES_OF_BASIS_ROW, _LEAST_CANDIDATES = 20, 50_000


class Chosen(NamedTuple):
    """A basis, not scaled."""

    values: Rows
    # Row numbers; -1 for a point that is not a row of the dataset.
    rows: NDArray[np.int64]

    @classmethod
    def of_points(cls, values: NDArray[Any]) -> Self:
        """Return a basis of points that are not rows of the dataset."""
        return cls(values, np.full(len(values), -1))


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows in memory, from which the basis of a trial network is chosen; X as in the dataset."""

    params: FitParams
    X: Rows
    scaling: Scaling
    # -1 without a label, 0 if the targets are numbers.
    codes: NDArray[np.integer]
    # Each class gives at least one basis row.
    n_classes: int
    numbers: NDArray[np.int64]
    # Number of rows from which the sample is drawn.
    n_all: int

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """Hash of each row's values, uint64 (n,)."""
        return hash_rows(self.X, seed=self.params.random_state)

    def first(self, size: int) -> Self:
        """Return a draw of at most `size` rows."""
        rows = np.argsort(hash_numbers(self.numbers, seed=self.params.random_state))[:size]
        X, codes, numbers = self.X[rows], self.codes[rows], self.numbers[rows]
        return replace(self, X=X, codes=codes, numbers=numbers)

    def best(self, priority: Floats, size: int) -> Chosen:
        """Return a basis of the rows with the least priority (n,)."""
        rows = np.arange(self.X.shape[0])
        pool = RowPool(priority, self.hashes, self.codes, rows)
        places = choose_basis(pool, size=size, n_classes=self.n_classes).rows
        return Chosen(self.X[places], self.numbers[places])


@dataclass(frozen=True, kw_only=True)
class BasisSource:
    """A source of basis rows."""

    # Returns a basis of a number of rows by a `basis_rule`, or of fewer distinct rows.
    choose: Callable[[Run, Dataset, int, str], Chosen]
    # Returns a number of sampled rows, similar to the basis of the whole dataset. None: `choose`
    # needs no rows.
    sampled: Callable[[SampledRows, int], Chosen] | None = None
    # Returns the basis of a fit without `basis_size`, up to a number of rows. None: such a fit has
    # the number of rows that `requested_size` returns.
    choose_all: Callable[[Run, Dataset, int], Chosen] | None = None
    # Whether the source needs the confidence of rows, and therefore labels.
    by_confidence: bool = False
    # Whether the basis consists of rows of the dataset, in CSR if the dataset is sparse.
    draws: bool = True
    # Returns the number of rows in memory, by the numbers of rows, values of a row and basis rows.
    n_sampled: Callable[[int, float, int], int] = lambda n_rows, row_values, n_basis: 0


GIVEN_BASIS = RunArray("given/values", ("basis", "feature"), "given basis rows", verified=False)


def _given(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    """Return the given basis rows, or a draw of them."""
    values = GIVEN_BASIS.read(run)
    if size < len(values):
        rng = np.random.default_rng(run.spec.params.random_state)
        values = values[rng.permutation(len(values))]
    return Chosen.of_points(values[:size])


_GIVEN = BasisSource(choose=_given, draws=False)


@cache
def source_of(basis: str) -> BasisSource:
    """Return the source of basis rows that the parameter `basis` names."""
    source: BasisSource = _GIVEN if basis.startswith(GIVEN_PREFIX) else BASES[basis]
    return source


def names_search_of_all(params: FitParams) -> bool:
    """Return whether parameters name a search that only all rows have."""
    return params.neighbors == "approximate" or params.n_partitions not in (None, 1)


def requested_candidates(params: FitParams, dataset: Dataset) -> int | None:
    """Return the number of candidates for a basis by confidence; None: all labelled rows."""
    n_rows, size = dataset.of_labelled().n_rows, params.candidates
    if size == "auto" and params.basis_size is not None and not names_search_of_all(params):
        size = max(_CANDIDATES_OF_BASIS_ROW * params.basis_size, _LEAST_CANDIDATES)
        # The search for most of the rows takes as long as for all rows.
        return size if size <= n_rows // 2 else None
    return size if isinstance(size, int) and size < n_rows else None


# The decision of a run on candidates: the parts of arrays with a row for each candidate.
CANDIDATES = "candidates"

CANDIDATE_ROWS = RunArray("neighbors/rows", ("candidate",), "drawn candidates", verified=False)
CANDIDATE_HASHES = RunArray(
    "neighbors/hashes", ("candidate",), "hashes of the values of the candidates", verified=False
)


def has_candidates(run: Run) -> bool:
    """Return whether only candidates have neighbours."""
    return CANDIDATES in run.decisions


def with_neighbors(run: Run) -> Run:
    """Return the run restricted to the rows that have neighbours."""
    labelled = run.of_labelled()
    if not has_candidates(run):
        return labelled
    layout = PartLayout(**run.decisions[CANDIDATES])
    return replace(labelled, n_rows=layout.n_rows, layout=layout)


def searched_rows(run: Run) -> NDArray[np.int64] | None:
    """Return the candidates among the labelled rows, ascending, int64 (N,); None: all rows."""
    return CANDIDATE_ROWS.read(run) if has_candidates(run) else None


def check_neighbors(n_neighbors: int, dataset: Dataset, *, labelled_only: bool) -> None:
    """Check that there are enough rows for `n_neighbors` neighbours."""
    n_searched = dataset.of_labelled().n_rows if labelled_only else dataset.n_rows
    if n_neighbors >= n_searched:
        labelled = " with a label" if n_searched < dataset.n_rows else ""
        raise ParameterError(
            f"`n_neighbors`={n_neighbors} needs at least {n_neighbors + 1} rows, but X has "
            f"n_samples = {n_searched}{labelled}.",
            f"Give `n_neighbors`={n_searched - 1} or less.",
        )


def searched_in(dataset: Dataset, params: FitParams) -> SearchedRows:
    """Return the sizes of the rows of a dataset, for their search."""
    return SearchedRows(
        n_rows=dataset.n_rows,
        n_features=dataset.n_features,
        row_values=dataset.row_values,
        row_width=dataset.row_width,
        dtype=dataset.dtype,
        params=params,
    )


# A neighbour is a row number and a distance.
LIST_BYTES = 16

# Bytes of the rows of one block in double precision, or of their neighbour lists. For blocks that
# need more memory than their rows: the search of a thousand rows, or the routing to partitions.
_BLOCK_BYTES = 2**26


def most_lists(overlap: int) -> int:
    """Return the largest number of lists of a row: one more than `overlap`, and its copies."""
    return overlap + 2


def search_block_rows(chunk_rows: int, width: int, params: FitParams) -> int:
    """Return the rows of a block of a search, a whole number of a run's chunks."""
    row_bytes = max(8 * width, LIST_BYTES * params.k * most_lists(params.overlap))
    return max(1, _BLOCK_BYTES // row_bytes // chunk_rows) * chunk_rows


# Rows of scratch that are read together; the share of a group in a block is a few of these.
SLICE_ROWS = 512


def divided_blocks(run: Run, dataset: Dataset) -> list[tuple[int, int]]:
    """Return the first and the last-plus-one row of the blocks that one task each divides."""
    size = search_block_rows(run.layout.chunk_rows, dataset.row_width, run.spec.params)
    return [
        (first, min(first + size, stop))
        for start, stop in run.layout.spans
        for first in range(start, stop, size)
    ]


def store_counts(run: Run, stage: str, records: Sequence[Mapping[str, Any]]) -> list[int]:
    """Store the "counts" of parts, which are blocks sorted by group; return the rows of groups."""
    counts = np.array([record["counts"] for record in records], dtype=np.int64)
    write_array(run.group(stage), "counts", counts, "block", "group")
    sizes: list[int] = counts.sum(axis=0).tolist()
    return sizes


def read_group(
    run: Run, stage: str, counts: NDArray[np.int64], group: int, name: str
) -> Iterator[Any]:
    """Yield the rows of a group in an array of the parts, block after block."""
    firsts = np.cumsum(counts, axis=1) - counts
    for block in np.flatnonzero(counts[:, group]).tolist():
        first = int(firsts[block, group])
        yield run.read_part(stage, block, name, first, first + int(counts[block, group]))


def most_found(params: FitParams) -> int:
    """Return the maximum number of basis rows of a fit without a size."""
    return MOST_USUAL if params.confidence_threshold is None else MOST_FOUND


def check_distinct(run: Run, n_distinct: int) -> None:
    """Check that there are enough distinct rows for the basis."""
    size, whose, more = run.spec.params.basis_size, "X has", ""
    if size is None or n_distinct >= size:
        return
    if has_candidates(run):
        whose, more = "the candidates have", ", or `candidates`=all"
    raise ParameterError(
        f"`basis_size` is {size}, but {whose} only {n_distinct} distinct rows.",
        f"Give a `basis_size` of at most {n_distinct}{more}, in a new fit.",
    )


def requested_size(params: FitParams, dataset: Dataset) -> int | None:
    """Return the requested number of basis rows; None: all that the source finds."""
    if params.basis_size is not None or source_of(params.basis).choose_all is not None:
        return params.basis_size
    share = max(min(_DEFAULT_SIZE, dataset.n_rows // 4), (params.components or 0) + 1)
    return max(dataset.n_classes, min(share, dataset.n_rows))


# Rows that enter the selection at once, 28 MB while they are sorted. With fewer rows the repeated
# sorting of the pool, some ten thousand rows, would take longer than sorting the rows.
SELECTION_ROWS = 2**18

# Bytes of a block of rows while the selection sorts it.
_SELECTION_BYTES = 64 * 2**20


def pool_bytes(n_rows: int, n_classes: int, n_basis: int, n_sampled: int) -> int:
    """Return the peak memory of choosing rows: all class codes, the pool and a block of rows."""
    pool = min(n_rows, n_basis + n_sampled + n_classes**2)
    return n_rows * (1 if n_classes <= 256 else 4) + _SELECTION_BYTES + 128 * pool


def pool_of(blocks: Iterable[RowPool], *, size: int, n_classes: int) -> RowPool:
    """Return the rows of all blocks among which the first `size` rows are chosen."""
    pool = RowPool.none()
    for block in blocks:
        pool = keep_best(pool, block, size=size, n_classes=n_classes)
    return pool


class TableRows(NamedTuple):
    """Rows in memory, in row order; targets are class codes or numbers, numbers those of rows."""

    X: Rows
    targets: NDArray[Any]
    weights: Floats
    numbers: NDArray[np.int64]

    @classmethod
    def drawn(cls, dataset: Dataset, params: FitParams, size: int) -> Self:
        """Return `size` drawn rows of a dataset."""
        rows = drawn_rows(dataset.n_rows, size, params.random_state)
        targets = dataset.take_targets(rows)
        own = dataset.take_weights(rows) if dataset.sample_weights is not None else None
        weights = RowWeights.of(dataset, params).of_rows(targets, own)
        weights = np.ones(len(rows)) if weights is None else weights
        return cls(dataset.take(rows), targets, weights, rows)

    @classmethod
    def read(cls, run: Run, place: str) -> Self:
        """Return rows that `write` has stored; `place` ends with their prefix."""
        return cls._make(run.read(place + name) for name in cls._fields)

    def write(self, group: zarr.Group, prefix: str = "") -> None:
        """Store the rows."""
        for name, values in self._asdict().items():
            write_array(group, prefix + name, values, *("row", "column")[: values.ndim])

    @classmethod
    def joined(cls, pieces: Sequence[Iterable[NDArray[Any]]]) -> Self:
        """Return the rows of several pieces, one after another."""
        return cls._make(np.concatenate(each) for each in zip(*pieces, strict=True))

    def take(self, places: NDArray[Any] | slice) -> Self:
        """Return some of the rows, by their places or bool (n,)."""
        return type(self)(
            self.X[places], self.targets[places], self.weights[places], self.numbers[places]
        )

    def targets_of(self, dataset: Dataset) -> Targets:
        """Return how a network learns the targets of these rows of a dataset."""
        if dataset.of_numbers:
            return NumberTargets(np.median(self.targets, axis=0))
        return ClassTargets(dataset.n_targets)

    def with_basis(
        self,
        basis: Chosen,
        targets: Targets,
        folds: NDArray[np.int64],
        basis_folds: NDArray[np.int64],
    ) -> SmallTable:
        """Return the rows with a basis; all rows decide the widths and clusters too."""
        return SmallTable(
            X=self.X,
            y=self.targets,
            targets=targets,
            weights=self.weights,
            folds=folds,
            basis=basis.values,
            basis_folds=basis_folds,
            block_rows=block_rows(max(1, len(basis.rows))),
        )


def drawn_rows(n_rows: int, size: int, seed: int) -> NDArray[np.int64]:
    """Return the row numbers of `size` drawn rows of `n_rows`, ascending, int64 (size,)."""
    drawn = np.random.default_rng(seed).choice(n_rows, size, replace=False, shuffle=False)
    return np.sort(drawn)


def basis_of_rows(
    run: Run,
    dataset: Dataset,
    rows: TableRows,
    params: FitParams,
    size: int,
    *,
    scaling: Scaling,
    n_all: int,
) -> Chosen:
    """Return a basis of drawn rows, smaller if fewer are distinct.

    The numbers of the rows count the labelled rows; `n_all` rows were drawn from.
    """
    source, y = source_of(params.basis), rows.targets
    if source.sampled is None:
        return source.choose(run, dataset, size, params.basis_rule)
    sampled = SampledRows(
        params=params,
        X=rows.X,
        scaling=scaling,
        codes=y if y.ndim == 1 else np.zeros(len(y), dtype=np.int64),
        n_classes=max(dataset.n_classes, 1),
        numbers=rows.numbers,
        n_all=n_all,
    )
    return source.sampled(sampled, size)
