"""The `Stage` interface, and the sizes from which the costs of stages follow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import NNDESCENT_PROCESS_BYTES, PROCESS_BYTES, process_bytes
from dask_nrbfn.neighbors.exact import buffer_bytes
from dask_nrbfn.neighbors.plan import NeighborSearch, pair_flops, search_dtype
from dask_nrbfn.numeric.distances import basis_bytes, product_flops
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.bases import LIST_BYTES, BasisSource, search_block_rows, source_of
from dask_nrbfn.stages.context import FitContext, Trials
from dask_nrbfn.stages.context import StageCost as StageCost
from dask_nrbfn.storage.array import INDEX_BYTES
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.run import Run


@dataclass(frozen=True, eq=False)
class StageJob:
    """The input of a stage whose earlier stages are finished."""

    run: Run
    dataset: Dataset
    engine: Engine
    # Maximum number of basis rows that the workers' memory allows in every stage.
    largest_basis: int = 0
    validation: Dataset | None = None
    # Expected seconds of the stage; seconds that are left to try, if the fit then goes on with so
    # many basis rows.
    needed_s: float = 0.0
    left_s: Callable[..., float] = lambda n_basis=None: math.inf


# Why a tuning tries nothing more.
OVERTIME = "the time limit"

# The bytes that a stage does not count, as a share of those that it states.
_MARGIN = 0.25


def worker_bytes(method: str) -> int:
    """Return the bytes of a worker's process after a neighbour search."""
    return PROCESS_BYTES + (NNDESCENT_PROCESS_BYTES if method == "approximate" else 0)


