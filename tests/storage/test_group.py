import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from dask_nrbfn.errors import DamagedDataError, ExistsError, MissingDataError
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import exists, kind_of, open_group, replacing_group
from tests.storage.written import fill_dataset, table, write_dataset


class StoppedError(Exception):
    pass


def replace_and_fail(place, *, after_filling):
    with replacing_group(place, kind="dataset", overwrite=True) as group:
        if after_filling:
            fill_dataset(group, table(5, seed=1))
        raise StoppedError


@pytest.mark.parametrize("after_filling", [False, True])
def test_replacing_group__error_leaves_the_old_one(tmp_path, after_filling):
    X = table(9)
    write_dataset(tmp_path / "data", X)
    with pytest.raises(StoppedError):
        replace_and_fail(tmp_path / "data", after_filling=after_filling)
    np.testing.assert_array_equal(Dataset.open(tmp_path / "data").take(np.arange(9)), X)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_replacing_group__error_leaves_nothing_where_nothing_was(tmp_path):
    with pytest.raises(StoppedError):
        replace_and_fail(tmp_path / "data", after_filling=True)
    assert list(tmp_path.iterdir()) == []


def test_replacing_group__the_new_one_replaces_all_of_the_old(tmp_path):
    write_dataset(tmp_path / "data", table(9), np.arange(9))
    X = table(3, seed=1)
    dataset = write_dataset(tmp_path / "data", X)
    assert dataset.y is None
    np.testing.assert_array_equal(dataset.take(np.arange(3)), X)
    assert not (tmp_path / "data" / "y").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_replacing_group__the_old_one_stays_readable_inside(tmp_path):
    X = table(9)
    write_dataset(tmp_path / "data", X)
    with replacing_group(tmp_path / "data", kind="dataset", overwrite=True) as group:
        fill_dataset(group, Dataset.open(tmp_path / "data").take(np.arange(9)) + 1)
    np.testing.assert_array_equal(Dataset.open(tmp_path / "data").take(np.arange(9)), X + 1)


def test_replacing_group__makes_parents(tmp_path):
    dataset = write_dataset(tmp_path / "a/b/data", table(3))
    assert dataset.n_rows == 3


@pytest.mark.parametrize("kind", ["path", "memory store", "fsspec"])
def test_replacing_group__not_without_overwrite(tmp_path, kind):
    place = {
        "path": tmp_path / "data",
        "memory store": MemoryStore(),
        "fsspec": "memory://test-not-without-overwrite/data",
    }[kind]
    X = table(3)
    write_dataset(place, X)
    with (
        pytest.raises(ExistsError, match=r"exists\. Give another path, or overwrite it"),
        replacing_group(place, kind="dataset", overwrite=False),
    ):
        pytest.fail("the block must not run")
    np.testing.assert_array_equal(Dataset.open(place).take(np.arange(3)), X)


def foreign(place, kind):
    """Put something that is no Zarr group at a path."""
    if kind == "file":
        place.write_text("thesis")
    elif kind == "dangling link":
        place.symlink_to(place.with_name("nowhere"))
    elif kind == "array":
        zarr.create_array(str(place), shape=(3,), dtype="f8")[...] = 1.0
    else:
        place.mkdir()
        (place / "thesis.txt").write_text("thesis")


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link", "array"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_replacing_group__refuses_what_is_no_group(tmp_path, kind, overwrite):
    place = tmp_path / "home"
    foreign(place, kind)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ExistsError, match="home exists") as caught:
        write_over(place, overwrite=overwrite)
    assert "another path" in caught.value.remedy
    assert sorted(tmp_path.rglob("*")) == before


def test_replacing_group__takes_an_empty_directory(tmp_path):
    (tmp_path / "home").mkdir()
    write_over(tmp_path / "home", overwrite=False)
    assert Dataset.open(tmp_path / "home").n_rows == 3


def write_over(place, *, overwrite):
    with replacing_group(place, kind="dataset", overwrite=overwrite) as group:
        fill_dataset(group, table(3))


@pytest.mark.parametrize("garbage", [b"", b"{", b"null"])
def test_replacing_group__of_a_damaged_one_needs_no_raw_traceback(tmp_path, garbage):
    write_dataset(tmp_path / "data", table(9))
    (tmp_path / "data/zarr.json").write_bytes(garbage)
    # Either is fine: replaced because it was asked for, or refused with a remedy.
    try:
        write_over(tmp_path / "data", overwrite=True)
    except (ExistsError, DamagedDataError):
        assert (tmp_path / "data/X/c/0/0").exists()
    else:
        assert Dataset.open(tmp_path / "data").n_rows == 3


def test_replacing_group__through_a_link(tmp_path):
    write_dataset(tmp_path / "real/data", table(9))
    (tmp_path / "link").symlink_to(tmp_path / "real/data")
    write_over(tmp_path / "link", overwrite=True)
    assert Dataset.open(tmp_path / "link").n_rows == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_kind_of__tells_what_is_there(tmp_path):
    write_dataset(tmp_path / "data", table(3))
    assert kind_of(tmp_path / "data", ("run", "dataset")) == "dataset"
    with pytest.raises(DamagedDataError, match="data is no run or model"):
        kind_of(tmp_path / "data", ("run", "model"))
    with pytest.raises(MissingDataError, match="there is no run at"):
        kind_of(tmp_path / "nowhere", ("run",))


def test_exists__any_location(tmp_path):
    store = MemoryStore()
    url = "memory://test-exists/data"
    for place in (tmp_path / "data", store, url):
        assert not exists(place)
        write_dataset(place, table(3))
        assert exists(place)


def test_open_group__read_only_unless_asked(tmp_path):
    write_dataset(tmp_path / "data", table(3))
    group = open_group(tmp_path / "data", kind="dataset")
    with pytest.raises(ValueError, match="read-only"):
        group["X"][0] = 1.0
    writable = open_group(tmp_path / "data", kind="dataset", writable=True)
    writable["X"][0] = 1.0
    np.testing.assert_array_equal(writable["X"][0], 1.0)
