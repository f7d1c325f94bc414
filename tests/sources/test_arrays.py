"""Arrays in memory, .npy files and directories of them, members of .npz files, sparse matrices."""

import gc
import os
import subprocess
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.numeric.rows import is_csr, stacked
from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.sources.dtypes import INT64, STRING
from tests.numeric.chunkings import row_chunkings, split
from tests.opened import open_source
from tests.storage.written import flip_byte

N = 23
RNG = np.random.default_rng(0)
ROWS, LABELS, WEIGHTS = RNG.normal(size=(N, 4)), RNG.integers(0, 3, N), RNG.exponential(size=N)


def collect(source, block_rows=5):
    """Return X (n, p) and the labels or targets, or None where there are none."""
    blocks = list(source.blocks(block_rows))
    assert [len(b.X) for b in blocks[:-1]] == [block_rows] * (len(blocks) - 1)
    assert all(b.X.dtype == source.x_dtype and b.X.dtype.isnative for b in blocks)
    X = np.concatenate([b.X for b in blocks])
    assert X.shape == (source.n_rows, source.n_features)
    if source.y_dtype is None:
        assert all(b.y is None for b in blocks)
        return X, None
    assert all(b.y.dtype == source.y_dtype and len(b.y) == len(b.X) for b in blocks)
    return X, np.concatenate([b.y for b in blocks])


def weights_of(source, block_rows=5):
    blocks = list(source.blocks(block_rows))
    assert source.has_weights
    assert all(b.weights.dtype == np.float64 and len(b.weights) == len(b.X) for b in blocks)
    return np.concatenate([b.weights for b in blocks])


def in_memory(place, X, **columns):
    return ArraySource(X, **columns)


def in_npz(place, X, save=np.savez, **columns):
    save(place / "d.npz", X=X, **columns)
    return open_source(place / "d.npz", **{name: name for name in columns})


def in_npy(place, X, **columns):
    for name, values in {"X": X, **columns}.items():
        np.save(place / f"{name}.npy", values)
    return open_source(place / "X.npy", **{name: str(place / f"{name}.npy") for name in columns})


FORMS = [in_memory, in_npz, partial(in_npz, save=np.savez_compressed), in_npy]
every_form = pytest.mark.parametrize("form", FORMS)


@every_form
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(N, 4), (N, 2, 2)])
def test_arrays__rows_equal_the_arrays(tmp_path, form, order, shape):
    X = np.asarray(ROWS.reshape(shape), order=order)
    source = form(tmp_path, X, y=LABELS, weights=WEIGHTS)
    assert (source.n_rows, source.n_features, source.y_dtype) == (N, 4, INT64)
    for block_rows in (1, 5, N, 100):
        values, labels = collect(source, block_rows)
        np.testing.assert_array_equal(values, ROWS)
        np.testing.assert_array_equal(labels, LABELS)
        np.testing.assert_array_equal(weights_of(source, block_rows), WEIGHTS)


@every_form
def test_arrays__types(tmp_path, form):
    for dtype, stored in (("?", "u1"), (">f4", "f4"), ("f2", "f2"), (">i8", "i8"), ("u1", "u1")):
        X = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
        source = form(tmp_path, X, target=X)
        assert source.x_dtype == stored
        values, targets = collect(source, 2)
        np.testing.assert_array_equal(values, X.astype(stored))
        np.testing.assert_array_equal(targets, X.astype(float))
    names = np.array(["cat", "dög", ""])
    for y in (names, names.astype(">U3"), np.strings.encode(names)):
        source = form(tmp_path, np.zeros((3, 1)), y=y)
        assert source.y_dtype == STRING
        assert collect(source, 2)[1].tolist() == names.tolist()


ONE = np.zeros((3, 1))
WRONG = [
    ({"X": np.zeros(3)}, r"X.* has shape \(3,\).*one list of features per row"),
    ({"X": np.zeros((0, 3))}, "X.* is empty: it has no rows"),
    ({"X": np.zeros((3, 0))}, r"X.* has shape \(3, 0\)"),
    ({"X": ONE.astype("c16")}, r"X.* has dtype complex128\. Write numbers as bool, integers"),
    ({"y": ONE}, r"y.* has shape \(3, 1\)\. Write one label per row"),
    ({"y": np.zeros(3, "M8[s]")}, "y.* has dtype datetime64"),
    ({"y": np.zeros(2)}, r"y(.npy)? has 2 rows but .*X(.npy)? has 3. Write .* label per row of"),
    ({"weights": np.ones(3, bool)}, r"weights.* dtype bool\. Write weights as integers or floats"),
    ({"target": np.ones((3, 1, 1))}, r"target.* Write one target per row"),
    ({"target": np.array(["1"] * 3)}, r"target.* has dtype <U1\. Write numbers as"),
]


