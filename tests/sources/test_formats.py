import gzip
import logging
import os
from importlib import import_module
from inspect import signature

import click
import numpy as np
import pytest

from dask_nrbfn import ingest_file
from dask_nrbfn.cli.data import ingest
from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.sources import open_source
from dask_nrbfn.sources.formats import FORMATS


def test_open_source__missing(tmp_path):
    with pytest.raises(MissingDataError, match=r"absent.csv does not exist. Check the path"):
        open_source(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d", b"1"),
        ("d.gz", b"1"),
        ("d.dat", b"a,b\n1,\x00\n"),
        ("d.txt", b"This is text.\nIt has lines, and words.\n"),
        ("d.json", b'{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n'),
        ("d.dat", b"x\n1\n2\n"),
        ("d.dat", b"1 " + b"x" * 200_000 + b"\n2 y\n"),
        ("d.svm", b"1 1:0.5 3:2\n-1 2:1e3\n"),
    ],
)
def test_open_source__unknown_suffix(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    message = r"not a known format, .*Pass format as one of npz, .*csv, .* are \.npz, .*h5ad"
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", ["d", "d.data", "d.DAT", "d.txt.gz", "sub.dir/d.test"])
def test_open_source__text_with_an_unknown_suffix_is_read_as_it_looks(tmp_path, caplog, name):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    text = b"a;b;y\n1;2;x\n3;4;z\n"
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    source = open_source(path, label="y")
    assert (source.n_rows, source.feature_names) == (2, ("a", "b"))
    assert caplog.messages[0] == f"ingest: {path} is read as csv, as its first lines show"


@pytest.mark.parametrize("name", ["d.data", "d"])
def test_open_source__format_is_said(tmp_path, name):
    (tmp_path / name).write_text("a\n1\n2\n")
    assert open_source(tmp_path / name, format="csv").n_rows == 2
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    (tmp_path / "x.npy").rename(tmp_path / name)
    assert open_source(tmp_path / name, format="npy").n_features == 2
    with pytest.raises(ParameterError, match=r"format is 'xls'\. Give one of npz, npy, csv"):
        open_source(tmp_path / name, format="xls")
    with pytest.raises(ParameterError, match=r"format=csv does not go with .*scene"):
        open_source(tmp_path, format="csv", feature_dim="band")


def test_open_source__format_of_a_directory(tmp_path):
    for number in (1, 2):
        (tmp_path / f"part-{number}").write_text(f"a:b\n{number}:5\n")
    source = open_source(tmp_path, format="csv", delimiter=":")
    assert [block.X.tolist() for block in source.blocks(9)] == [[[1, 5], [2, 5]]]
    # What is said of CSV is of CSV.
    assert open_source(tmp_path, delimiter=":").n_rows == 2


@pytest.mark.parametrize("name", ["d.xls", "d.xlsx", "d.ods"])
def test_open_source__other_sheets_are_to_be_saved_as_csv(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"is not supported\. Save the sheet as CSV in"):
        open_source(tmp_path / name)


def test_open_source__not_a_path():
    with pytest.raises(ParameterError, match=r"source is of type ndarray"):
        open_source(np.zeros((2, 2)))


@pytest.mark.parametrize("suffix", ["npz", "npy", "csv", "parquet", "data"])
def test_open_source__no_bytes(tmp_path, suffix):
    (tmp_path / f"d.{suffix}").touch()
    with pytest.raises(DataError, match=r"is empty: it has no bytes"):
        open_source(tmp_path / f"d.{suffix}")


def test_open_source__pipe(tmp_path):
    os.mkfifo(tmp_path / "d.csv")
    with pytest.raises(DataError, match=r"d.csv is a pipe, .* Write its rows to a file first"):
        open_source(tmp_path / "d.csv")


def test_open_source__directory_without_files(tmp_path):
    (tmp_path / ".hidden.csv").write_text("a\n1\n")
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(DataError, match=r"is empty: it has no files"):
        open_source(tmp_path)


def test_open_source__directory_of_mixed_files(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.txt").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"files of several suffixes: \.csv, \.txt"):
        open_source(tmp_path)


def test_open_source__directory_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"is a directory of \.npz files"):
        open_source(tmp_path)


def test_formats__every_line_has_its_module_and_is_listed():
    help_text = " ".join(ingest.get_help(click.Context(ingest)).split())
    for name, each in FORMATS.items():
        module = import_module(f"dask_nrbfn.sources.{each.module}")
        assert callable(module.open_rows)
        assert f"- {name}" in ingest_file.__doc__
        assert f"- {name}" in help_text
        assert each.options.keys() <= {*signature(ingest_file).parameters}
        for option, text in each.options.items():
            assert f"`{option}` {text}" in ingest_file.__doc__ or not text
