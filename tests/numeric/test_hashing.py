import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import random_array

from dask_nrbfn.numeric.folds import fold_block, folds_of_rows
from dask_nrbfn.numeric.hashing import content_of_rows, distinct_labels, hash_rows, hash_values
from tests.numeric.frozen import read_only


def naive_splitmix(x):
    """Return splitmix64 in the integers of the language, which never wrap."""
    return naive_mix((x + 0x9E3779B97F4A7C15) % 2**64)


def naive_mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def naive_hash(row, seed):
    state = naive_splitmix(seed)
    for value in row:
        bits = int.from_bytes(np.float64(value + 0.0).tobytes(), "little")
        state = naive_mix(state ^ naive_splitmix(bits))
    return state


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_hash_rows__naive(seed):
    X = np.random.default_rng(0).normal(size=(20, 3))
    hashes = hash_rows(X, seed=seed)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [naive_hash(row, seed) for row in X]


@pytest.mark.parametrize("n_columns", [3, 300])
def test_hash_rows__same_for_sparse_rows(n_columns):
    X = random_array((50, n_columns), density=0.1, rng=0, format="csr")
    np.testing.assert_array_equal(hash_rows(X, seed=3), hash_rows(X.toarray(), seed=3))
    np.testing.assert_array_equal(hash_values(X), hash_values(X.toarray()))
    assert len(set(hash_rows(X, seed=3).tolist())) == len(np.unique(X.toarray(), axis=0))


def test_hash_rows__signed_zeros_are_equal():
    X = np.array([[0.0, 1.0], [-0.0, 1.0]])
    assert len(set(hash_rows(X, seed=0).tolist())) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_hash_rows__same_for_every_type(dtype):
    X = np.random.default_rng(0).integers(0, 256, (30, 4))
    np.testing.assert_array_equal(
        hash_rows(X.astype(dtype), seed=5), hash_rows(X.astype(np.float64), seed=5)
    )


def test_hash_values__few_distinct_values_do_not_collide():
    rows = np.random.default_rng(0).integers(0, 2, (50_000, 30)).astype(np.float64)
    assert len(np.unique(hash_values(rows))) == len(np.unique(rows, axis=0))


RNG = np.random.default_rng(0)
X = RNG.integers(0, 200, (300, 7)).astype(np.uint8)
Y = RNG.integers(0, 3, 300)
WEIGHTS = RNG.uniform(0.5, 2.0, 300)
T = RNG.normal(size=(300, 2))


@pytest.mark.parametrize("labels", [None, Y, np.array(["a", "bb", "ccc"])[Y], T])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_content_of_rows__adds_up_in_any_order(labels, weights):
    def content(rows):
        return content_of_rows(
            X[rows],
            None if labels is None else labels[rows],
            None if weights is None else weights[rows],
        )

    whole = content(np.arange(300))
    assert content(RNG.permutation(300)) == whole
    pieces = np.split(RNG.permutation(300), [1, 50, 299])
    assert sum(content(piece) for piece in pieces) % 2**64 == whole


def test_content_of_rows__text_of_both_kinds():
    text = np.array(["a", "bb", "ccc"])[Y]
    other = text.astype(np.dtypes.StringDType())
    assert content_of_rows(X, text, None) == content_of_rows(X, other, None)


def test_content_of_rows__any_change_shows():
    fifth = np.arange(300) == 5
    tables = [
        *((X, Y, WEIGHTS), (X, Y, None), (X, None, None), (X, T, WEIGHTS)),
        (X + fifth[:, None] * np.eye(7, dtype=np.uint8)[3], Y, WEIGHTS),
        (X, (Y + fifth) % 3, WEIGHTS),
        (X, Y, WEIGHTS * (1 + fifth)),
        (X, np.where(fifth[:, None], np.nextafter(T, 9), T), WEIGHTS),
        *((X[:, ::-1], Y, WEIGHTS), (X, T[:, ::-1], WEIGHTS), (X, T[:, :1], WEIGHTS)),
        *((X[:-1], Y[:-1], WEIGHTS[:-1]), (X, Y[:, None].astype(float), WEIGHTS)),
    ]
    assert len({content_of_rows(*table) for table in tables}) == len(tables)


@pytest.mark.parametrize("n_chars", [8, 300])
def test_distinct_labels__texts_in_an_order_that_crashes_numpy(n_chars):
    texts = np.array([f"{code:0>{n_chars}}" for code in range(800)])
    y = texts.astype(np.dtypes.StringDType())[np.arange(1600) % 800]
    labels, codes, counts = distinct_labels(y)
    assert labels.tolist() == texts.tolist()
    np.testing.assert_array_equal(codes, np.arange(1600) % 800)
    np.testing.assert_array_equal(counts, 2)


@pytest.mark.parametrize(("start", "seed", "n_folds"), [(0, 0, 1), (2**33, 2**32 - 1, 7)])
def test_folds__naive(start, seed, n_folds):
    folds = folds_of_rows(start, start + 50, n_folds=n_folds, seed=seed)
    own = naive_splitmix(seed)
    expected = [naive_splitmix(row ^ own) % n_folds for row in range(start, start + 50)]
    assert folds.dtype == np.int64
    assert folds.tolist() == expected


@read_only
def draw_rows(folds, seed=0):
    """Draw rows, codes and weights for the folds given."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(folds), 3)), rng.integers(0, 4, len(folds)), rng.random(len(folds))


@given(
    folds=st.lists(st.integers(0, 4), max_size=40), more=st.integers(0, 2), weighted=st.booleans()
)
def test_fold_block__naive(folds, more, weighted):
    n_folds, own = 5 + more, np.array(folds, dtype=np.int64)
    X, codes, weights = draw_rows(folds)
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
    X, codes, weights = draw_rows([1, 0, 1])
    block = fold_block(X, codes, weights, np.array([1, 0, 1]), n_folds=2)
    np.testing.assert_allclose(block.factors**2, weights[[1, 0, 2]], rtol=1e-15)
    assert fold_block(X, codes, None, np.array([1, 0, 1]), n_folds=2).factors is None
