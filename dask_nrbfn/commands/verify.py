"""Verify: problems of a stored dataset."""

from functools import partial

import numpy as np

from dask_nrbfn.errors import DataError, NRBFNError
from dask_nrbfn.numeric.targets import has_target
from dask_nrbfn.storage.blocks import StoredChunk
from dask_nrbfn.storage.chunks import (
    ChunkSummary,
    check_finite,
    check_weights,
    fingerprint,
    summarize_chunk,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import normalize


def problems_of(dataset: Dataset) -> list[str]:
    """Return the problems that reading every chunk of a dataset finds, one line each."""
    # A view, such as that of `of_labelled`, is checked as it is stored.
    dataset = Dataset.open(normalize(dataset.location))
    problems: list[str] = []
    summaries: list[ChunkSummary] = []
    n_chunks = -(-dataset.n_rows // dataset.chunk_rows)
    for index in range(n_chunks):
        try:
            chunk = dataset.read_chunk(index)
        except NRBFNError as error:
            problems.append(error.problem)
            continue
        X, y, weights, _ = chunk
        summaries.append(summarize_chunk(X, y, weights, unlabelled=dataset.unlabelled))
        if dataset.of_numbers and dataset.unlabelled is not None:
            chunk = _without_marks(chunk)
        gaps = dataset.schema is not None and dataset.schema.fills
        problems += _wrong_values(chunk, first_row=index * dataset.chunk_rows, gaps=gaps)
    if len(summaries) == n_chunks:
        problems += _compare_with_record(dataset, summaries)
    return problems


def _without_marks(chunk: StoredChunk) -> StoredChunk:
    """Return a chunk in which missing numeric targets, NaN, are 0."""
    assert chunk.y is not None
    return chunk._replace(y=np.where(has_target(chunk.y)[:, None], chunk.y, 0.0))


def _wrong_values(chunk: StoredChunk, *, first_row: int, gaps: bool) -> list[str]:
    problems = []
    check_targets = partial(check_finite, name="target")
    for check, values in (
        (partial(check_finite, gaps=gaps), chunk.X),
        (check_targets, chunk.y),
        (check_weights, chunk.weights),
    ):
        try:
            if values is not None:
                check(values, first_row=first_row)
        except DataError as error:
            problems.append(error.problem)
    return problems


def _compare_with_record(dataset: Dataset, summaries: list[ChunkSummary]) -> list[str]:
    problems = []
    found = fingerprint(dataset.X, summaries, dataset.unlabelled, dataset.schema)
    if found != dataset.fingerprint:
        targets = "targets" if dataset.of_numbers else "labels"
        weighted = dataset.has_weights
        what = f"rows, {targets} or weights" if weighted else f"rows or {targets}"
        problems.append(f"{what} differ from those that ingest wrote.")
    counts = {
        label: sum(summary.label_counts.get(label, 0) for summary in summaries)
        for label in dataset.classes.tolist()
    }
    if not np.array_equal(list(counts.values()), dataset.class_counts):
        problems.append(
            f"the label counts are {counts}, but {dataset.class_counts.tolist()} are recorded."
        )
    return problems
