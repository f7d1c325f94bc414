"""Rows drawn at random, at least one of every class."""

from collections.abc import Sequence

import numpy as np

from dask_nrbfn.numeric.confidence import choose_basis
from dask_nrbfn.stages.bases import (
    BasisSource,
    Chosen,
    SampledRows,
    classes_of_pool,
    pool_of,
    rows_by_hash,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run


def _choose(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    pool = pool_of(rows_by_hash(run, dataset), size=size, n_classes=classes_of_pool(dataset))
    rows = choose_basis(pool, size=size, n_classes=classes_of_pool(dataset)).rows
    return Chosen(dataset.take(rows), rows)


def _sampled(rows: SampledRows, asked: Sequence[tuple[int, str]]) -> list[Chosen]:
    return [rows.best(np.zeros(rows.X.shape[0]), size) for size, _ in asked]


SOURCE = BasisSource(
    choose=_choose, sampled=_sampled, described=lambda params, capped, filled: "drawn evenly"
)
