import subprocess
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.sources import ArraySource, open_source
from dask_nrbfn.sources.dtypes import INT64, STRING
from dask_nrbfn.sources.source import MAX_FEATURES
from tests.sources.collected import collect, weights_of
from tests.storage.written import flip_byte

N = 23
BLOCK_ROWS = [1, 5, N, 100]


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 4)), rng.integers(0, 3, N)


@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz__rows_equal_the_arrays(tmp_path, rows, save, block_rows):
    X, y = rows
    save(tmp_path / "d.npz", X=X, y=y)
    source = open_source(tmp_path / "d.npz")
    assert (source.n_rows, source.n_features) == (N, 4)
    assert (source.x_dtype, source.y_dtype, source.feature_names) == (np.float64, INT64, None)
    got_X, got_y = collect(source, block_rows)
    np.testing.assert_array_equal(got_X, X)
    np.testing.assert_array_equal(got_y, y)


@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy__rows_equal_the_arrays(tmp_path, rows, block_rows, order):
    X, y = rows
    np.save(tmp_path / "X.npy", np.asarray(X, order=order))
    np.save(tmp_path / "y.npy", y)
    got_X, got_y = collect(open_source(tmp_path / "X.npy", y=str(tmp_path / "y.npy")), block_rows)
    np.testing.assert_array_equal(got_X, X)
    np.testing.assert_array_equal(got_y, y)
    assert collect(open_source(tmp_path / "X.npy"), block_rows)[1] is None


@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
def test_array_source__rows_equal_the_arrays(rows, block_rows):
    X, y = rows
    got_X, got_y = collect(ArraySource(X, y), block_rows)
    np.testing.assert_array_equal(got_X, X)
    np.testing.assert_array_equal(got_y, y)
    assert collect(ArraySource(X), block_rows)[1] is None


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays__images_are_flattened_row_by_row(tmp_path, order):
    images = np.asarray(np.arange(7 * 3 * 2, dtype=np.uint8).reshape(7, 3, 2), order=order)
    np.save(tmp_path / "X.npy", images)
    expected = images.reshape(7, 6)
    np.testing.assert_array_equal(collect(open_source(tmp_path / "X.npy"), 3)[0], expected)
    np.testing.assert_array_equal(collect(ArraySource(images), 3)[0], expected)
    if order == "C":
        np.savez(tmp_path / "d.npz", X=images)
        np.testing.assert_array_equal(collect(open_source(tmp_path / "d.npz"), 3)[0], expected)


@pytest.mark.parametrize(
    ("given", "stored"), [("?", "u1"), (">f4", "f4"), ("f2", "f2"), (">i8", "i8"), ("u1", "u1")]
)
def test_arrays__feature_types(tmp_path, given, stored):
    X = np.array([[0, 1], [1, 0], [1, 1]]).astype(given)
    np.savez_compressed(tmp_path / "d.npz", X=X)
    np.save(tmp_path / "X.npy", X)
    for source in (
        open_source(tmp_path / "d.npz"),
        open_source(tmp_path / "X.npy"),
        ArraySource(X),
    ):
        assert source.x_dtype == stored
        np.testing.assert_array_equal(collect(source, 2)[0], X.astype(stored))


@pytest.mark.parametrize("order", "CF")
def test_arrays__bfloat16(tmp_path, order):
    X = np.array([[0.1, -2.0, np.inf], [3e38, 1e-40, 0.0]]).astype(ml_dtypes.bfloat16, order=order)
    # numpy writes two bytes of no type.
    np.save(tmp_path / "X.npy", X)
    for source in (open_source(tmp_path / "X.npy"), ArraySource(X)):
        values = collect(source, 1)[0]
        assert values.dtype == source.x_dtype == np.float32
        np.testing.assert_array_equal(values, X.astype(np.float32))


@pytest.mark.parametrize(
    "y",
    [
        np.array(["cat", "dög", ""]),
        np.array(["cat", "dög", ""], dtype=">U3"),
        np.array([b"cat", "dög".encode(), b""]),
    ],
)
def test_arrays__text_labels(tmp_path, y):
    X = np.zeros((3, 1))
    np.savez_compressed(tmp_path / "d.npz", X=X, y=y)
    for source in (open_source(tmp_path / "d.npz"), ArraySource(X, y)):
        assert source.y_dtype == STRING
        assert collect(source, 2)[1].tolist() == ["cat", "dög", ""]


