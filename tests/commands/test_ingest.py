from inspect import signature

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_arrays, ingest_file
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.sources.options import IngestOptions

N = 23


def weighted_table():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 3)), np.arange(N) % 3, rng.exponential(size=N)


def weights_of(dataset):
    return np.concatenate([block.weights for block in dataset.blocks(0, dataset.n_rows, 7)])


def in_arrays(place, X, y, weights, **options):
    return ingest_arrays(X, y, place / "data", weights=weights, **options)


def in_dask_arrays(place, X, y, weights, **options):
    return ingest_arrays(
        da.from_array(X, chunks=(5, 2)),
        da.from_array(y, chunks=7),
        place / "data",
        weights=da.from_array(weights, chunks=3),
        **options,
    )


def in_dask_frame(place, X, y, weights, **options):
    columns = {f"c{j}": X[:, j] for j in range(X.shape[1])}
    frame = dd.from_pandas(pd.DataFrame({**columns, "y": y, "w": weights}), npartitions=3)
    return ingest_arrays(
        frame[list(columns)], frame["y"], place / "data", weights=frame["w"], **options
    )


def in_npz(place, X, y, weights, **options):
    np.savez(place / "d.npz", X=X, y=y, w=weights)
    return ingest_file(place / "d.npz", place / "data", weights="w", **options)


def in_csv(place, X, y, weights, **options):
    frame = pd.DataFrame(X).add_prefix("c").assign(y=y, w=weights)
    frame.to_csv(place / "d.csv", index=False)
    return ingest_file(place / "d.csv", place / "data", label="y", weights="w", **options)


FORMS = [in_arrays, in_dask_arrays, in_dask_frame, in_npz, in_csv]


@pytest.mark.fast_cases(4)
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


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("ingest", FORMS)
def test_ingest__weight_that_is_not_above_0_leaves_nothing(tmp_path, ingest, value):
    X, y, weights = weighted_table()
    weights[N - 2] = value
    # A file has an empty cell for NaN.
    empty = np.isnan(value) and ingest is in_csv
    place = (
        "no value in some rows of a column: .w. 1" if empty else f"has '?{value}'? in row {N - 2} "
    )
    with pytest.raises(DataError, match=f"{place}.*row"):
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


def numbers_in_arrays(place, X, T, **options):
    return ingest_arrays(X, None, place, target=T, **options), ("target_0", "target_1")


def numbers_in_frames(place, X, T, **options):
    frame = pd.DataFrame(T, columns=["s", "t"]).astype({"s": "Float64"})
    return ingest_arrays(X, None, place, target=frame, **options), ("s", "t")


def numbers_in_dask_arrays(place, X, T, **options):
    target = da.from_array(T, chunks=(7, 1))
    dataset = ingest_arrays(da.from_array(X, chunks=(5, 2)), None, place, target=target, **options)
    return dataset, ("target_0", "target_1")


def numbers_in_dask_frames(place, X, T, **options):
    frame = dd.from_pandas(
        pd.DataFrame(np.hstack([X, T]), columns=list("abcst")).astype({"s": "Float64"}),
        npartitions=3,
    )
    dataset = ingest_arrays(
        frame[["a", "b", "c"]], None, place, target=frame[["s", "t"]], **options
    )
    return dataset, ("s", "t")


NUMBERS = [numbers_in_arrays, numbers_in_frames, numbers_in_dask_arrays, numbers_in_dask_frames]


def numbered_table():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 3)), rng.normal(size=(N, 2))


def targets_of(dataset):
    return np.concatenate([block.targets for block in dataset.blocks(0, dataset.n_rows, 7)])


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("chunk_rows", [1, 6, None])
@pytest.mark.parametrize("ingest", NUMBERS)
def test_ingest__every_form_stores_the_same_numbers(ingest, chunk_rows):
    X, T = numbered_table()
    dataset, names = ingest(MemoryStore(), X, T, chunk_rows=chunk_rows)
    np.testing.assert_array_equal(targets_of(dataset), T)
    assert dataset.target_names == names
    same, _ = numbers_in_arrays(MemoryStore(), X, T, chunk_rows=chunk_rows)
    assert (dataset.fingerprint, dataset.content) == (same.fingerprint, same.content)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (pd.Series(range(N), name="mass"), "mass"),
        (pd.Series(range(N), dtype="Int64"), "target"),
        (pd.Series(range(N), name=3, dtype="float32"), "target"),
        (list(range(N)), "target"),
        (np.arange(N)[:, None], "target"),
    ],
)
def test_ingest__one_number_for_each_row(target, name):
    X, _ = numbered_table()
    dataset = ingest_arrays(X, None, MemoryStore(), target=target)
    assert dataset.target_names == (name,)
    np.testing.assert_array_equal(targets_of(dataset), np.arange(N)[:, None])
    if isinstance(target, list):
        target = np.array(target)
    rows = da.from_array(X, chunks=(5, 2))
    if isinstance(target, pd.Series):
        target = dd.from_pandas(target, npartitions=3)
    else:
        target = da.from_array(target, chunks=4)
    lazily = ingest_arrays(rows, None, MemoryStore(), target=target)
    assert lazily.target_names == (name,)
    assert lazily.fingerprint == dataset.fingerprint


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("ingest", NUMBERS)
def test_ingest__number_that_is_not_finite_leaves_nothing(tmp_path, ingest, value):
    X, T = numbered_table()
    T[N - 2, 1] = value
    with pytest.raises(DataError, match=f"target has {value} in row {N - 2}, column 1"):
        ingest(tmp_path / "data", X, T, chunk_rows=6)
    assert not (tmp_path / "data").exists()


def test_ingest__text_is_no_number():
    X, _ = numbered_table()
    frame = pd.DataFrame({"t": ["a"] * N})
    for target in (frame, frame["t"]):
        with pytest.raises(DataError, match=r"Column 't' of target has type .* not a number"):
            ingest_arrays(X, None, MemoryStore(), target=target)
        lazy = dd.from_pandas(target, npartitions=2)
        with pytest.raises(DataError, match=r"Column 't' of target has type .* not a number"):
            ingest_arrays(da.from_array(X), None, MemoryStore(), target=lazy)


def test_ingest_file__help_has_every_option():
    parameters = signature(ingest_file).parameters
    assert [*parameters] == ["source", "location", *IngestOptions.options()]
    for name, option in IngestOptions.options().items():
        assert parameters[name].default == option.default
        assert f"\n{name} : {option.allowed}, default=" in ingest_file.__doc__


def test_ingest_file__a_name_that_is_no_option_is_an_error(tmp_path):
    message = "lable is not an option. label has a similar name. The options are x, y, label, "
    with pytest.raises(ParameterError, match=message):
        ingest_file(tmp_path / "d.csv", tmp_path / "data", lable="y")


def test_ingest_options__names_with_commas_or_in_a_sequence():
    assert IngestOptions(target=["a", "b,c"]).target == 'a,"b,c"'
    options = IngestOptions(columns='a, "b,c",a', drop=["d"], missing_values="", date=[])
    assert (options.columns, options.drop) == (("a", "b,c"), ("d",))
    assert (options.missing_values, options.date) == (("",), None)


def test_ingest__numbers_beside_labels():
    with pytest.raises(ParameterError, match="y and target are both given"):
        ingest_arrays(np.eye(3), np.arange(3), MemoryStore(), target=np.arange(3.0))
