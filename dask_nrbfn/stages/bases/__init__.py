"""Sources of a basis, of rows or centres, and the pools of rows that they choose from.

Each choice of the parameter `basis` is a `BasisSource` with a line in `dask_nrbfn.choices`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.choices import BASES
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.confidence import (
    LEAST_OF_CLASS,
    RowPool,
    choose_basis,
    even_below,
    keep_best,
)
from dask_nrbfn.numeric.hashing import hash_numbers, hash_rows
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.neighbor_search import has_candidates, of_searched, searched_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import narrow_block_rows
from dask_nrbfn.storage.run import Run

# Basis rows of a fit that gives no size, where the source has none of its own.
_MOST_UNASKED = 1000

# And where it takes all that it finds: noisy labels would leave no end of them. The largest basis
# of hu-nrbfn, of MNIST, has 8,787.
MOST_FOUND = 10_000

# Rows of a sample that have a confidence, all of them compared with each other: seconds.
MOST_SCORED = 20_000

# Rows among which a basis of a given size is looked for: with fewer the least confident of them
# were less near the borders.
_CANDIDATES_OF_BASIS_ROW, _LEAST_CANDIDATES = 20, 50_000


class Chosen(NamedTuple):
    """A basis.

    Attributes
    ----------
    values : floating (r, p), or in CSR
        As in the dataset, not scaled.
    rows : int64 (r,)
        Their numbers; -1 for what is no row of the dataset.
    n_beyond : int
        How many of them are not below the threshold of confidence.
    capped : bool
        Whether there would have been more.
    """

    values: Rows
    rows: NDArray[np.int64]
    n_beyond: int = 0
    capped: bool = False

    @classmethod
    def of_points(cls, values: NDArray[Any]) -> Self:
        """Return a basis of what are no rows of the dataset."""
        return cls(values, np.full(len(values), -1))


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows in memory, among which a basis is chosen for networks that are tried.

    Attributes
    ----------
    params : FitParams
    X : (n, p)
        As in the dataset.
    scaling : Scaling
    codes : integer (n,)
        Classes; -1 without a label, 0 where targets are numbers.
    n_classes : int
        Of which each gives at least a row.
    numbers : int64 (n,)
        Which rows of the dataset they are.
    n_all : int
        Of how many rows they are a sample.
    """

    params: FitParams
    X: Rows
    scaling: Scaling
    codes: NDArray[np.integer]
    n_classes: int
    numbers: NDArray[np.int64]
    n_all: int

    @property
    def scaled(self) -> Rows:
        """The rows as distances are taken between them, float64 (n, p)."""
        return self.scaling.apply(self.X)

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """Hash of each row's values, uint64 (n,)."""
        return hash_rows(self.X, seed=self.params.random_state)

    def first(self, size: int) -> Self:
        """Return a draw of the rows, at most so many."""
        rows = np.argsort(hash_numbers(self.numbers, seed=self.params.random_state))[:size]
        return replace(
            self,
            X=self.X[rows],
            codes=self.codes[rows],
            numbers=self.numbers[rows],
        )

    def best(self, priority: Floats, size: int) -> Chosen:
        """Return a basis of a size, of the rows of the least priority."""
        rows = np.arange(self.X.shape[0])
        pool = RowPool(priority, self.hashes, self.codes, rows)
        places = choose_basis(pool, size=size, n_classes=self.n_classes).rows
        return Chosen(self.X[places], self.numbers[places])


def _no_sample(n_rows: int, row_values: float, n_basis: int) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class BasisSource:
    """Where a basis comes from.

    Attributes
    ----------
    choose : callable
        Takes the run, the dataset, a number of basis rows and a `basis_rule`, returns `Chosen`: so
        many, or as many distinct ones as there are.
    sampled : callable or None
        Takes `SampledRows`, a number of basis rows and a `basis_rule`, returns `Chosen`: a basis
        like that of the whole dataset, at most so many. None: `choose` needs no rows.
    choose_all : callable or None
        Takes the run, the dataset and the most basis rows, returns those of a fit that gives no
        `basis_size`. None: such a fit has those that `asked_size` returns.
    described : callable
        Takes the parameters of the fit and whether the basis was capped, returns what a report says
        of its rows.
    by_confidence : bool
        Whether it asks for the confidence of rows, which only labels have.
    draws : bool
        Whether it has rows of the dataset, which are in CSR if those are, and no others.
    n_sampled : callable
        Takes the number of rows, stored values of a row and basis rows, returns of how many rows it
        holds a sample.
    """

    choose: Callable[[Run, Dataset, int, str], Chosen]
    sampled: Callable[[SampledRows, int, str], Chosen] | None = None
    choose_all: Callable[[Run, Dataset, int], Chosen] | None = None
    described: Callable[[FitParams, bool], str]
    by_confidence: bool = False
    draws: bool = True
    n_sampled: Callable[[int, float, int], int] = _no_sample


