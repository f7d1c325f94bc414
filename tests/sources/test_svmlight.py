import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.numeric.rows import is_sparse, stacked
from dask_nrbfn.sources import open_source, svmlight
from dask_nrbfn.sources.dtypes import INT64
from dask_nrbfn.sources.source import MAX_FEATURES

N = 40


def collect(source, block_rows):
    blocks = list(source.blocks(block_rows))
    assert [b.X.shape[0] for b in blocks[:-1]] == [block_rows] * (len(blocks) - 1)
    assert all(is_sparse(b.X) and b.X.dtype == np.float64 for b in blocks)
    assert all(b.y.dtype == INT64 for b in blocks)
    return stacked([b.X for b in blocks]).toarray(), np.concatenate([b.y for b in blocks])


@pytest.fixture
def rows():
    X = sparse.random(N, 6, density=0.4, random_state=0, format="lil")
    X[0, 0] = X[3, 5] = 1.0
    # dump_svmlight_file writes 16 digits.
    return X.toarray().round(6), np.arange(N) % 5 - 2


@pytest.mark.parametrize("block_rows", [1, 7, N, 100])
@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("suffix", ["svm", "svmlight", "libsvm"])
def test_svmlight__rows_equal_scikit_learn(tmp_path, rows, suffix, zero_based, block_rows):
    path = tmp_path / f"d.{suffix}"
    dump_svmlight_file(*rows, str(path), zero_based=zero_based, comment="two\nlines")
    source = open_source(path)
    assert (source.n_rows, source.n_features) == (N, 6)
    X, y = collect(source, block_rows)
    expected_X, expected_y = load_svmlight_file(str(path))
    np.testing.assert_array_equal(X, expected_X.toarray())
    np.testing.assert_array_equal(X, rows[0])
    np.testing.assert_array_equal(y, expected_y)


@pytest.mark.parametrize("batch_bytes", [1, 5, 30, 31, 32, 1000])
def test_svmlight__comments_and_empty_lines_between_batches(tmp_path, monkeypatch, batch_bytes):
    monkeypatch.setattr(svmlight, "BATCH_BYTES", batch_bytes)
    path = tmp_path / "d.svm"
    path.write_text("# a\n1 1:1 2:5 # end\n\n# b\n\n-2 3:4\n3\n" + "# long comment\n" * 5 + "4 2:1")
    X, y = collect(open_source(path), 2)
    np.testing.assert_array_equal(y, [1, -2, 3, 4])
    np.testing.assert_array_equal(X, [[1, 5, 0], [0, 0, 4], [0, 0, 0], [0, 1, 0]])


def test_svmlight__one_zero_index_decides_for_all_files(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:10\n2 2:20\n")
    (tmp_path / "b.svm").write_text("3 0:30\n")
    (tmp_path / ".hidden").write_text("no")
    X, y = collect(open_source(tmp_path), 2)
    np.testing.assert_array_equal(y, [1, 2, 3])
    np.testing.assert_array_equal(X, [[0, 10, 0], [0, 0, 20], [30, 0, 0]])


def test_svmlight__numbers(tmp_path, rows):
    X, y = rows[0], (rows[1] + 0.25)
    dump_svmlight_file(X, y, str(tmp_path / "d.svm"), zero_based=False)
    source = open_source(tmp_path / "d.svm", target="label")
    assert (source.target_names, source.y_dtype) == (("target",), np.float64)
    blocks = list(source.blocks(7))
    np.testing.assert_array_equal(stacked([b.X for b in blocks]).toarray(), X)
    np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), y[:, None])
    with pytest.raises(DataError, match=r"label -1.75 in row 0"):
        open_source(tmp_path / "d.svm")


def test_svmlight__numbers_have_one_name(tmp_path):
    (tmp_path / "d.svm").write_text("0.5 1:1\n")
    with pytest.raises(ParameterError, match=r"target=y does not go .* Give target as label"):
        open_source(tmp_path / "d.svm", target="y")


