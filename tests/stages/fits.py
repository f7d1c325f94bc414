"""Fits of tables in memory, fits that are refused, and scores of held-out rows."""

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.folds import folds_of_numbers, folds_of_rows
from tests.stages.stopping import CountingEngine
from tests.tables import spirals, write_table

ENGINE = InlineEngine()


def overlapping(n_rows, noise, seed=0):
    """Return rows of classes that overlap."""
    X, y = spirals(n_rows, seed=seed)
    return X + np.random.default_rng(seed).normal(scale=noise, size=X.shape), y


def are_labels(targets):
    return np.asarray(targets).dtype.kind in "biuU"


def write(X, targets, **options):
    """Write labels, or numbers as targets, as they come."""
    kind = "y" if are_labels(targets) else "target"
    return write_table(MemoryStore(), X, **{kind: targets}, **options)


def fit_table(
    X, targets, params, *, tuning=None, place=None, engine=ENGINE, of_fit=None, **options
):
    """Return the run of a fit, or of a tuning, to rows in memory; `of_fit` are its options."""
    dataset, place = write(X, targets, **options), MemoryStore() if place is None else place
    return fit_dataset(dataset, place, params, engine, tuning=tuning, **of_fit or {})


def assert_refused(X, targets, params, message, **options):
    """Assert that a fit or tuning is refused before any task, and leaves nothing."""
    place, engine = MemoryStore(), CountingEngine(0)
    with pytest.raises(ParameterError, match=message):
        fit_table(X, targets, params, place=place, engine=engine, **options)
    assert not place._store_dict


def as_columns(targets):
    """Return indicators (n, K) of labels, or numbers (n, q)."""
    targets = np.asarray(targets)
    if are_labels(targets):
        return np.eye(targets.max() + 1)[targets]
    return targets.reshape(len(targets), -1)


def same_scores(one, two, X, atol=1e-7):
    expected = two.scores(X)
    np.testing.assert_allclose(one.scores(X), expected, atol=atol * np.abs(expected).max())


def held_out_scores(targets, basis_rows, network, *, n_folds=3, seed=0):
    """Return the scores of every row by the rows and basis rows of the other folds.

    `network` takes which rows are held out and which basis rows are kept, and returns the scores
    of the rows that are held out.
    """
    scores = np.empty(as_columns(targets).shape)
    fold_of_row = folds_of_rows(0, len(targets), n_folds=n_folds, seed=seed)
    fold_of_basis = folds_of_numbers(basis_rows, n_folds=n_folds, seed=seed)
    for fold in range(n_folds):
        out = fold_of_row == fold
        scores[out] = network(out, fold_of_basis != fold)
    return scores


def naive_error(scores, targets):
    """Return the share of wrong labels, or ``1 - R^2`` on average."""
    if are_labels(targets):
        return np.mean(scores.argmax(axis=1) != targets)
    T = as_columns(targets)
    return np.mean(np.sum((T - scores) ** 2, axis=0) / np.sum((T - T.mean(axis=0)) ** 2, axis=0))
