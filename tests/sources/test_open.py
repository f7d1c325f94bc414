import numpy as np
import pytest

from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.sources import open_source


def test_open_source__missing(tmp_path):
    with pytest.raises(MissingDataError, match=r"absent.csv does not exist. Check the path"):
        open_source(tmp_path / "absent.csv")


@pytest.mark.parametrize("name", ["d.xlsx", "d", "d.gz"])
def test_open_source__unknown_suffix(tmp_path, name):
    (tmp_path / name).write_text("1")
    with pytest.raises(DataError, match=r"not a known format\. Supported are \.npz, .*\.libsvm"):
        open_source(tmp_path / name)


def test_open_source__not_a_path():
    with pytest.raises(ParameterError, match=r"source is of type ndarray"):
        open_source(np.zeros((2, 2)))


@pytest.mark.parametrize("suffix", ["npz", "npy", "csv", "parquet", "svm"])
def test_open_source__no_bytes(tmp_path, suffix):
    (tmp_path / f"d.{suffix}").touch()
    with pytest.raises(DataError, match=r"is empty: it has no bytes"):
        open_source(tmp_path / f"d.{suffix}")


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


def test_open_source__directory_with_subdirectory(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "more").mkdir()
    with pytest.raises(DataError, match=r"has a subdirectory, more"):
        open_source(tmp_path)


def test_open_source__directory_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"is a directory of \.npz files"):
        open_source(tmp_path)
