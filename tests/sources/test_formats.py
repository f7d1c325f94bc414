import gzip
import os

import numpy as np
import pytest

from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.sources.formats import is_query
from tests.opened import open_source
from tests.schemas import FILLED


@pytest.mark.parametrize("name", ["d", "d.data", "d.DAT", "d.txt.gz", "sub.dir/d.test"])
def test_open_source__text_with_an_unknown_suffix_is_a_table(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    text = b"a;b;y\n1;2;x\n3;4;z\n"
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    source = open_source(path, label="y")
    assert (source.n_rows, source.feature_names) == (2, ("a", "b"))


def test_open_source__options_that_the_rows_cannot_have(tmp_path):
    (tmp_path / "d.csv").write_text("a,y\n1,u\n")
    np.save(tmp_path / "d.npy", np.ones((3, 2)))
    query = f"FROM '{tmp_path}/d.csv'"
    for source, options, message in (
        (tmp_path / "d.npy", {"delimiter": ":"}, r"delimiter=: does not go with .*format is npy"),
        (query, {"delimiter": ";"}, r"does not go with the rows, .*format is table"),
        (tmp_path / "d.npy", {"sql": "FROM source"}, "sql=FROM source does not go with .*npy"),
        (tmp_path / "d.npy", {"schema": FILLED}, r"not a table: its .* Give a table .*'age'"),
        (query, {"sql": "FROM source"}, "rows that are not a file"),
        (None, {}, "no source is given"),
        (np.zeros((2, 2)), {}, "source is of type ndarray"),
    ):
        with pytest.raises(ParameterError, match=message):
            open_source(source, **options)


@pytest.mark.parametrize("name", ["d.xlsx", "d.nc", "many/d.npz"])
def test_open_source__files_that_are_not_rows(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    with pytest.raises(DataError, match=rf"is not read as rows: its suffix is \{path.suffix}"):
        open_source(path.parent if name.startswith("many") else path)


def test_open_source__nothing_to_read(tmp_path):
    with pytest.raises(MissingDataError, match=r"absent.csv does not exist or is not served"):
        open_source(tmp_path / "absent.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "d.npz").touch()
    for name in ("pipe.csv", "d.npz"):
        with pytest.raises(DataError, match=rf"{name} is empty: it has no bytes"):
            open_source(tmp_path / name)


def test_open_source__directories(tmp_path):
    (tmp_path / ".hidden.csv").write_text("a\n1\n")
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(DataError, match="has no files"):
        open_source(tmp_path)
    (tmp_path / "d.csv").write_text("a\n1\n")
    assert open_source(tmp_path).n_rows == 1
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1" / "d.csv").write_text("a\n1\n")
    assert open_source(tmp_path / "k=1").feature_names == ("a",)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="has a subdirectory, other"):
        open_source(tmp_path)


def test_is_query__by_its_first_word(tmp_path, monkeypatch):
    assert is_query("FROM 'rides.parquet' WHERE fare > 0")
    assert not is_query("from.csv")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "from x").touch()
    assert not is_query("from x")
