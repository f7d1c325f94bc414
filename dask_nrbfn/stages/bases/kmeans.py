"""The centres of k-means clusters of a sample."""

from collections.abc import Sequence

import numpy as np
import sklearn.metrics  # noqa: F401  first, as in `cluster_means`
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import ThreadpoolController

from dask_nrbfn.numeric.rows import Rows, mean_values
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.stages.bases import (
    BasisSource,
    Chosen,
    SampledRows,
    classes_of_pool,
    pool_of,
    rows_by_hash,
)
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

# Rows of one step of k-means.
_BATCH_ROWS = 4096

# Rows of the sample for each centre, and its most elements: 256 MiB of float64.
_ROWS_PER_CENTRE = 64
_SAMPLE_ELEMENTS = 2**25


def _choose(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    """Return the centres, float64, not scaled.

    The sample is drawn and ordered by hashes of the rows, so it does not depend on their order.
    """
    n_sampled = _n_sampled(dataset.n_rows, dataset.row_values, size)
    pool = pool_of(rows_by_hash(run, dataset), size=n_sampled, n_classes=classes_of_pool(dataset))
    # Rows are read in row order and clustered in the order of their hashes.
    rows = pool.rows[np.argsort(pool.tiebreak)][:n_sampled]
    by_number = np.argsort(rows)
    scaling = read_scaling(run)
    scaled = scaling.apply(dataset.take(rows[by_number]))[np.argsort(by_number)]
    centres = _centres(scaled, min(size, pool.n_distinct), run.chosen_params.random_state)
    return Chosen.of_points(scaling.restore(centres))


def _sampled(rows: SampledRows, asked: Sequence[tuple[int, str]]) -> list[Chosen]:
    return [_centred(rows, size) for size, _ in asked]


def _centred(rows: SampledRows, size: int) -> Chosen:
    hashes = rows.hashes
    order = np.argsort(hashes)[: _n_sampled(rows.X.shape[0], mean_values(rows.X), size)]
    n_distinct = len(np.unique(hashes[order]))
    centres = _centres(rows.scaled[order], min(size, n_distinct), rows.params.random_state)
    return Chosen.of_points(rows.scaling.restore(centres))


def _centres(scaled: Rows, size: int, seed: int) -> Floats:
    means = MiniBatchKMeans(n_clusters=size, batch_size=_BATCH_ROWS, n_init=1, random_state=seed)
    # Sums over several threads differ in their last bits, which can end the iterations earlier.
    with ThreadpoolController().select(user_api="openmp").limit(limits=blas_threads()):
        return np.asarray(means.fit(scaled).cluster_centers_, dtype=np.float64)


def _n_sampled(n_rows: int, row_values: float, n_basis: int) -> int:
    most = min(_ROWS_PER_CENTRE * n_basis, int(_SAMPLE_ELEMENTS / max(row_values, 1.0)))
    return min(n_rows, max(n_basis, most))


SOURCE = BasisSource(
    choose=_choose,
    sampled=_sampled,
    described=lambda params, capped, filled: "k-means centres",
    draws=False,
    n_sampled=_n_sampled,
)
