import gzip
import os
from importlib import import_module
from inspect import signature

import numpy as np
import pandas as pd
import pytest

from dask_nrbfn import ingest_file
from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.sources import open_source
from dask_nrbfn.sources.formats import FORMATS


def test_open_source__missing(tmp_path):
    with pytest.raises(MissingDataError, match=r"absent.csv does not exist. Check the path"):
        open_source(tmp_path / "absent.csv")


@pytest.mark.parametrize("name", ["d", "d.data", "d.DAT", "d.txt.gz", "sub.dir/d.test"])
def test_open_source__text_with_an_unknown_suffix_is_a_table(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    text = b"a;b;y\n1;2;x\n3;4;z\n"
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    source = open_source(path, label="y")
    assert (source.n_rows, source.feature_names) == (2, ("a", "b"))


def test_open_source__options_of_other_formats(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    message = r"delimiter=: does not go with .*x\.npy, whose format is npy\. delimiter goes with t"
    with pytest.raises(ParameterError, match=message):
        open_source(tmp_path / "x.npy", delimiter=":")


@pytest.mark.parametrize("name", ["d.xls", "d.xlsx", "d.ods"])
def test_open_source__other_sheets_are_to_be_saved_as_csv(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"is not read as a table\. Save the sheet"):
        open_source(tmp_path / name)


def test_open_source__not_a_path():
    with pytest.raises(ParameterError, match="source is of type ndarray"):
        open_source(np.zeros((2, 2)))
    with pytest.raises(ParameterError, match="no source is given"):
        open_source(None)


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


def test_open_source__directory_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"is a directory of \.npz files"):
        open_source(tmp_path)


def test_formats__every_line_has_its_module_and_known_options():
    for each in FORMATS.values():
        module = import_module(f"dask_nrbfn.sources.{each.module}")
        assert callable(module.open_rows)
        assert {*each.options} <= {*signature(ingest_file).parameters}


def test_open_source__options_that_the_rows_cannot_have(tmp_path):
    (tmp_path / "d.csv").write_text("a,y\n1,u\n")
    for source, options in (
        (f"FROM '{tmp_path}/d.csv'", {"sql": "FROM source"}),
        (f"FROM '{tmp_path}/d.csv'", {"delimiter": ";"}),
        (pd.DataFrame({"a": [1]}), {"sql": "FROM source"}),
        (pd.DataFrame({"a": [1]}), {"no_header": True}),
    ):
        with pytest.raises(ParameterError, match=r"not a (file|text table)"):
            open_source(source, **options)
