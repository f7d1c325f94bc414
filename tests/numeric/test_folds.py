import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.numeric.folds import fold_block, folds_of_rows
from tests.numeric.frozen import read_only
from tests.numeric.test_hashing import naive_splitmix


@pytest.mark.parametrize(("start", "seed", "n_folds"), [(0, 0, 1), (2**33, 2**32 - 1, 7)])
def test_folds__naive(start, seed, n_folds):
    folds = folds_of_rows(start, start + 50, n_folds=n_folds, seed=seed)
    own = naive_splitmix(seed)
    expected = [naive_splitmix(row ^ own) % n_folds for row in range(start, start + 50)]
    assert folds.dtype == np.int64
    assert folds.tolist() == expected


@read_only
def draw(folds, seed=0):
    """Draw rows, codes and weights for the folds given."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(folds), 3)), rng.integers(0, 4, len(folds)), rng.random(len(folds))


@given(
    folds=st.lists(st.integers(0, 4), max_size=40), more=st.integers(0, 2), weighted=st.booleans()
)
@settings(max_examples=60)
def test_fold_block__naive(folds, more, weighted):
    n_folds, own = 5 + more, np.array(folds, dtype=np.int64)
    X, codes, weights = draw(folds)
    block = fold_block(X, codes, weights if weighted else None, own, n_folds=n_folds)
    assert len(block.slices) == n_folds
    assert len(block.X) == len(block.targets) == len(folds)
    for fold, rows in enumerate(block.slices):
        places = [place for place, of_row in enumerate(folds) if of_row == fold]
        assert block.X[rows].tolist() == X[places].tolist()
        assert block.targets[rows].tolist() == codes[places].tolist()
        if weighted:
            assert block.weights[rows].tolist() == weights[places].tolist()
    if not weighted:
        assert block.weights is None


def test_fold_block__factors_are_roots_of_the_weights():
    X, codes, weights = draw([1, 0, 1])
    block = fold_block(X, codes, weights, np.array([1, 0, 1]), n_folds=2)
    np.testing.assert_allclose(block.factors**2, weights[[1, 0, 2]], rtol=1e-15)
    assert fold_block(X, codes, None, np.array([1, 0, 1]), n_folds=2).factors is None
