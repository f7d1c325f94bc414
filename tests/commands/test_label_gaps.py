"""Tables of which some rows have no label, or no number as their target."""

import logging

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_arrays, ingest_file
from dask_nrbfn.errors import DataError, ParameterError
from tests.cli.program import json_of, succeed
from tests.tables import spirals, surfaces

N = 120
X, Y = spirals(N)
GAPS = np.arange(N) % 4 == 1
NAMES = np.array(["ant", "bee", "cow"])
LABELS = {"whole": Y, "float": Y.astype(float), "text": NAMES[Y], "truth": Y > 0}
SUFFIXES = [".csv", ".parquet"]


def table(labels, gaps=GAPS):
    frame = pd.DataFrame(X, columns=list("abcd"))
    column = pd.Series(labels).astype(object).where(~gaps, None)
    return frame.assign(y=column.convert_dtypes() if labels.dtype.kind == "i" else column)


def write(place, frame):
    (frame.to_csv if place.suffix == ".csv" else frame.to_parquet)(place, index=False)
    return place


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("mark", ["", "nan"])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ingest__empty_label_cells_are_unlabelled(tmp_path, suffix, labels, mark):
    file = write(tmp_path / f"rows{suffix}", table(labels))
    dataset = ingest_file(file, MemoryStore(), label="y", unlabelled=mark)
    assert (dataset.n_rows, dataset.n_unlabelled) == (N, GAPS.sum())
    assert dataset.classes.tolist() == np.unique(labels).tolist()
    codes = np.where(GAPS, -1, np.unique(labels, return_inverse=True)[1])
    assert dataset.codes().tolist() == codes.tolist()


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ingest__rows_without_a_label_are_dropped(tmp_path, caplog, suffix, labels):
    frame = table(labels).assign(w=1.0)
    frame.loc[2, "a"] = frame.loc[6, "w"] = None
    whole = ~GAPS & ~np.isin(np.arange(N), (2, 6))
    file = write(tmp_path / f"rows{suffix}", frame)
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        dataset = ingest_file(file, MemoryStore(), label="y", weights="w", missing="drop")
    assert f"{N - whole.sum()} rows that lack values are left out: y 30, w 1, a 1" in caplog.text
    assert dataset.unlabelled is None
    assert dataset.classes[dataset.codes()].tolist() == labels[whole].tolist()
    np.testing.assert_allclose(dataset.take(np.arange(whole.sum())), X[whole], rtol=1e-12)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ingest__targets_with_gaps(tmp_path, suffix):
    numbers = surfaces(N)[1][:, 0]
    frame = pd.DataFrame(X, columns=list("abcd")).assign(t=np.where(GAPS, np.nan, numbers))
    file = write(tmp_path / f"rows{suffix}", frame)
    for mark in ("nan", ""):
        marked = ingest_file(file, MemoryStore(), target="t", unlabelled=mark)
        assert (marked.n_rows, marked.n_unlabelled) == (N, GAPS.sum())
    few = ingest_file(file, MemoryStore(), target="t", missing="drop")
    targets = few.take_targets(np.arange(few.n_rows))[:, 0]
    np.testing.assert_allclose(targets, numbers[~GAPS], rtol=1e-12)
    with pytest.raises(DataError, match=r"'t' 30\. .*Pass unlabelled=''"):
        ingest_file(file, MemoryStore(), target="t")


def test_ingest__several_targets_with_gaps(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(t=Y * 1.0, u=Y * 2.0)
    frame.loc[3, "t"] = frame.loc[[3, 5], "u"] = None
    file = write(tmp_path / "rows.csv", frame)
    assert ingest_file(file, MemoryStore(), target="t,u", missing="drop").n_rows == N - 2
    with pytest.raises(DataError, match="target has nan in only some columns of row 5"):
        ingest_file(file, MemoryStore(), target="t,u", unlabelled="nan")


@pytest.mark.slow
def test_evaluate__leaves_out_what_ingest_dropped(tmp_path):
    file, rows = write(tmp_path / "rows.csv", table(Y)), tmp_path / "rows"
    succeed("ingest", file, rows, "--label", "y", "--missing", "drop")
    succeed("fit", rows, tmp_path / "run", "--alpha", 1e-6)
    told = json_of("evaluate", tmp_path / "run", file)
    assert told["n_rows"] == 90
    out = tmp_path / "out.csv"
    succeed("predict", tmp_path / "run", file, out, "--keep", "y")
    assert pd.read_csv(out)["y"].isna().tolist() == GAPS.tolist()


def test_ingest__no_row_has_a_label(tmp_path):
    file = write(tmp_path / "rows.csv", table(Y, np.ones(N, dtype=bool)))
    dataset = ingest_file(file, MemoryStore(), label="y", unlabelled="")
    assert (dataset.n_unlabelled, dataset.n_classes) == (N, 0)
    with pytest.raises(DataError, match=r"without rows that lack a value \(y 120\), is empty"):
        ingest_file(file, MemoryStore(), label="y", missing="drop")


def test_ingest_arrays__a_block_without_labels():
    y = pd.Series([None] * 40 + ["a", "b"] * 20, dtype=object)
    frame = dd.from_pandas(pd.DataFrame({"x": np.arange(80.0)}), npartitions=2)
    labels = dd.from_pandas(y, npartitions=2)
    dataset = ingest_arrays(frame, labels, MemoryStore(), unlabelled="")
    assert (dataset.n_unlabelled, dataset.classes.tolist()) == (40, ["a", "b"])


@pytest.mark.parametrize("mark", ["abc", 0.5])
def test_ingest__a_mark_that_is_no_whole_number(tmp_path, mark):
    file = write(tmp_path / "rows.csv", table(Y, np.zeros(N, dtype=bool)))
    with pytest.raises(ParameterError, match="but the labels are numbers"):
        ingest_file(file, MemoryStore(), label="y", unlabelled=mark)


def test_ingest_arrays__a_number_marks_missing_targets():
    target = np.where(GAPS, 1000.0, Y)
    dataset = ingest_arrays(X, None, MemoryStore(), target=target, unlabelled="1e3")
    missing = np.isnan(dataset.take_targets(np.arange(N))[:, 0])
    assert missing.tolist() == GAPS.tolist()