def _given(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    """Return the rows that were handed to the fit, or a draw of them."""
    values = run.read("given/values")
    if size < len(values):
        values = values[
            np.random.default_rng(run.chosen_params.random_state).permutation(len(values))
        ]
    return Chosen.of_points(values[:size])


_GIVEN = BasisSource(choose=_given, described=lambda params, capped: "given", draws=False)


def source_of(params: FitParams) -> BasisSource:
    """Return where the basis of a fit comes from."""
    source: BasisSource = _GIVEN if params.basis_is_given else BASES[params.basis]
    return source


def asked_candidates(params: FitParams, dataset: Dataset) -> int | None:
    """Return among how many rows with labels a basis by confidence is looked for; None: all."""
    n_rows, asked = dataset.of_labelled().n_rows, params.candidates
    if asked == "auto" and params.basis_size is not None:
        wanted = max(_CANDIDATES_OF_BASIS_ROW * params.basis_size, _LEAST_CANDIDATES)
        # Most of the rows are found no sooner than all of them.
        asked = wanted if wanted <= n_rows // 2 else "all"
    return asked if isinstance(asked, int) and asked < n_rows else None


def check_distinct(run: Run, n_distinct: int) -> None:
    """Raise ParameterError if the rows to choose from have fewer distinct ones than the basis."""
    size, whose, more = run.chosen_params.basis_size, "X has", ""
    if size is None or n_distinct >= size:
        return
    if has_candidates(run):
        whose, more = "the candidates have", ", or `candidates`=all in a new run"
    raise ParameterError(
        f"`basis_size` is {size}, {whose} {n_distinct} distinct rows.",
        f"Give `basis_size` of at most {n_distinct}{more}; equal rows enter the basis once.",
    )


def asked_size(params: FitParams, dataset: Dataset) -> int | None:
    """Return how many basis rows a fit asks for, as far as they are distinct.

    None: all that its source finds.
    """
    if params.basis_size is not None or source_of(params).choose_all is not None:
        return params.basis_size
    share = max(min(_MOST_UNASKED, dataset.n_rows // 4), (params.components or 0) + 1)
    return max(dataset.n_classes, min(share, dataset.n_rows))


# Rows that enter the selection at once, 28 MB while they are sorted. With fewer, sorting the pool,
# some ten thousand rows, again and again would take longer than sorting the rows.
_SELECTION_ROWS = 2**18

# A block of rows while the selection sorts it.
_SELECTION_BYTES = 64 * 2**20


def pool_by_confidence(run: Run, size: int, rule: str, *, n_classes: int) -> RowPool:
    """Return the candidates for `size` basis rows by confidence, as a `basis_rule` orders them."""
    return _best(_by_confidence(run, rule), size=size, n_classes=n_classes)


def pool_alike(run: Run, dataset: Dataset, size: int) -> RowPool:
    """Return the candidates for `size` basis rows where the hash of their values decides."""
    return _best(_alike(run, dataset), size=size, n_classes=classes_of_pool(dataset))


def pool_drawn(run: Run, dataset: Dataset, size: int) -> RowPool:
    """Return the rows among which `size` are drawn, by the hash of their numbers."""
    return _best(_by_number(run, dataset), size=size, n_classes=LEAST_OF_CLASS)


def classes_of_pool(dataset: Dataset) -> int:
    """Return of how many classes rows are chosen; rows with numbers as targets are all alike."""
    return max(dataset.n_classes, 1)


def pool_bytes(n_rows: int, n_classes: int, n_basis: int, n_sampled: int) -> int:
    """Return the bytes of choosing rows: the codes of all, the candidates, and a block of rows."""
    pool = min(n_rows, n_basis + n_sampled + n_classes**2)
    return n_rows * (1 if n_classes <= 256 else 4) + _SELECTION_BYTES + 128 * pool


def _best(blocks: Iterable[RowPool], *, size: int, n_classes: int) -> RowPool:
    pool = RowPool.none()
    for block in blocks:
        pool = keep_best(pool, block, size=size, n_classes=n_classes)
    return pool


def _by_confidence(run: Run, rule: str) -> Iterator[RowPool]:
    run, threshold = of_searched(run), run.chosen_params.confidence_threshold
    codes, rows = run.read("confidence/codes"), searched_rows(run)
    codes = codes if rows is None else codes[rows]
    step = run.chunk_rows * max(1, _SELECTION_ROWS // run.chunk_rows)
    for start in range(0, run.n_rows, step):
        stop = min(start + step, run.n_rows)
        priority = run.read("confidence/values", start, stop)
        if rule == "uniform":
            priority = even_below(priority, threshold=threshold)
        tiebreak = run.read("confidence/tiebreak", start, stop)
        yield RowPool(priority, tiebreak, codes[start:stop], np.arange(start, stop))


def _by_number(run: Run, dataset: Dataset) -> Iterator[RowPool]:
    codes = dataset.codes()
    for start in range(0, len(codes), _SELECTION_ROWS):
        rows = np.arange(start, min(start + _SELECTION_ROWS, len(codes)))
        hashes = hash_numbers(rows, seed=run.chosen_params.random_state)
        yield RowPool(np.zeros(len(rows)), hashes, codes[rows], rows)


def _alike(run: Run, dataset: Dataset) -> Iterator[RowPool]:
    start, seed = 0, run.chosen_params.random_state
    for X, codes, _ in dataset.blocks(0, run.n_rows, narrow_block_rows(dataset.row_values)):
        if codes is None or dataset.of_numbers:
            codes = np.zeros(X.shape[0], dtype=np.int64)
        rows = np.arange(start, start + X.shape[0])
        yield RowPool(np.zeros(X.shape[0]), hash_rows(X, seed=seed), codes, rows)
        start += X.shape[0]