@dataclass(frozen=True, kw_only=True)
class FitSizes:
    """The sizes of a fit.

    n rows, p features, K classes, q targets, r basis rows, k neighbours; `width` is the number of
    values of a row that distances are computed from, `row_values` the mean number of stored ones.
    """

    # The rows that a stage reads, and the number of those on which penalties are compared.
    dataset: Dataset
    n_judged: int
    tried: Trials
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
    # Bytes of a worker's process that has searched neighbours and computed distances.
    process_bytes: int
    # Folds with separate moments; those held out of a fit that chooses only alpha, else 0; the most
    # ridges tried with the whole basis, 0 without tuning.
    n_folds: int
    n_held_out: int
    n_ridges: int
    penalty_axes: int
    # The sources of the basis, the values of a basis row, and the BLAS flops that take as long as
    # the distance of a row from it.
    sources: list[BasisSource]
    basis_values: float
    distance_flops: float

    @classmethod
    def of(
        cls, context: FitContext, *, n_basis: int | None = None, labelled_only: bool = False
    ) -> Self:
        """Return the sizes of a fit whose neighbour search is planned; by default of its basis."""
        dataset = context.dataset.of_labelled() if labelled_only else context.dataset
        tuning, search, tried = context.tuning, context.search, context.tried
        assert search is not None
        n_judged, n_folds = (context.validation or dataset).n_rows, tuning.n_folds if tuning else 1
        if tuning and tuning.n_held_out:
            n_judged = -(-n_judged * tuning.n_held_out // n_folds)
            n_folds = min(n_folds, tuning.n_held_out + 1)
        sources = [source_of(name) for name in tried.bases]
        kinds = [kernel_named(name).l1 for name in tried.kernels]
        row_values, p = dataset.row_values, dataset.n_features
        basis_values = row_values if all(source.draws for source in sources) else p
        flops = [product_flops(p, row_values, basis_values, l1=l1) for l1 in kinds]
        return cls(
            dataset=dataset,
            n_judged=n_judged,
            tried=tried,
            search=search,
            layout=context.labelled_layout if labelled_only else context.layout,
            n=dataset.n_rows,
            p=p,
            K=dataset.n_classes,
            q=dataset.n_targets,
            r=context.n_basis if n_basis is None else n_basis,
            k=context.params.n_neighbors,
            row_values=row_values,
            width=dataset.row_width,
            process_bytes=max(
                worker_bytes(search.method),
                process_bytes(l1=any(kinds), gpu=context.engine.device == "gpu"),
            ),
            n_folds=n_folds,
            n_held_out=(tuning and tuning.n_held_out) or 0,
            n_ridges=0 if tuning is None else tried.n_ridges,
            penalty_axes=max(penalty_named(name).n_axes for name in tried.all_penalties),
            sources=sources,
            basis_values=basis_values,
            distance_flops=sum(flops) / len(flops),
        )

    @property
    def n_components(self) -> int:
        """Largest number of eigenfunctions of the basis; 0 without eigenfunctions."""
        return min(max(size or 0 for size in self.tried.components), self.r)

    @property
    def n_kept(self) -> int:
        """Number of basis rows that the model keeps."""
        return min(self.tried.params.prune or self.r, self.r)

    @property
    def rows_bytes(self) -> int:
        """Bytes of X as stored."""
        return round(self.n * self.dataset.row_bytes)

    @property
    def block_row_bytes(self) -> float:
        """Bytes of a row in a block."""
        index_bytes = INDEX_BYTES if self.dataset.is_sparse else 0
        return self.row_values * (self.dataset.dtype.itemsize + index_bytes)

    @property
    def pair_flops(self) -> float:
        """Floating-point operations of the product of two rows."""
        return pair_flops(self.p, self.row_values)

    def product_flops(self, n_basis: int) -> float:
        """Return the BLAS flops that take as long as the distances of a row from a basis."""
        return n_basis * self.distance_flops

    def basis_bytes(self, n_basis: int, *, copies: int) -> int:
        """Return the bytes of a basis in float64, of its scaled rows and of its factors."""
        sparse = self.dataset.is_sparse
        return basis_bytes(n_basis, self.p, self.basis_values, copies=copies, of_sparse=sparse)

    def stored_basis_bytes(self, n_basis: int) -> int:
        """Return the bytes of a basis as a model stores it."""
        return basis_bytes(n_basis, self.p, self.basis_values, copies=1, of_sparse=False)

    @property
    def block_rows(self) -> int:
        """Rows of a block of a neighbour search."""
        rows = search_block_rows(self.layout.chunk_rows, self.width, self.tried.params)
        return min(rows, self.layout.part_rows)

    @property
    def search_row_bytes(self) -> int:
        """Bytes of a row as stored, scaled and searched."""
        dtype = self.dataset.dtype
        searched = search_dtype(dtype, self.search.method).itemsize
        return self.width * (2 * dtype.itemsize + 8 + 2 * searched)

    def exact_search_bytes(self, n_targets: int) -> int:
        """Return the bytes of an exact search of `n_targets` rows in a block of rows."""
        lists = n_targets * (8 * self.width + 6 * LIST_BYTES * (self.k + 1))
        buffers = buffer_bytes(self.width, self.k, threads=self.search.threads)
        return lists + buffers + self.block_rows * self.search_row_bytes

    @property
    def lists_bytes(self) -> int:
        """Bytes of all neighbour lists."""
        return LIST_BYTES * (self.search.n_candidates or self.n) * self.k

    @property
    def solve_bytes(self) -> int:
        """Bytes of a solve, with the basis if the penalty needs the basis."""
        basis = self.basis_bytes(self.r, copies=4) if self.penalty_axes else 0
        return basis + solve_bytes(
            self.r,
            self.q,
            penalty_axes=self.penalty_axes,
            locality=any(self.tried.localities),
            n_components=self.n_components,
        )

    def held(self, *steps: float, reads: bool = True, margin: float = _MARGIN) -> int:
        """Return the peak memory of a worker with steps of these bytes, and with what it reads."""
        reading = self.dataset.reading_bytes if reads else 0
        return self.process_bytes + reading + round((1 + margin) * max(steps, default=0))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of a fit: it reads arrays of earlier stages and stores its own."""

    # Name of its group in the run, of its parts, and of its line in a plan and in the log.
    name: str
    # Stores the arrays of the stage, and returns its record: JSON values that the run keeps.
    compute: Callable[[StageJob], dict[str, Any]]
    cost: Callable[[FitSizes], StageCost]
    wanted: Callable[[Trials], bool] = lambda tried: True
    # Raises an error if a fit with the stage cannot succeed; reads no rows.
    check: Callable[[FitContext], None] = lambda context: None
    labelled_only: bool = False
    # Whether its memory grows with the basis; if not, what to change if it does not fit.
    grows_with_basis: bool = False
    remedy: Callable[[FitParams], str] = lambda params: "Ingest with a smaller `chunk_rows`"
    # Whether its parts are kept until the fit ends: because later stages read the parts, or so that
    # a damaged chunk of a result with a value for every row needs only one part again.
    keeps_parts: bool = False
    # The arrays of a finished run that are read again at the end, and computed again if damaged.
    leaves: Callable[[Run], tuple[str, ...]] = lambda run: ()
    # Groups that are deleted after the stage; a name that ends with "-" is a prefix of groups.
    scratch: tuple[str, ...] = ()

    def cost_in(self, context: FitContext) -> StageCost:
        """Return the cost of the stage in a fit whose neighbour search is planned."""
        return self.cost(FitSizes.of(context, labelled_only=self.labelled_only))

    def recorded(self, run: Run) -> SimpleNamespace:
        """Return the record of this stage in a run that has finished the stage."""
        return SimpleNamespace(**run.stages[self.name])


def known(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, for a record."""
    return {name: value for name, value in values.items() if value is not None}


def in_words(figures: Mapping[str, Any]) -> str:
    """Return the figures that are not None, rounded: "error rate 0.2174, r2 0.7681 0.3"."""
    texts = []
    for name, value in known(**figures).items():
        many = value if isinstance(value, list) else [value]
        shown = (f"{each:.4g}" if isinstance(each, float) else str(each) for each in many)
        texts.append(" ".join((name.replace("_", " "), *shown)))
    return ", ".join(texts)