def test_svmlight__wide_rows_are_never_dense(tmp_path):
    # 3000 rows of a million features would be 24 GB dense.
    path = tmp_path / "d.svm"
    path.write_text("".join(f"{i} {i % 5 + 1}:1 1000000:2\n" for i in range(3000)))
    source = open_source(path)
    assert source.n_features == 1_000_000
    assert source.n_values == 6_000
    block = next(source.blocks(3000))
    assert block.X.shape == (3000, 1_000_000)
    assert block.X[1, 1] == 1
    assert block.X[1, -1] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:1\n0.5 2:1\n", r"d\.svm has the label 0\.5 in row 1"),
        ("# nothing\n", "d.svm is empty: it has no rows"),
        ("1\n2\n", "d.svm is empty: it has no feature columns"),
        ("", "d.svm is empty: it has no bytes"),
    ],
)
def test_svmlight__what_cannot_be_used(tmp_path, text, message):
    (tmp_path / "d.svm").write_text(text)
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "d.svm")


@pytest.mark.parametrize(
    "line", [b"abc", b"1 x:1", b"1 1:x", b"1 -1:1", b"1,2 1:1", b"\x00\xff\xfe", b"1 2:1 1:1"]
)
def test_svmlight__bad_line_is_named(tmp_path, line):
    (tmp_path / "d.svm").write_bytes(b"1 1:1\n# comment\n" + line + b"\n2 1:1\n")
    with pytest.raises(DamagedDataError, match=r"d\.svm is not svmlight text in line 3: "):
        open_source(tmp_path / "d.svm")


@pytest.mark.parametrize("batch_bytes", [1, 1000])
def test_svmlight__index_too_large_for_a_row_is_named(tmp_path, monkeypatch, batch_bytes):
    monkeypatch.setattr(svmlight, "BATCH_BYTES", batch_bytes)
    (tmp_path / "d.svm").write_text("1 1:1\n# comment\n1 1:1 2000000000:1\n1 2:1\n")
    with pytest.raises(DataError, match=r"d\.svm has the index 2000000000 in line 3\. Number the"):
        open_source(tmp_path / "d.svm")


def test_svmlight__label_that_floats_do_not_tell_apart(tmp_path):
    (tmp_path / "d.svm").write_text("1 1:2\n9007199254740993 1:2\n9007199254740992 1:3\n")
    with pytest.raises(DataError, match=r"has the label .* in row 1"):
        open_source(tmp_path / "d.svm")


def test_svmlight__largest_index(tmp_path):
    path = tmp_path / "d.svm"
    path.write_text(f"1 1:1 {MAX_FEATURES}:2\n")
    assert next(open_source(path).blocks(1)).X[0, -1] == 2
    path.write_text(f"1 0:1 {MAX_FEATURES}:2\n")
    with pytest.raises(DataError, match=f"{MAX_FEATURES + 1} feature columns"):
        open_source(path)


def test_svmlight__fewer_features_than_there_are(tmp_path):
    (tmp_path / "d.svm").write_text("1 1:1\n2 3:4\n")
    source = open_source(tmp_path / "d.svm", n_features=5)
    np.testing.assert_array_equal(collect(source, 2)[0], [[1, 0, 0, 0, 0], [0, 0, 4, 0, 0]])
    assert open_source(tmp_path / "d.svm", trained_features=4).n_features == 4
    with pytest.raises(DataError, match=r"has the index 3 \(feature 3\), but only 2 features"):
        open_source(tmp_path / "d.svm", n_features=2)


@pytest.mark.parametrize("option", ["x", "y", "label", "weights"])
def test_svmlight__takes_no_options(tmp_path, option):
    (tmp_path / "d.svm").write_text("1 1:1\n")
    with pytest.raises(ParameterError, match=rf"{option}=abc does not go with .*svmlight"):
        open_source(tmp_path / "d.svm", **{option: "abc"})
