"""A fit on a dataset and an engine, as its checks see it, and its sizes, as its costs do."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from numpy.typing import ArrayLike

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import NNDESCENT_PROCESS_BYTES, PROCESS_BYTES, process_bytes
from dask_nrbfn.neighbors.exact import buffer_bytes
from dask_nrbfn.neighbors.plan import NeighborSearch, pair_flops, search_dtype
from dask_nrbfn.numeric.distances import basis_bytes, product_flops
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.params import FitLimits, FitParams, TuneParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.bases import (
    LIST_BYTES,
    BasisSource,
    requested_size,
    search_block_rows,
    source_of,
)
from dask_nrbfn.stages.cost import Clock
from dask_nrbfn.stages.resolve import resolve
from dask_nrbfn.storage.array import INDEX_BYTES
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.run import Run


@dataclass(frozen=True, eq=False, kw_only=True)
class FitContext:
    """A fit, a tuning or an embedding, with all that its stages work on."""

    # In a run, narrowed by its finished stages.
    spec: Spec
    dataset: Dataset
    engine: Engine
    # Labelled rows on which networks are compared, instead of folds.
    validation: Dataset | None = None
    # The basis rows (r, p) that the parameters name.
    basis: ArrayLike | None = None
    min_recall: float = FitLimits.min_recall
    layout: PartLayout
    labelled_layout: PartLayout
    # None until it is planned.
    search: NeighborSearch | None = None
    # Number of basis rows that were chosen, or for which costs are computed.
    found_basis: int | None = None
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def resolve(
        cls,
        dataset: Dataset,
        params: FitParams,
        engine: Engine,
        tuning: TuneParams | None = None,
        *,
        validation: Dataset | None = None,
        embeds: bool = False,
        basis: ArrayLike | None = None,
        min_recall: float = FitLimits.min_recall,
    ) -> Self:
        """Return the context of a fit that begins now."""
        if validation is not None and tuning is not None:
            validation = validation.encoded_like(dataset).of_labelled()
        workers: dict[str, Any] = {"n_workers": engine.n_workers, "gpu": engine.device == "gpu"}
        return cls(
            spec=resolve(dataset, params, tuning, validation=validation, embeds=embeds),
            dataset=dataset,
            engine=engine,
            validation=validation,
            basis=basis,
            min_recall=min_recall,
            layout=PartLayout.of(dataset.n_rows, params.n_parts, **workers),
            labelled_layout=PartLayout.of(dataset.of_labelled().n_rows, params.n_parts, **workers),
        )

    def in_run(self, run: Run) -> Self:
        """Return the context with the decisions of a run and of its finished stages."""
        return replace(
            self,
            spec=run.spec,
            layout=run.layout,
            labelled_layout=run.of_labelled().layout,
            search=NeighborSearch(**run.decisions["neighbors"]),
            found_basis=run.stages.get("basis", {}).get("n_basis"),
        )

    @cached_property
    def sizes(self) -> "FitSizes":
        """The sizes of stages that read all rows."""
        return FitSizes.of(self, self.dataset, self.layout)

    @cached_property
    def labelled_sizes(self) -> "FitSizes":
        """The sizes of stages that read the rows with labels."""
        return FitSizes.of(self, self.dataset.of_labelled(), self.labelled_layout)

    @property
    def basis_option(self) -> str:
        """The option that selects a tried basis, by confidence if possible, as ``name=value``."""
        basis = self.spec.confident_basis or self.spec.bases[0]
        return f"`{'basis' if basis == self.spec.params.basis else 'bases'}`={basis}"

    @property
    def requested_size(self) -> int | None:
        """Requested number of basis rows; None: all that the source finds."""
        return requested_size(self.spec.params, self.dataset)

    @property
    def n_basis(self) -> int:
        """Number of basis rows, chosen or requested; if both are unknown, the smallest possible."""
        size = self.requested_size if self.found_basis is None else self.found_basis
        return self.dataset.n_classes if size is None else size


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
    spec: Spec
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
    # The sources of the basis, the values of a basis row, and the BLAS flops that take as long as
    # the distance of a row from it.
    sources: list[BasisSource]
    basis_values: float
    distance_flops: float

    @classmethod
    def of(cls, context: FitContext, dataset: Dataset, layout: PartLayout) -> Self:
        """Return the sizes of stages that read `dataset`; the neighbour search is planned."""
        search, spec = context.search, context.spec
        assert search is not None
        n_judged = (context.validation or dataset).n_rows
        if spec.n_held_out:
            n_judged = -(-n_judged * spec.n_held_out // spec.folds)
        sources = [source_of(name) for name in spec.bases]
        kinds = [kernel_named(name).l1 for name in spec.kernels]
        row_values, p = dataset.row_values, dataset.n_features
        basis_values = row_values if all(source.draws for source in sources) else p
        flops = [product_flops(p, row_values, basis_values, l1=l1) for l1 in kinds]
        return cls(
            dataset=dataset,
            n_judged=n_judged,
            spec=spec,
            search=search,
            layout=layout,
            n=dataset.n_rows,
            p=p,
            K=dataset.n_classes,
            q=dataset.n_targets,
            r=context.n_basis,
            k=spec.params.k,
            row_values=row_values,
            width=dataset.row_width,
            process_bytes=max(
                worker_bytes(search.method),
                process_bytes(l1=any(kinds), gpu=context.engine.device == "gpu"),
            ),
            sources=sources,
            basis_values=basis_values,
            distance_flops=sum(flops) / len(flops),
        )

    @property
    def n_components(self) -> int:
        """Largest number of eigenfunctions of the basis; 0 without eigenfunctions."""
        return min(max(size or 0 for size in self.spec.components), self.r)

    @property
    def n_kept(self) -> int:
        """Number of basis rows that the model keeps."""
        return min(self.spec.params.prune or self.r, self.r)

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
        rows = search_block_rows(self.layout.chunk_rows, self.width, self.spec.params)
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
        basis = self.basis_bytes(self.r, copies=4) if self.spec.n_penalty_axes else 0
        return basis + solve_bytes(
            self.r,
            self.q,
            penalty_axes=self.spec.n_penalty_axes,
            locality=any(self.spec.localities),
            n_components=self.n_components,
        )

    def held(self, *steps: float, reads: bool = True, margin: float = _MARGIN) -> int:
        """Return the peak memory of a worker with steps of these bytes, and with what it reads."""
        reading = self.dataset.reading_bytes if reads else 0
        return self.process_bytes + reading + round((1 + margin) * max(steps, default=0))
