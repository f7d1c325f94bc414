"""Groups that are replaced, at a path or a URL, and what lies there before and after."""

import os
from functools import partial
from pathlib import Path

import numpy as np

from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import replacing_group
from dask_nrbfn.storage.location import file_system
from tests.stages.stopping import StoppedError
from tests.storage.written import fill_dataset, table


def files(location):
    """Return what is under a path or URL: name to bytes, or to None of an empty directory."""
    if isinstance(location, str | os.PathLike) and "://" not in str(location):
        return {
            path.relative_to(location).as_posix(): path.read_bytes() if path.is_file() else None
            for path in Path(location).rglob("*")
            if path.is_file() or not any(path.iterdir())
        }
    fs, path = file_system(location)
    return {name.removeprefix(f"{path}/"): fs.cat_file(name) for name in fs.find(path)}


def replace_and_fail(location, *, after_filling=True):
    with replacing_group(location, kind="dataset", overwrite=True) as group:
        if after_filling:
            fill_dataset(group, table(5, seed=1))
        raise StoppedError


def begin(location, n_rows, *, overwrite):
    """Begin to write a dataset; return the function that puts it in its place."""
    block = replacing_group(location, kind="dataset", overwrite=overwrite)
    fill_dataset(block.__enter__(), table(n_rows, seed=n_rows))
    return partial(block.__exit__, None, None, None)


def assert_only(location, n_rows, *, beside):
    """The dataset is whole, and nothing is left of the others."""
    rows = Dataset.open(location).take(np.arange(n_rows))
    np.testing.assert_array_equal(rows, table(n_rows, seed=n_rows))
    assert {name.split("/")[0] for name in files(beside)} == {"data"}