@pytest.mark.parametrize("form", [in_memory, in_npz, in_npy])
@pytest.mark.parametrize(("arrays", "message"), WRONG)
def test_arrays__that_cannot_be_used(tmp_path, form, arrays, message):
    with pytest.raises(DataError, match=message):
        form(tmp_path, **({"X": ONE} | arrays))


def test_npz__members_are_named_or_usual(tmp_path):
    place = tmp_path / "d.npz"
    np.savez(place, train=ROWS, X=ROWS[:, :2], target=LABELS, y=np.zeros(N), weights=WEIGHTS)
    named = open_source(place, x="train", y="target")
    np.testing.assert_array_equal(collect(named)[1], LABELS)
    usual = open_source(place)
    assert (usual.n_features, usual.y_dtype, usual.has_weights) == (2, INT64, False)
    with pytest.raises(DataError, match=r"no array 'labels'; it has 'train', 'X', .* with y"):
        open_source(place, y="labels")
    for options in ({"target": "X"}, {"y": "y", "weights": "y"}):
        with pytest.raises(ParameterError, match="also has another role"):
            open_source(place, **options)
    with pytest.raises(ParameterError, match=r"label=abc does not go with .*d.npz"):
        open_source(place, label="abc")


@pytest.mark.parametrize("name", ["d.npz", "d.npy"])
def test_arrays__damaged_file(tmp_path, name):
    path = tmp_path / name
    np.savez(path, X=ROWS) if name == "d.npz" else np.save(path, ROWS)
    whole = path.read_bytes()
    for content in (whole[:-40], whole[:100], b"neither of these" * 50):
        path.write_bytes(content)
        with pytest.raises(DamagedDataError, match=rf"{name} cannot be read as a numpy file"):
            open_source(path)
    if name == "d.npz":
        path.write_bytes(whole)
        flip_byte(path, 500)
        with pytest.raises(DamagedDataError, match=r"Bad CRC-32 for file .X\.npy"):
            open_source(path)


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", [in_npz, in_npy])
def test_arrays__pickles_stay_closed(tmp_path, form):
    objects = np.array([[Payload(tmp_path / "run")]])
    for columns in ({"X": objects}, {"X": np.ones((1, 1)), "y": objects[:, 0]}):
        with pytest.raises(DamagedDataError, match=r"file of numbers or text: .*bject"):
            form(tmp_path, **columns)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", [in_npz, in_npy])
def test_arrays__url_is_copied_once_for_the_life_of_the_source(tmp_path, monkeypatch, form):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    form(tmp_path, ROWS)
    (path,) = tmp_path.glob("*.np?")
    url = f"memory://{uuid.uuid4().hex}/{path.name}"
    with fsspec.open(url, "wb") as file:
        file.write(path.read_bytes())
    source = open_source(url)
    with fsspec.open(url, "wb") as file:
        file.write(path.read_bytes()[:-100])
    np.testing.assert_array_equal(collect(source, 5)[0], ROWS)
    with pytest.raises(DamagedDataError, match=f"{url} cannot be read as a numpy file"):
        open_source(url)
    del source
    gc.collect()
    assert not any((tmp_path / "copies").iterdir())


STREAM = """
import sys
from dask_nrbfn.engine.measure import peak_resident_bytes
from dask_nrbfn.sources.formats import open_source
from dask_nrbfn.sources.options import ReadOptions
source = open_source(sys.argv[1], ReadOptions())
before = peak_resident_bytes()
print(sum(len(block.X) for block in source.blocks(10_000)), peak_resident_bytes() - before)
"""


