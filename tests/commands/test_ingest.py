"""Weights and numeric targets are stored alike from rows of any form, or refused by their row."""

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
RNG = np.random.default_rng(0)
X, TARGETS, WEIGHTS = RNG.normal(size=(N, 3)), RNG.normal(size=(N, 2)), RNG.exponential(size=N)


def frame_of(T, weights):
    frame = pd.DataFrame(np.column_stack([X, T, weights]), columns=list("abcstw"))
    return frame.astype({"s": "Float64"})


def in_arrays(place, T, weights, **options):
    return ingest_arrays(X, None, place / "data", target=T, weights=weights, **options)


def in_frames(place, T, weights, **options):
    frame = frame_of(T, weights)
    return ingest_arrays(
        X, None, place / "data", target=frame[["s", "t"]], weights=frame["w"], **options
    )


def in_dask_arrays(place, T, weights, **options):
    target, weights = da.from_array(T, chunks=(7, 1)), da.from_array(weights, chunks=3)
    rows = da.from_array(X, chunks=(5, 2))
    return ingest_arrays(rows, None, place / "data", target=target, weights=weights, **options)


def in_dask_frames(place, T, weights, **options):
    frame = dd.from_pandas(frame_of(T, weights), npartitions=3)
    columns = {"target": frame[["s", "t"]], "weights": frame["w"]}
    return ingest_arrays(frame[["a", "b", "c"]], None, place / "data", **columns, **options)


def in_npz(place, T, weights, **options):
    np.savez(place / "d.npz", X=X, t=T, w=weights)
    return ingest_file(place / "d.npz", place / "data", target="t", weights="w", **options)


def in_csv(place, T, weights, **options):
    frame_of(T, weights).to_csv(place / "d.csv", index=False)
    return ingest_file(place / "d.csv", place / "data", target="s,t", weights="w", **options)


FORMS = [in_arrays, in_frames, in_dask_arrays, in_dask_frames, in_npz, in_csv]


def columns_of(dataset):
    blocks = list(dataset.blocks(0, dataset.n_rows, 7))
    return [np.concatenate([getattr(b, name) for b in blocks]) for name in ("targets", "weights")]


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("chunk_rows", [1, 6, N, None])
@pytest.mark.parametrize("ingest", FORMS)
def test_ingest__every_form_stores_the_same_targets_and_weights(tmp_path, ingest, chunk_rows):
    dataset = ingest(tmp_path, TARGETS, WEIGHTS, chunk_rows=chunk_rows)
    targets, weights = columns_of(dataset)
    np.testing.assert_array_equal(targets, TARGETS)
    np.testing.assert_array_equal(weights, WEIGHTS)
    named = ingest not in (in_arrays, in_dask_arrays, in_npz)
    assert dataset.target_names == (("s", "t") if named else ("target_0", "target_1"))
    options = {"target": TARGETS, "chunk_rows": chunk_rows}
    same = ingest_arrays(X, None, MemoryStore(), weights=WEIGHTS, **options)
    assert dataset.fingerprint == same.fingerprint
    without = ingest_arrays(X, None, MemoryStore(), **options)
    assert dataset.fingerprint != without.fingerprint


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("ingest", FORMS)
def test_ingest__weight_that_is_not_above_0_leaves_nothing(tmp_path, ingest, value):
    weights = WEIGHTS.copy()
    weights[N - 2] = value
    # A file has an empty cell for NaN.
    empty = np.isnan(value) and ingest is in_csv
    problem = "'w' 1" if empty else f"has '?{value}'? in row {N - 2} "
    with pytest.raises(DataError, match=problem):
        ingest(tmp_path, TARGETS, weights, chunk_rows=6)
    assert not (tmp_path / "data").exists()


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("ingest", FORMS)
def test_ingest__number_that_is_not_finite_leaves_nothing(tmp_path, ingest, value):
    targets = TARGETS.copy()
    targets[N - 2, 1] = value
    empty = np.isnan(value) and ingest is in_csv
    problem = "'t' 1" if empty else f"has '?{value}'? in row {N - 2}"
    with pytest.raises(DataError, match=problem):
        ingest(tmp_path, targets, WEIGHTS, chunk_rows=6)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("ingest", [in_arrays, in_dask_arrays])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(N - 1), f"weights has {N - 1} rows but X has {N}"),
        (np.ones((N, 1)), r"weights has shape \(\d+, 1\)"),
        (np.ones(N, dtype=complex), "weights has dtype complex128"),
    ],
)
def test_ingest__weights_that_do_not_fit(tmp_path, ingest, weights, message):
    with pytest.raises(DataError, match=message):
        ingest(tmp_path, TARGETS, weights)


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
    dataset = ingest_arrays(X, None, MemoryStore(), target=target)
    assert dataset.target_names == (name,)
    np.testing.assert_array_equal(dataset.take_targets(np.arange(N))[:, 0], np.arange(N))
    if isinstance(target, pd.Series):
        lazy = dd.from_pandas(target, npartitions=3)
    else:
        lazy = da.from_array(np.array(target), chunks=4)
    rows = da.from_array(X, chunks=(5, 2))
    lazily = ingest_arrays(rows, None, MemoryStore(), target=lazy)
    assert (lazily.target_names, lazily.fingerprint) == ((name,), dataset.fingerprint)


def test_ingest__text_is_no_number():
    frame = pd.DataFrame({"t": ["a"] * N})
    for target in (frame, frame["t"], dd.from_pandas(frame, npartitions=2)):
        rows = X if isinstance(target, pd.DataFrame | pd.Series) else da.from_array(X)
        with pytest.raises(DataError, match=r"Column 't' of target has type .* not a number"):
            ingest_arrays(rows, None, MemoryStore(), target=target)


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
    assert IngestOptions(target=[]).target is None
    assert IngestOptions(columns=np.array(["a", "b"])).columns == ("a", "b")
    options = IngestOptions(columns='a, "b,c",a', drop=["d"], missing_values="", date=[])
    assert (options.columns, options.drop) == (("a", "b,c"), ("d",))
    assert (options.missing_values, options.date) == (("",), None)


@pytest.mark.parametrize("name", ["columns", "target", "label", "sql"])
def test_ingest_options__of_a_wrong_type_or_empty_are_refused(name):
    for value in (5, *(("",) if name in ("label", "sql") else ())):
        with pytest.raises(ParameterError, match=rf"`{name}`|{name} is"):
            IngestOptions(**{name: value})


def test_ingest__numbers_beside_labels():
    with pytest.raises(ParameterError, match="y and target are both given"):
        ingest_arrays(np.eye(3), np.arange(3), MemoryStore(), target=np.arange(3.0))