def test_npz__named_members(tmp_path, rows):
    X, y = rows
    np.savez(tmp_path / "d.npz", train=X, target=y, y=np.zeros(3))
    source = open_source(tmp_path / "d.npz", x="train.npy", y="target")
    np.testing.assert_array_equal(collect(source, 4)[1], y)


@pytest.mark.parametrize("options", [{}, {"x": "train", "y": "labels"}])
def test_npz__absent_member_names_those_that_exist(tmp_path, options):
    np.savez(tmp_path / "d.npz", train=np.zeros((2, 1)), target=np.zeros(2))
    with pytest.raises(DataError, match=r"no array .*it has 'train', 'target'.* x, .* y"):
        open_source(tmp_path / "d.npz", **options)


def test_npz__fortran_order_is_refused(tmp_path):
    np.savez(tmp_path / "d.npz", X=np.asfortranarray(np.ones((3, 2))))
    with pytest.raises(DataError, match=r"X in .*d.npz is stored column by column.*ascontiguous"):
        open_source(tmp_path / "d.npz")


def sources_of(tmp_path, X, y=None, weights=None):
    """Openers of the same arrays in all three forms."""
    columns = {"y": y, "weights": weights}
    columns = {name: values for name, values in columns.items() if values is not None}
    np.savez(tmp_path / "d.npz", X=X, **columns)
    np.save(tmp_path / "X.npy", X)
    options = {}
    for name, values in columns.items():
        np.save(tmp_path / f"{name}.npy", values)
        options[name] = str(tmp_path / f"{name}.npy")
    return [
        lambda: open_source(tmp_path / "d.npz", weights=None if weights is None else "weights"),
        lambda: open_source(tmp_path / "X.npy", **options),
        lambda: ArraySource(X, y, weights),
    ]


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
@pytest.mark.parametrize("labelled", [True, False])
def test_arrays__weights_come_with_their_rows(tmp_path, rows, form, block_rows, labelled):
    X, y = rows
    weights = np.random.default_rng(1).exponential(size=N)
    source = sources_of(tmp_path, X, y if labelled else None, weights)[form]()
    np.testing.assert_array_equal(weights_of(source, block_rows), weights)
    got_X, got_y = collect(source, block_rows)
    np.testing.assert_array_equal(got_X, X)
    assert (got_y is not None) == labelled


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((3, 1)), r"has shape \(3, 1\)\. Write one weight per row"),
        (np.ones(2), r"has 2 rows but .*X.* has 3\. .*with one weight per row of"),
        (np.ones(3, dtype=object), "holds Python objects"),
        (np.ones(3, dtype=bool), r"has dtype bool\. Write weights as integers or floats"),
        (np.array(["1", "2", "3"]), r"has dtype <U1\. Write weights as integers or floats"),
    ],
)
def test_arrays__weights_that_cannot_be_used(tmp_path, form, weights, message):
    with pytest.raises(DataError, match=f"weights.* {message}"):
        sources_of(tmp_path, np.zeros((3, 1)), np.zeros(3), weights)[form]()


def sources_of_numbers(tmp_path, X, target):
    """Return what opens a source of the arrays as members, as files and in memory."""
    np.savez(tmp_path / "d.npz", X=X, y=np.zeros(len(X)), target=target)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "target.npy", target)
    return [
        lambda: open_source(tmp_path / "d.npz", target="target"),
        lambda: open_source(tmp_path / "X.npy", target=str(tmp_path / "target.npy")),
        lambda: ArraySource(X, target=target),
    ]


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
@pytest.mark.parametrize(
    ("columns", "names"),
    [((), ("target",)), ((1,), ("target",)), ((2,), ("target_0", "target_1"))],
)
def test_arrays__numbers_come_with_their_rows(tmp_path, rows, form, block_rows, columns, names):
    target = np.random.default_rng(1).normal(size=(N, *columns))
    source = sources_of_numbers(tmp_path, rows[0], target)[form]()
    assert (source.target_names, source.y_dtype) == (names, np.float64)
    X, y = collect(source, block_rows)
    np.testing.assert_array_equal(X, rows[0])
    np.testing.assert_array_equal(y, target.reshape(N, -1))


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["?", "i1", "u8", ">i4", "f2", "f4", ">f8"])
def test_arrays__numbers_of_any_type_become_float64(tmp_path, form, dtype):
    target = np.array([0, 1, 1]).astype(dtype)
    source = sources_of_numbers(tmp_path, np.zeros((3, 1)), target)[form]()
    np.testing.assert_array_equal(collect(source, 2)[1], [[0.0], [1.0], [1.0]])


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            np.ones((3, 1, 1)),
            r"has shape \(3, 1, 1\)\. Write one target per row: \(n,\) or \(n, q\)",
        ),
        (np.ones(()), r"has shape \(\)\. Write one target per row"),
        (np.ones((2, 2)), r"has 2 rows but .*X.* has 3\. .*with one target per row of"),
        (np.ones(3, dtype=object), "holds Python objects"),
        (np.array(["1", "2", "3"]), r"has dtype <U1\. Write numbers as"),
    ],
)
def test_arrays__numbers_that_cannot_be_used(tmp_path, form, target, message):
    with pytest.raises(DataError, match=f"target.* {message}"):
        sources_of_numbers(tmp_path, np.zeros((3, 1)), target)[form]()


