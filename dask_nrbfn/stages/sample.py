"""A sample of the rows in memory, on which small networks are tried and compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.numeric.folds import folds_of_rows, places_among
from dask_nrbfn.numeric.held_out import HeldOutSums, JudgedSums, ResidualSums
from dask_nrbfn.numeric.ridge import Each
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.small_fit import Entry, SmallNetwork, SmallTable, try_networks
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.threads import beside_bytes, beside_first, blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.bases import Chosen, SampledRows, classes_of_pool, source_of
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.trials import Trials
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import RowWeights

# Held-out rows that are enough to compare networks. Fewer folds of a larger sample are held out.
_JUDGED_ROWS = 10_000

# Prefix of the arrays with rows that are drawn from all rows, with or without labels.
ALL = "all_"


def write_rows(
    group: zarr.Group, prefix: str, dataset: Dataset, params: FitParams, size: int
) -> NDArray[np.int64]:
    """Store `size` drawn rows of a dataset; return their row numbers, int64 (size,)."""
    rows = drawn_rows(dataset.n_rows, size, params.random_state)
    numbers = dataset.of_numbers
    targets = dataset.take_targets(rows) if numbers else dataset.codes()[rows].astype(np.int64)
    own = dataset.take_weights(rows) if dataset.has_weights else None
    weights = RowWeights.of(dataset, params).of_rows(targets, own)
    columns = {
        "rows": rows,
        "X": dataset.take(rows),
        "targets": targets,
        "weights": np.ones(len(rows)) if weights is None else weights,
    }
    for name, values in columns.items():
        write_array(group, prefix + name, values, *("row", "column")[: values.ndim])
    return rows


def drawn_rows(n_rows: int, size: int, seed: int) -> NDArray[np.int64]:
    """Return the row numbers of `size` drawn rows of `n_rows`, ascending, int64 (size,)."""
    if size == n_rows:
        return np.arange(n_rows)
    drawn = np.random.default_rng(seed).choice(n_rows, size, replace=False, shuffle=False)
    return np.sort(drawn)


def read_sample(run: Run, stage: str, basis: Chosen, *, n_folds: int, n_targets: int) -> SmallTable:
    """Return the sample that a stage has stored, with a basis of some of its rows."""
    names = ("X", "targets", "weights", "rows")
    X, y, weights, rows = (run.read(f"{stage}/{name}") for name in names)
    targets = ClassTargets(n_targets) if y.ndim == 1 else NumberTargets(np.median(y, axis=0))
    seed = run.chosen_params.random_state
    folds = folds_of_rows(0, X.shape[0], n_folds=n_folds, seed=seed)
    places = places_among(rows, basis.rows)
    of_basis = np.where(places < 0, -1, folds[places])
    table = small_table(X, y, weights, targets, folds, basis.values, of_basis)
    if not run.has(f"{stage}/{ALL}X"):
        return table
    spread, spread_weights = (run.read(f"{stage}/{ALL}{name}") for name in ("X", "weights"))
    return replace(table, spread=spread, spread_weights=spread_weights)


def small_table(
    X: Rows,
    y: NDArray[Any],
    weights: Floats,
    targets: Targets,
    folds: NDArray[np.int64],
    basis: Rows,
    basis_folds: NDArray[np.int64],
) -> SmallTable:
    """Return rows in memory, all of which decide the widths and clusters too."""
    return SmallTable(
        X=X,
        y=y,
        targets=targets,
        weights=weights,
        folds=folds,
        basis=basis,
        basis_folds=basis_folds,
        spread=X,
        spread_weights=weights,
        block_rows=block_rows(basis.shape[0]),
    )


def bases_of_sample(
    run: Run, dataset: Dataset, stage: str, params: FitParams, asked: Sequence[tuple[int, str]]
) -> list[Chosen]:
    """Return bases of a stored sample, with fewer rows where fewer are distinct."""
    source = source_of(params)
    if source.sampled is None:
        return [source.choose(run, dataset, *each) for each in asked]
    return source.sampled(_sampled_rows(run, dataset, stage, params), asked)


def _sampled_rows(run: Run, dataset: Dataset, stage: str, params: FitParams) -> SampledRows:
    """Return the rows of the sample for a basis; numbers count the rows with labels."""
    labelled = dataset.of_labelled()
    of_all = dataset.n_unlabelled and not source_of(params).by_confidence
    prefix = f"{stage}/{ALL if of_all else ''}"
    X, targets, numbers = (run.read(prefix + name) for name in ("X", "targets", "rows"))
    if of_all:
        numbers = places_among(dataset.labelled_rows(), numbers)
    return SampledRows(
        params=params,
        X=X,
        scaling=read_scaling(run, params.scale),
        codes=targets if targets.ndim == 1 else np.zeros(X.shape[0], dtype=np.int64),
        n_classes=classes_of_pool(dataset),
        numbers=numbers,
        n_all=(dataset if of_all else labelled).n_rows,
    )


def n_judged_folds(n_rows: int, n_folds: int) -> int:
    """Return the number of folds of a sample that are held out."""
    return min(n_folds, -(-n_folds * _JUDGED_ROWS // n_rows))


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """The losses (2, n) of held-out rows, see `JudgedSums.losses`, and their shares (n,)."""

    losses: Floats
    shares: Floats

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.losses[0] @ self.shares)

    @property
    def smooth(self) -> float:
        """The mean smooth loss."""
        return float(self.losses[1] @ self.shares)

    def gains_over(self, other: "JudgedRows") -> tuple[Floats, Floats]:
        """Return by how much both mean losses (2,) are less than those of another network."""
        less = other.losses - self.losses
        gains = less @ self.shares
        # For n equal weights this is the unbiased variance, with the divisor n - 1.
        unbiased = math.sqrt(max(1.0 - float(self.shares @ self.shares), 0.0)) or 1.0
        return gains, np.linalg.norm(self.shares * (less - gains[:, None]), axis=1) / unbiased


def network_of(params: FitParams, tuning: TuneParams) -> SmallNetwork:
    """Return the network of `params`, with the ridges of a tuning but without locality."""
    return SmallNetwork(
        params.kernel,
        params.width_factor,
        params.normalized,
        tuple(Trials(params, replace(tuning, localities=(0.0,))).ridges),
    )


def judged_sums(dataset: Dataset) -> type[JudgedSums]:
    """Return the class that sums errors on held-out rows of a sample."""
    return ResidualSums if dataset.of_numbers else HeldOutSums


def try_side_by_side(
    sample: SmallTable,
    scaling: Scaling,
    networks: Sequence[SmallNetwork],
    *,
    held_out: Sequence[int],
    **options: Any,
) -> list[Entry]:
    """Return the result of `try_networks`; some networks are tried at the same time."""
    n_ridges = max(len(each.ridges) for each in networks)
    each = trying_side_by_side(sample, n_held_out=len(held_out), n_ridges=n_ridges)
    threads = blas_threads()
    return try_networks(
        sample, scaling, networks, held_out=held_out, each=each, threads=threads, **options
    )


def trying_side_by_side(sample: SmallTable, *, n_held_out: int, n_ridges: int) -> Each:
    """Return a function that tries networks of a sample, some at the same time."""
    r, q = sample.basis.shape[0], sample.targets.n_targets
    own = tried_bytes(r, q, n_held_out=n_held_out, n_ridges=n_ridges)
    return beside_first(own)


def tried_bytes(n_basis: int, n_targets: int, *, n_held_out: int, n_ridges: int) -> int:
    """Return the bytes of a tried network: sums, systems, activations, weights and scores."""
    scores, rows = n_ridges * n_targets, block_rows(n_basis)
    return 8 * (
        (n_held_out + 7) * n_basis**2
        + rows * n_basis
        + 2 * max(n_held_out, 1) * scores * n_basis
        + 4 * rows * scores
    )


def trying_bytes(n_networks: int, bytes_of_one: int) -> int:
    """Return the peak bytes of networks that are tried side by side."""
    return bytes_of_one + beside_bytes(n_networks, bytes_of_one)