def test_npy__memory_stays_far_below_the_file(tmp_path):
    # The array has 400 MB, which need no disk, and a block 8 MB.
    header = {"descr": "<f8", "fortran_order": False, "shape": (500_000, 100)}
    with open(tmp_path / "d.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 400_000_000)
    told = subprocess.check_output([sys.executable, "-c", STREAM, str(tmp_path / "d.npy")])
    n_rows, grown_bytes = map(int, told.split())
    assert n_rows == 500_000
    assert grown_bytes < 40e6


def save_files(directory, pieces, order="C"):
    directory.mkdir()
    for place, piece in enumerate(pieces):
        np.save(directory / f"part-{place:03}.npy", np.asarray(piece, order=order))
    return directory


@settings(max_examples=15, deadline=None)
@given(
    lengths=row_chunkings(),
    labels=st.sampled_from([1, 2, 7]),
    step=st.integers(1, 50),
    order=st.sampled_from("CF"),
)
def test_directory__any_files_and_blocks(lengths, labels, step, order):
    n = sum(lengths)
    X, y = np.arange(3.0 * n).reshape(n, 3), np.array([f"{'x' * (i % 4)}{i}" for i in range(n)])
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        # Files may have no rows, numbers of other widths, and text of other lengths.
        save_files(place / "X", [X[:0].astype(np.float16), *split(X, lengths)], order)
        save_files(place / "y", np.array_split(y, labels))
        source = open_source(place / "X", y=str(place / "y"))
        values, found = collect(source, step)
    np.testing.assert_array_equal(values, X)
    assert found.tolist() == y.tolist()


def test_directory__wrong_files_are_named(tmp_path):
    place = save_files(tmp_path / "X", [np.zeros((2, 3)), np.zeros((3, 3))])
    labels = save_files(tmp_path / "y", [np.zeros(4, dtype=int)])
    with pytest.raises(DataError, match=r"y has 4 rows but .*X has 5"):
        open_source(place, y=str(labels))
    with pytest.raises(MissingDataError, match=r"none does not exist"):
        open_source(place, y=str(tmp_path / "none"))
    path = place / "part-001.npy"
    for other in (np.zeros((2, 4)), np.zeros(2), np.zeros(()), np.zeros((2, 3), dtype=np.int64)):
        np.save(path, other)
        with pytest.raises(DataError, match=r"part-001\.npy has shape .*part-000\.npy has shape"):
            open_source(place)
    np.save(path, np.zeros((3, 3)))
    blocks = open_source(place).blocks(2)
    next(blocks)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DamagedDataError, match=r"part-001\.npy cannot be read as a numpy file"):
        next(blocks)


MATRIX = sp.random_array((N, 40), density=0.1, format="csr", rng=np.random.default_rng(0))


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia"])
def test_matrix__rows_and_columns(tmp_path, format):
    sp.save_npz(tmp_path / "d.npz", MATRIX.asformat(format))
    np.save(tmp_path / "y.npy", LABELS)
    np.save(tmp_path / "w.npy", WEIGHTS)
    columns = {"y": str(tmp_path / "y.npy"), "weights": str(tmp_path / "w.npy")}
    source = open_source(tmp_path / "d.npz", **columns)
    assert (source.n_rows, source.n_features, source.n_values) == (N, 40, MATRIX.nnz)
    X, y, weights, _ = zip(*source.blocks(7), strict=True)
    assert all(is_csr(block) and block.has_canonical_format for block in X)
    np.testing.assert_array_equal(stacked(X).toarray(), MATRIX.toarray())
    np.testing.assert_array_equal(np.concatenate(y), LABELS)
    np.testing.assert_array_equal(np.concatenate(weights), WEIGHTS)
    with pytest.raises(DataError, match=r"no array 'X'; it has .*format"):
        open_source(tmp_path / "d.npz", x="X")


@pytest.mark.parametrize(
    "changed",
    [
        lambda of: {"indices": of["indices"] + 40},
        lambda of: {"indptr": of["indptr"][::-1]},
        lambda of: {"data": of["data"][:-3]},
    ],
)
def test_matrix__damaged_members(tmp_path, changed):
    sp.save_npz(tmp_path / "d.npz", MATRIX)
    with np.load(tmp_path / "d.npz") as file:
        members = dict(file)
    np.savez(tmp_path / "d.npz", **(members | changed(members)))
    with pytest.raises(DamagedDataError, match=r"d\.npz cannot be read as a numpy file"):
        open_source(tmp_path / "d.npz")
