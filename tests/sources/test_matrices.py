import numpy as np
import pytest
import scipy.sparse as sp

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.numeric.rows import is_sparse, stacked
from dask_nrbfn.sources import open_source


@pytest.fixture
def rows():
    return sp.random_array((23, 40), density=0.1, format="csr", rng=np.random.default_rng(0))


def collect(source, block_rows):
    blocks = list(source.blocks(block_rows))
    assert all(is_sparse(block.X) and block.X.has_canonical_format for block in blocks)
    assert [block.X.shape[0] for block in blocks[:-1]] == [block_rows] * (len(blocks) - 1)
    return stacked([block.X for block in blocks]).toarray()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("block_rows", [1, 7, 30])
def test_matrix__rows(tmp_path, rows, format, compressed, block_rows):
    sp.save_npz(tmp_path / "rows.npz", rows.asformat(format), compressed=compressed)
    source = open_source(tmp_path / "rows.npz")
    assert (source.n_rows, source.n_features, source.y_dtype) == (23, 40, None)
    if format != "dia":
        assert source.n_values >= rows.nnz
    np.testing.assert_array_equal(collect(source, block_rows), rows.toarray())


def test_matrix__labels_and_weights(tmp_path, rows):
    sp.save_npz(tmp_path / "rows.npz", rows.astype(np.int16))
    labels, weights = np.arange(23) % 3, np.arange(1, 24)
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "w.npy", weights)
    source = open_source(
        tmp_path / "rows.npz", y=str(tmp_path / "y.npy"), weights=str(tmp_path / "w.npy")
    )
    assert source.x_dtype == np.float32
    blocks = list(source.blocks(5))
    np.testing.assert_array_equal(np.concatenate([block.y for block in blocks]), labels)
    np.testing.assert_array_equal(np.concatenate([block.weights for block in blocks]), weights)


def test_matrix__numbers(tmp_path, rows):
    sp.save_npz(tmp_path / "rows.npz", rows)
    np.save(tmp_path / "t.npy", np.arange(46.0).reshape(23, 2))
    source = open_source(tmp_path / "rows.npz", target=str(tmp_path / "t.npy"))
    assert source.target_names == ("target_0", "target_1")
    assert next(source.blocks(2)).y.tolist() == [[0, 1], [2, 3]]


def test_matrix__what_does_not_fit(tmp_path, rows):
    sp.save_npz(tmp_path / "rows.npz", rows)
    np.save(tmp_path / "y.npy", np.arange(5))
    with pytest.raises(DataError, match=r"has 5 rows but .* has 23"):
        open_source(tmp_path / "rows.npz", y=str(tmp_path / "y.npy"))
    with pytest.raises(MissingDataError, match="is not a file"):
        open_source(tmp_path / "rows.npz", y=str(tmp_path / "no.npy"))
    with pytest.raises(ParameterError, match=r"x=X is given, but .* has only a sparse matrix"):
        open_source(tmp_path / "rows.npz", x="X")


@pytest.mark.parametrize(
    ("member", "changed"),
    [
        ("indices", lambda indices: indices + 40),
        ("indptr", lambda ends: ends[::-1].copy()),
        ("indptr", lambda ends: ends + 1),
        ("indptr", lambda ends: ends[:-1]),
        ("data", lambda values: values[:-3]),
    ],
)
def test_matrix__that_is_none(tmp_path, rows, member, changed):
    sp.save_npz(tmp_path / "rows.npz", rows)
    with np.load(tmp_path / "rows.npz") as file:
        members = dict(file)
    np.savez(tmp_path / "rows.npz", **members | {member: changed(members[member])})
    source = open_source(tmp_path / "rows.npz")
    with pytest.raises(DamagedDataError, match=r"rows\.npz is damaged or not a numpy file"):
        list(source.blocks(5))