def test_arrays__numbers_column_by_column(tmp_path, rows):
    target = np.asfortranarray(np.random.default_rng(1).normal(size=(N, 2)))
    of_npz, of_npy, _ = sources_of_numbers(tmp_path, rows[0], target)
    np.testing.assert_array_equal(collect(of_npy(), 5)[1], target)
    with pytest.raises(DataError, match=r"target in .* is stored column by column"):
        of_npz()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "X"}, r"target=X also has another role, such as"),
        ({"target": "y", "weights": "y"}, r"weights=y also has another role, such as"),
        ({"target": "y", "y": "y"}, r"y and target are both given"),
    ],
)
def test_npz__one_array_for_two_purposes(tmp_path, rows, options, message):
    np.savez(tmp_path / "d.npz", X=rows[0], y=rows[1])
    with pytest.raises(ParameterError, match=message):
        open_source(tmp_path / "d.npz", **options)


def test_npz__weights_are_read_only_when_named(tmp_path, rows):
    np.savez(tmp_path / "d.npz", X=rows[0], weights=np.ones(N))
    assert not open_source(tmp_path / "d.npz").has_weights


@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros(3), None, r"has shape \(3,\).*one row of features per sample"),
        (np.zeros((0, 3)), None, "is empty: it has no rows"),
        (np.zeros((3, 0)), None, "is empty: it has no feature columns"),
        (np.zeros((3, 1), dtype=object), None, "holds Python objects, not numbers"),
        (np.zeros((3, 1), dtype=complex), None, "has dtype complex128"),
        (np.zeros((3, 1)), np.zeros((3, 1)), r"has shape \(3, 1\)\. Write one label per row"),
        (np.zeros((3, 1)), np.zeros(3, dtype=object), "holds Python objects"),
        (np.zeros((3, 1)), np.zeros(3, dtype="M8[s]"), "has dtype datetime64"),
    ],
)
def test_arrays__what_cannot_be_used(tmp_path, form, X, y, message):
    with pytest.raises(DataError, match=message):
        sources_of(tmp_path, X, y)[form]()


@pytest.mark.parametrize("form", [0, 1, 2])
def test_arrays__unequal_lengths(tmp_path, form):
    with pytest.raises(DataError) as caught:
        sources_of(tmp_path, np.zeros((1000, 1)), np.zeros(900))[form]()
    x_name, y_name = ("X", "y") if form != 1 else (tmp_path / "X.npy", tmp_path / "y.npy")
    assert str(caught.value) == (
        f"{y_name} has 900 rows but {x_name} has 1000. "
        f"Write {y_name} with one label per row of {x_name}."
    )


@pytest.mark.parametrize("form", [0, 1, 2])
def test_arrays__fractional_label_is_found_in_its_block(tmp_path, form):
    y = np.array([0.0, 1.0, 2.0, 2.5])
    blocks = sources_of(tmp_path, np.zeros((4, 1)), y)[form]().blocks(2)
    assert next(blocks).y.dtype == INT64
    with pytest.raises(DataError, match=r"has the label 2\.5 in row 3"):
        next(blocks)


@pytest.mark.parametrize("name", ["d.npz", "d.npy"])
def test_arrays__garbage(tmp_path, name):
    (tmp_path / name).write_bytes(b"neither of these" * 50)
    with pytest.raises(DamagedDataError, match=rf"{name} is damaged or not a numpy file"):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", ["d.npz", "d.npy"])
def test_arrays__cut_short(tmp_path, rows, name):
    (np.savez_compressed if name == "d.npz" else np.save)(tmp_path / name, rows[0])
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DamagedDataError, match=r"damaged"):
        open_source(path)


