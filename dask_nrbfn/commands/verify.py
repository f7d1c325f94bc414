"""Verify: problems of a stored dataset."""

from functools import partial

import numpy as np

from dask_nrbfn.errors import NRBFNError
from dask_nrbfn.numeric.targets import has_target
from dask_nrbfn.storage.chunks import check_finite, check_weights, fingerprint, summarize_chunk
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import normalize


def problems_of(dataset: Dataset) -> list[str]:
    """Return the problems that reading every chunk of a dataset finds, one line each."""
    # A view, such as that of `of_labelled`, is checked as it is stored.
    dataset = Dataset.open(normalize(dataset.location))
    problems, summaries = [], []
    gaps = dataset.schema is not None and dataset.schema.fills
    for first_row in range(0, dataset.n_rows, dataset.chunk_rows):
        try:
            X, y, weights, _ = dataset.read_chunk(first_row // dataset.chunk_rows)
        except NRBFNError as error:
            problems.append(error.problem)
            continue
        summaries.append(summarize_chunk(X, y, weights, unlabelled=dataset.unlabelled))
        checks = [partial(check_finite, X, gaps=gaps)]
        if y is not None:
            if dataset.of_numbers and dataset.unlabelled is not None:
                y = np.where(has_target(y)[:, None], y, 0.0)
            checks.append(partial(check_finite, y, name="target"))
        if weights is not None:
            checks.append(partial(check_weights, weights))
        for check in checks:
            try:
                check(first_row=first_row)
            except NRBFNError as error:
                problems.append(error.problem)
    if len(summaries) * dataset.chunk_rows < dataset.n_rows:
        return problems
    if fingerprint(dataset.X, summaries, dataset.unlabelled, dataset.schema) != dataset.fingerprint:
        targets = "targets" if dataset.of_numbers else "labels"
        what = f"rows, {targets} or weights" if dataset.has_weights else f"rows or {targets}"
        problems.append(f"{what} differ from those that ingest wrote.")
    counts = {
        label: sum(summary.label_counts.get(label, 0) for summary in summaries)
        for label in dataset.classes.tolist()
    }
    if [*counts.values()] != dataset.class_counts.tolist():
        problems.append(
            f"the label counts are {counts}, but {dataset.class_counts.tolist()} are recorded."
        )
    return problems
