"""The neighbours of drawn rows, the candidates, among all rows."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import plural
from dask_nrbfn.neighbors.exact import find_repeats
from dask_nrbfn.neighbors.inverted import CandidateSearch, InvertedFile, NearestRows, bounds_of
from dask_nrbfn.neighbors.lists import MISSING
from dask_nrbfn.neighbors.plan import bounding_rows
from dask_nrbfn.numeric.confidence import choose_candidates
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import (
    PartResult,
    Reduction,
    Sums,
    map_parts,
    read_total,
    reduce_parts,
    run_task,
)
from dask_nrbfn.stages.bases import check_distinct, pool_drawn
from dask_nrbfn.stages.exact_search import SearchSpace, repair_lists
from dask_nrbfn.stages.neighbor_search import (
    of_searched,
    search_block_rows,
)
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

logger = logging.getLogger(__name__)

# Candidates of a part: some seconds of work, and still many of each partition in a product.
_PART_CANDIDATES = 12_500


def search_candidates(
    run: Run, dataset: Dataset, engine: Engine, *, n_partitions: int
) -> dict[str, Any]:
    """Store the neighbours of the candidates, and the row numbers of the candidates.

    With one partition every candidate is compared with every row. Otherwise a row belongs to the
    nearest partition, and a candidate is compared with several partitions. Only lists are written:
    each part writes the neighbours among its rows, and the lists are merged like sums.
    """
    n_candidates = of_searched(run).n_rows
    if not all(map(run.has, ("partitions/sample", "neighbors/rows", "neighbors/hashes"))):
        run.drop("partitions")
        run.drop("candidates")
        arguments = (run, dataset, n_candidates, n_partitions)
        run_task(engine, _place_candidates, *arguments, label="candidates")
    units = PartLayout(n_candidates, _PART_CANDIDATES, _PART_CANDIDATES).spans
    map_parts(run, dataset, engine, stage="candidates", task=_bound_span, units=units)
    reduction = Reduction("neighbors", _CandidatesPass, {"": NearestRows}, run.layout)
    reduce_parts(run, dataset, engine, reduction)
    found = run_task(engine, _store_lists, run, reduction, label="neighbors")
    n_probes = found["n_probes"]
    partitions = plural(n_probes, "partition")
    logger.info("neighbors: %d candidates searched %s", n_candidates, partitions)
    repaired = repair_lists(
        run,
        dataset,
        engine,
        rows=found["rows"],
        remedy="Lower `n_partitions`, or give `neighbors`=exact, in a new run.",
    )
    return {
        "n_repaired": repaired["n_rows"],
        "n_probes": n_probes,
        "distance_sum": found["distance_sum"] + repaired["distance_sum"],
    }


def _place_candidates(run: Run, dataset: Dataset, n_candidates: int, n_partitions: int) -> None:
    """Draw candidates, and place partitions by a sample."""
    k, seed = run.chosen_params.n_neighbors, run.chosen_params.random_state
    drawn = choose_candidates(pool_drawn(run, dataset, n_candidates), size=n_candidates)
    size = bounding_rows(run.n_rows, dataset.row_width, k)
    rng = np.random.default_rng([seed, 0])
    sampled = np.sort(rng.choice(run.n_rows, size, replace=False))
    # Both are read at once.
    rows = np.union1d(drawn, sampled)
    X = dataset.take(rows)
    hashes = hash_rows(X[np.searchsorted(rows, drawn)], seed=seed)
    check_distinct(run, len(np.unique(hashes)))
    values = SearchSpace.of(run, dataset).apply(X)
    # Shuffled, because the first rows are used as a sample of all.
    sample = values[rng.permutation(np.searchsorted(rows, sampled))]
    sample = sample[_without_copies(sample, run.chosen_params)]
    file = InvertedFile.of(
        values[np.searchsorted(rows, drawn)],
        sample,
        n_partitions=n_partitions,
        n_neighbors=k,
        seed=seed,
        threads=blas_threads(),
    )
    group = run.group("neighbors")
    write_array(group, "rows", drawn, "candidate")
    write_array(group, "hashes", hashes, "candidate")
    group = run.group("partitions")
    write_array(group, "candidates", file.candidates, "candidate", "feature")
    write_array(group, "centroids", file.centroids, "partition", "feature")
    write_array(group, "probes", file.probes, "eight", "candidate")
    write_array(group, "sample", sample, "row", "feature")


def _bound_span(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    """Bound the distances of the neighbours of some candidates by those in the sample."""
    file, k = _read_file(run), run.chosen_params.n_neighbors
    part = replace(file, candidates=file.candidates[start:stop], probes=file.probes[:, start:stop])
    sample = run.read("partitions/sample")
    bounds = bounds_of(part, sample, n_neighbors=k, threads=blas_threads())
    return PartResult({}, {"bounds": bounds})


class _CandidatesPass:
    """The nearest rows of a part to each candidate."""

    def __init__(self, run: Run, dataset: Dataset, start: int, stop: int) -> None:
        self.reading = Reading(
            block_rows=search_block_rows(run.chunk_rows, dataset.row_width, run.chosen_params),
            weighting=RowWeights(None),
        )
        self._params = run.chosen_params
        self._space = SearchSpace.of(run, dataset)
        n_bounded = len(run.stored_parts("candidates"))
        self._search = CandidateSearch(
            _read_file(run),
            np.concatenate([run.read_part("candidates", i, "bounds") for i in range(n_bounded)]),
            run.read("neighbors/rows"),
            n_neighbors=run.chosen_params.n_neighbors,
            threads=blas_threads(),
        )

    def add(self, block: FoldedBlock) -> None:
        rows = self._space.apply(block.X)
        places = _without_copies(rows, self._params)
        self._search.add(rows[places], block.start + places)

    def sums(self) -> Sums:
        return {"": self._search.nearest()}


def _without_copies(rows: Rows, params: FitParams) -> NDArray[np.int64]:
    """Return the places of rows, without copies of a row that no list needs."""
    repeats = find_repeats(rows, n_neighbors=params.n_neighbors, seed=params.random_state)
    return np.flatnonzero(repeats.searched)


def _read_file(run: Run) -> InvertedFile:
    return InvertedFile(
        *(run.read(f"partitions/{name}") for name in ("candidates", "centroids", "probes"))
    )


def _store_lists(run: Run, reduction: Reduction) -> dict[str, Any]:
    """Store the lists of all candidates; return the incomplete lists and the sum of distances."""
    nearest, searched = read_total(run, reduction), of_searched(run)
    for start, stop in searched.spans:
        searched.write_rows("neighbors/indices", start, nearest.indices[start:stop])
        searched.write_rows("neighbors/distances", start, nearest.distances[start:stop])
    full = nearest.indices[:, -1] != MISSING
    return {
        "n_probes": _read_file(run).n_probes,
        "rows": run.read("neighbors/rows")[~full],
        "distance_sum": float(nearest.distances[full].sum()),
    }
