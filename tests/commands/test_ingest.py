import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe
from dask_nrbfn.commands.ingest import ingest_arrays, ingest_dask, ingest_file, ingest_source
from dask_nrbfn.errors import DataError, ExistsError, ParameterError
from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.storage.dataset import Dataset

N = 23


def weighted_table():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 3)), np.arange(N) % 3, rng.exponential(size=N)


def weights_of(dataset):
    return np.concatenate([block.weights for block in dataset.blocks(0, dataset.n_rows, 7)])


def in_arrays(place, X, y, weights, **options):
    return ingest_arrays(X, y, place / "data", weights=weights, **options)


def in_dask_arrays(place, X, y, weights, **options):
    return ingest_dask(
        da.from_array(X, chunks=(5, 2)),
        da.from_array(y, chunks=7),
        place / "data",
        weights=da.from_array(weights, chunks=3),
        **options,
    )


def in_dask_frame(place, X, y, weights, **options):
    columns = {f"c{j}": X[:, j] for j in range(X.shape[1])}
    frame = dd.from_pandas(pd.DataFrame({**columns, "y": y, "w": weights}), npartitions=3)
    return ingest_dask(
        frame[list(columns)], frame["y"], place / "data", weights=frame["w"], **options
    )


def in_npz(place, X, y, weights, **options):
    np.savez(place / "d.npz", X=X, y=y, w=weights)
    return ingest_file(place / "d.npz", place / "data", weights="w", **options)


def in_npy(place, X, y, weights, **options):
    paths = {name: str(place / f"{name}.npy") for name in ("X", "y", "w")}
    for path, values in zip(paths.values(), (X, y, weights), strict=True):
        np.save(path, values)
    return ingest_file(paths["X"], place / "data", y=paths["y"], weights=paths["w"], **options)


def in_csv(place, X, y, weights, **options):
    frame = pd.DataFrame(X).add_prefix("c").assign(y=y, w=weights)
    frame.to_csv(place / "d.csv", index=False)
    return ingest_file(place / "d.csv", place / "data", label="y", weights="w", **options)


def in_parquet_files(place, X, y, weights, **options):
    frame = pd.DataFrame(X).add_prefix("c").assign(y=y, w=weights)
    (place / "parts").mkdir()
    for i, start in enumerate(range(0, len(frame), 9)):
        frame[start : start + 9].to_parquet(place / "parts" / f"{i}.parquet", index=False)
    return ingest_file(place / "parts", place / "data", label="y", weights="w", **options)


FORMS = [
    in_arrays,
    in_dask_arrays,
    in_dask_frame,
    in_npz,
    in_npy,
    in_csv,
    in_parquet_files,
]


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("chunk_rows", [1, 6, N, None])
@pytest.mark.parametrize("ingest", FORMS)
def test_ingest__every_form_stores_the_same_weights(tmp_path, ingest, chunk_rows):
    X, y, weights = weighted_table()
    dataset = ingest(tmp_path, X, y, weights, chunk_rows=chunk_rows)
    np.testing.assert_array_equal(weights_of(dataset), weights)
    assert dataset.class_counts.tolist() == np.bincount(y).tolist()
    same = ingest_arrays(X, y, MemoryStore(), weights=weights, chunk_rows=chunk_rows)
    assert dataset.fingerprint == same.fingerprint
    without = ingest_arrays(X, y, MemoryStore(), chunk_rows=chunk_rows)
    assert dataset.fingerprint != without.fingerprint


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("ingest", FORMS)
def test_ingest__weight_that_is_not_above_0_leaves_nothing(tmp_path, ingest, value):
    X, y, weights = weighted_table()
    weights[N - 2] = value
    # A file has an empty cell for NaN, which is named by the place in the file.
    empty = np.isnan(value) and ingest in (in_csv, in_parquet_files)
    place = "no value in (line|row)" if empty else f"weights has {value} in row {N - 2} "
    with pytest.raises(DataError, match=f"{place}.*the row"):
        ingest(tmp_path, X, y, weights, chunk_rows=6)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("ingest", [in_arrays, in_dask_arrays])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(N - 1), rf"weights has {N - 1} rows but X has {N}\. .*one weight per row of X"),
        (np.ones((N, 1)), r"weights has shape \(\d+, 1\)\. .* one weight per row"),
        (np.ones(N, dtype=complex), "weights has dtype complex128"),
    ],
)
def test_ingest__weights_that_do_not_fit(tmp_path, ingest, weights, message):
    X, y, _ = weighted_table()
    with pytest.raises(DataError, match=message):
        ingest(tmp_path, X, y, weights)


def test_ingest__weights_without_labels(tmp_path):
    X, _, weights = weighted_table()
    dataset = ingest_dask(
        da.from_array(X, chunks=(5, 2)), None, tmp_path / "a", weights=da.from_array(weights)
    )
    assert dataset.y is None
    np.testing.assert_array_equal(weights_of(dataset), weights)
    same = ingest_arrays(X, None, tmp_path / "b", weights=weights.tolist())
    assert dataset.fingerprint == same.fingerprint


def test_ingest_dask__integer_weights_become_float64(tmp_path):
    X, y, _ = weighted_table()
    dataset = in_dask_arrays(tmp_path, X, y, np.arange(1, N + 1, dtype=np.uint8))
    assert dataset.sample_weights.dtype == np.float64
    np.testing.assert_array_equal(weights_of(dataset), np.arange(1, N + 1))


def test_ingest_file__svmlight_has_no_weights(tmp_path):
    (tmp_path / "d.svm").write_text("1 1:1\n")
    with pytest.raises(ParameterError, match=r"weights=w does not go with .*none with svmlight"):
        ingest_file(tmp_path / "d.svm", tmp_path / "data", weights="w")
    assert not (tmp_path / "data").exists()


def test_ingest__weights_are_described(tmp_path):
    X, y, weights = weighted_table()
    ingest_arrays(X, y, tmp_path / "with", weights=weights)
    ingest_arrays(X, y, tmp_path / "without")
    assert describe(tmp_path / "with")["has_weights"] is True
    assert describe(tmp_path / "without")["has_weights"] is False


class InterruptedRows(ArraySource):
    """Rows of which the last come after something has happened."""

    def __init__(self, X, happens):
        super().__init__(X)
        self.happens = happens

    def blocks(self, block_rows):
        yield from super().blocks(block_rows)
        self.happens()


@pytest.mark.parametrize("overwrite", [False, True])
def test_ingest__two_jobs_of_one_new_name(tmp_path, overwrite):
    place = tmp_path / "data"
    source = InterruptedRows(np.ones((9, 2)), lambda: ingest_arrays(np.zeros((5, 2)), None, place))
    if overwrite:
        ingest_source(source, place, overwrite=True)
    else:
        with pytest.raises(ExistsError, match="data exists"):
            ingest_source(source, place)
    rows = Dataset.open(place).take(np.arange(5))
    np.testing.assert_array_equal(rows, float(overwrite))
    assert list(tmp_path.iterdir()) == [place]
