"""The sizes of a fit, from which the costs of its stages follow."""

from dataclasses import dataclass, replace
from typing import Self

from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.neighbors.exact import buffer_bytes
from dask_nrbfn.neighbors.plan import NeighborSearch, pair_flops, search_dtype
from dask_nrbfn.numeric.distances import basis_bytes, product_flops
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.bases import asked_size, source_of
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.neighbor_search import LIST_BYTES, search_block_rows, worker_bytes
from dask_nrbfn.stages.trials import Trials
from dask_nrbfn.storage.array import INDEX_BYTES
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout


@dataclass(frozen=True, kw_only=True)
class FitSizes:
    """The sizes of a fit.

    dataset: the rows that a stage reads.
    judged: the rows on which penalties are compared.
    params, tuning, search: as in `FitContext`; the search is planned.
    n, p, K, q, r, k: rows, features, classes, targets, basis rows, neighbours.
    row_values: mean number of stored values of a row; p for rows in arrays.
    n_labelled: labelled rows if other rows have no label; 0 if all rows have one.
    itemsize, search_itemsize: bytes of a value as stored and as searched.
    block_rows: rows of a block that is divided into partitions at once.
    by_confidence: whether the neighbours of all rows are searched.
    n_folds, n_penalties, n_ridges: numbers of folds with separate moments and of penalties, and the
        maximum number of ridges tried with the whole basis; 1, 1 and 0 without tuning.
    penalty_axes: see `Penalty`; the maximum of all penalties.
    asked_components: largest requested number of eigenfunctions; 0 without eigenfunctions.
    n_basis_sample: rows of the sample that the source of the basis holds in memory.
    draws: whether all bases consist of rows of the dataset.
    """

    dataset: Dataset
    judged: Dataset
    params: FitParams
    tuning: TuneParams | None
    search: NeighborSearch
    layout: PartLayout
    n: int
    p: int
    K: int
    q: int
    r: int
    k: int
    row_values: float
    width: int
    n_labelled: int
    itemsize: int
    search_itemsize: int
    reading_bytes: int
    block_rows: int
    by_confidence: bool
    n_folds: int
    n_penalties: int
    n_ridges: int
    penalty_axes: int
    asked_components: int
    has_locality: bool
    n_basis_sample: int
    draws: bool

    @classmethod
    def of(
        cls,
        context: FitContext,
        *,
        n_basis: int | None = None,
        labelled_only: bool = False,
    ) -> Self:
        """Return the sizes of a fit whose neighbour search is planned; by default of its basis."""
        dataset = context.dataset.of_labelled() if labelled_only else context.dataset
        params, tuning, search = context.params, context.tuning, context.search
        assert search is not None
        tried = Trials(params, tuning)
        penalties, components = tried.asked_penalties, tried.components
        sources = [source_of(replace(params, basis=name)) for name in tried.bases]
        layout = context.labelled_layout if labelled_only else context.layout
        block_rows = search_block_rows(layout.chunk_rows, dataset.row_width, params)
        asked = asked_size(params, dataset) or 0
        return cls(
            dataset=dataset,
            judged=context.validation or dataset,
            params=params,
            tuning=tuning,
            search=search,
            layout=layout,
            n=dataset.n_rows,
            p=dataset.n_features,
            K=dataset.n_classes,
            q=dataset.n_targets,
            r=context.n_basis if n_basis is None else n_basis,
            k=params.n_neighbors,
            row_values=dataset.row_values,
            width=dataset.row_width,
            n_labelled=dataset.of_labelled().n_rows if dataset.n_unlabelled else 0,
            itemsize=dataset.dtype.itemsize,
            search_itemsize=search_dtype(dataset.dtype, search.method).itemsize,
            reading_bytes=dataset.reading_bytes,
            block_rows=min(block_rows, layout.part_rows),
            by_confidence=source_of(context.needing_confidence).by_confidence
            and search.n_candidates is None
            and not dataset.n_unlabelled,
            n_folds=1 if tuning is None else tuning.n_folds,
            n_penalties=len(penalties),
            n_ridges=0 if tuning is None else tried.n_ridges,
            penalty_axes=max(penalty_named(name).n_axes for name in penalties),
            asked_components=max(size or 0 for size in components),
            has_locality=any(tried.localities),
            n_basis_sample=max(
                source.n_sampled(dataset.n_rows, dataset.row_values, asked) for source in sources
            ),
            draws=all(source.draws for source in sources),
        )

    @property
    def n_components(self) -> int:
        """Largest number of eigenfunctions of the basis; 0 without eigenfunctions."""
        return min(self.asked_components, self.r)

    @property
    def n_kept(self) -> int:
        """Number of basis rows that the model keeps."""
        return min(self.params.prune or self.r, self.r)

    @property
    def n_parts(self) -> int:
        """Number of parts of a pass."""
        return len(self.layout.spans)

    @property
    def rows_bytes(self) -> int:
        """Bytes of X as stored."""
        return round(self.n * self.dataset.row_bytes)

    @property
    def pair_flops(self) -> float:
        """Floating-point operations of the product of two rows."""
        return pair_flops(self.p, self.row_values)

    def product_flops(self, n_basis: int) -> float:
        """Return the BLAS flops that take as long as the distances of a row from a basis.

        If several kernels are tried, the mean of all.
        """
        kernels = [kernel_named(name) for name in Trials(self.params, self.tuning).kernels]
        flops = sum(
            product_flops(self.p, self.row_values, self._basis_values, l1=each.l1)
            for each in kernels
        )
        return n_basis * flops / len(kernels)

    def basis_bytes(self, n_basis: int, *, copies: int) -> int:
        """Return the bytes of a basis in float64, of its scaled rows and of its factors."""
        values = self._basis_values
        return basis_bytes(n_basis, self.p, values, copies=copies, of_sparse=self.dataset.is_sparse)

    def stored_basis_bytes(self, n_basis: int) -> int:
        """Return the bytes of a basis as a model stores it."""
        values = self._basis_values
        return basis_bytes(n_basis, self.p, values, copies=1, of_sparse=False)

    @property
    def block_row_bytes(self) -> float:
        """Bytes of a row in a block."""
        return self.row_values * (self.itemsize + (INDEX_BYTES if self.dataset.is_sparse else 0))

    @property
    def _basis_values(self) -> float:
        return self.row_values if self.draws else self.p

    def exact_search_bytes(self, n_targets: int) -> int:
        """Return the bytes that a task of an exact search of `n_targets` rows holds.

        The task holds the targets, the best neighbours so far, the neighbours in a block and the
        buffers of the search.
        """
        lists = n_targets * (8 * self.width + 3 * 2 * LIST_BYTES * (self.k + 1))
        return lists + buffer_bytes(self.width, self.k, threads=self.search.threads)

    @property
    def searched_block_bytes(self) -> int:
        """Bytes of a block of rows as stored, scaled and searched."""
        return self.block_rows * self.width * (2 * self.itemsize + 8 + 2 * self.search_itemsize)

    @property
    def n_searched(self) -> int:
        """Number of rows whose neighbours are searched."""
        return self.n if self.search.n_candidates is None else self.search.n_candidates

    @property
    def lists_bytes(self) -> int:
        """Bytes of all neighbour lists."""
        return LIST_BYTES * self.n_searched * self.k

    @property
    def solve_bytes(self) -> int:
        """Bytes of a solve, with the basis if the penalty needs the basis."""
        basis = self.basis_bytes(self.r, copies=4) if self.penalty_axes else 0
        return basis + solve_bytes(
            self.r,
            self.q,
            penalty_axes=self.penalty_axes,
            locality=self.has_locality,
            n_components=self.n_components,
        )

    @property
    def process_bytes(self) -> int:
        """Bytes of an idle worker that has searched neighbours, and computed l1 distances."""
        own = worker_bytes(self.search.method)
        kernels = Trials(self.params, self.tuning).kernels
        return max(own, *(process_bytes(l1=kernel_named(each).l1) for each in kernels))

    @property
    def reader_bytes(self) -> int:
        """Bytes of a worker that reads rows: its process and the chunks."""
        return self.process_bytes + self.reading_bytes