def test_npz__changed_byte_fails_the_checksum(tmp_path):
    np.savez(tmp_path / "d.npz", X=np.zeros((100, 4)))
    flip_byte(tmp_path / "d.npz", 1000)
    with pytest.raises(DamagedDataError, match=r"Bad CRC-32"):
        list(open_source(tmp_path / "d.npz").blocks(7))


def described(shape, dtype="<f8", *, order=False):
    return f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}}}"


def stored(header):
    """Bytes of an .npy file that has this text as its header, and 16 bytes of data."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16)


ABSURD = {
    "negative": described((-1, 3)),
    "negative, by column": described((-1, 3), order=True),
    "more rows than bytes": described((10**12, 2)),
    "beyond 64 bits": described((2**62, 2**62)),
    "no dtype": described((1, 2), "zz"),
    "StringDType": described((1, 1), "|T16"),
    "no shape": "{'descr': '<f8'}",
    "expression": described("(1, 2) * 10**9"),
    "no header": "",
}


@pytest.mark.parametrize("name", ["d.npy", "d.npz"])
@pytest.mark.parametrize("header", ABSURD.values(), ids=ABSURD)
def test_arrays__absurd_header_is_damage(tmp_path, name, header):
    path = tmp_path / name
    if name == "d.npy":
        path.write_bytes(stored(header))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", stored(header))
    with pytest.raises(DamagedDataError, match=r"damaged or not a numpy file: .*(X|d\.npy)"):
        open_source(path)


@pytest.mark.parametrize("form", [0, 1, 2])
def test_arrays__more_columns_than_a_row_can_have(tmp_path, form):
    X = np.zeros((1, MAX_FEATURES + 1), dtype=np.int8)
    with pytest.raises(DataError, match=f"has {MAX_FEATURES + 1} feature columns.*project the"):
        sources_of(tmp_path, X)[form]()


@pytest.mark.parametrize("form", [0, 1, 2])
def test_arrays__label_wider_than_a_name(tmp_path, form):
    y = np.array(["a" * 5000, "b"])
    with pytest.raises(DataError, match=r"y.* has dtype <U5000\. Write labels of at most 4096"):
        sources_of(tmp_path, np.zeros((2, 1)), y)[form]()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz__compression_without_bounds_is_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "d.npz", "w", method) as archive:
        archive.writestr("X.npy", stored(described((1, 2))))
    with pytest.raises(DataError, match=r"X has a compression that numpy.*savez_compress"):
        open_source(tmp_path / "d.npz")


def test_npy__absent_label_file(tmp_path, rows):
    np.save(tmp_path / "X.npy", rows[0])
    with pytest.raises(MissingDataError, match=r"labels.npy is not a file. Give y the path"):
        open_source(tmp_path / "X.npy", y="labels.npy")


@pytest.mark.parametrize(
    ("name", "option"), [("d.npz", "label"), ("d.npy", "label"), ("d.npy", "x")]
)
def test_arrays__option_of_another_format(tmp_path, rows, name, option):
    (np.savez if name == "d.npz" else np.save)(tmp_path / name, rows[0])
    with pytest.raises(ParameterError, match=rf"{option}=abc does not go with .*{name}"):
        open_source(tmp_path / name, **{option: "abc"})


STREAM = """
import sys
from dask_nrbfn.engine.measure import peak_resident_bytes
from dask_nrbfn.sources import open_source
source = open_source(sys.argv[1])
before = peak_resident_bytes()
rows = sum(len(block.X) for block in source.blocks(10_000))
print(rows, (peak_resident_bytes() - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("deflated", [True, False])
def test_arrays__memory_stays_far_below_the_file(tmp_path, deflated):
    n, p = 500_000, 100
    header = {"descr": "<f8", "fortran_order": False, "shape": (n, p)}
    zeros = bytes(n * p * 8 // 100)
    if deflated:
        path = tmp_path / "d.npz"
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open("X.npy", "w", force_zip64=True) as file,
        ):
            np.lib.format.write_array_header_1_0(file, header)
            for _ in range(100):
                file.write(zeros)
    else:
        path = tmp_path / "d.npy"
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + n * p * 8)
    result = subprocess.run(
        [sys.executable, "-c", STREAM, str(path)], capture_output=True, text=True, check=True
    )
    rows, grown_kib = map(int, result.stdout.split())
    assert rows == n
    # The array is 400 MB, a block 8 MB.
    assert grown_kib * 1024 < 40e6
