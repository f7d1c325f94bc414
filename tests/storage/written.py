"""What the storage tests write, and what they do to the files."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.params import FitParams
from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.storage.chunks import create_dataset_arrays, finish_dataset, write_chunk
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import replacing_group
from dask_nrbfn.storage.model import Model


def table(n_rows, n_features=3, dtype="f8", seed=0):
    """Draw X (n, p) over the whole range of an integer type, or normal values."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=(n_rows, n_features)).astype(dtype)
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, (n_rows, n_features), dtype=dtype, endpoint=True)


def text(labels):
    return np.array(labels, dtype=np.dtypes.StringDType())


def fill_dataset(
    group, X, y=None, weights=None, *, chunk_rows=4, feature_names=None, target_names=None
):
    """Write all chunks and finish the dataset; y are numbers (n, q) where they have names."""
    source = ArraySource(X, *((y, weights) if target_names is None else (None, weights, y)))
    source.feature_names, source.target_names = feature_names, target_names
    create_dataset_arrays(group, source, X.dtype, chunk_rows)
    size = min(chunk_rows, len(X))
    spans = [slice(start, start + size) for start in range(0, len(X), size)]
    summaries = [
        write_chunk(group, i, *(None if each is None else each[rows] for each in (X, y, weights)))
        for i, rows in enumerate(spans)
    ]
    finish_dataset(group, summaries, source)


def write_dataset(location, X, y=None, weights=None, **options) -> Dataset:
    with replacing_group(location, kind="dataset", overwrite=True) as group:
        fill_dataset(group, X, y, weights, **options)
    return Dataset.open(location)


def make_model(classes=(0, 1, 2), *, n_basis=5, n_features=4, seed=0, **changes) -> Model:
    rng = np.random.default_rng(seed)
    classes = np.asarray(classes)
    values = {
        "basis": rng.normal(size=(n_basis, n_features)),
        "width": 1 / 3,
        "weights": rng.normal(size=(len(classes), n_basis)) * 1e9,
        "classes": classes,
        "scaling": Scaling("standard", rng.normal(size=n_features), rng.uniform(1, 2, n_features)),
        "params": FitParams(alpha=1e-7, basis_size=n_basis, scale="standard"),
        "fitting_error": 0.1 + 0.2,
        "spectral_risk": 1e300,
    }
    values |= changes
    return Model(**values | {"params": values["params"].resolve_auto(numbers=False)})


def chunk_files(root) -> list[Path]:
    return sorted(path for path in Path(root).rglob("*") if path.is_file() and "/c/" in str(path))


@contextmanager
def bytes_restored(path) -> Iterator[bytes]:
    """Give the bytes of a file and write them back at the end."""
    good = Path(path).read_bytes()
    try:
        yield good
    finally:
        Path(path).write_bytes(good)


@contextmanager
def file_size_limit(n_bytes) -> Iterator[None]:
    """Let the system refuse larger files, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def swap(one, other):
    """Let two files change places."""
    content = Path(one).read_bytes()
    Path(one).write_bytes(Path(other).read_bytes())
    Path(other).write_bytes(content)


def flip_byte(path, at=None):
    """Flip all bits of one byte of a file, of that in the middle unless a place is given."""
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2 if at is None else at] ^= 255
    Path(path).write_bytes(content)


def flips(good: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number of every third bit, and the bytes with that bit flipped.

    Two or three of each byte, and in three bytes each of the eight places.
    """
    for bit in range(0, 8 * len(good), 3):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(bad)
