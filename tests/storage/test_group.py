import contextlib
import subprocess
import sys
import time

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from dask_nrbfn.errors import (
    DamagedDataError,
    ExistsError,
    MissingDataError,
    ParameterError,
    StorageError,
)
from dask_nrbfn.params import FitParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage.array import create_array, get_array, write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import (
    BUILT,
    MOVED,
    attributes_of,
    locked_group,
    mark_complete,
    open_group,
    replacing_group,
)
from dask_nrbfn.storage.location import RemoteLocation, hidden_sibling, join, locate, normalize
from dask_nrbfn.storage.run import Run
from tests.stages.stopping import StoppedError
from tests.storage.conftest import S3
from tests.storage.replacing import assert_only, begin, files, replace_and_fail
from tests.storage.written import file_size_limit, fill_dataset, make_model, table, write_dataset

anywhere = pytest.mark.parametrize("place", ["directory", "memory", S3], indirect=True)


@anywhere
@pytest.mark.parametrize(("after_filling", "is_there"), [(False, True), (True, False)])
def test_replacing_group__error_leaves_what_was_there(place, after_filling, is_there):
    if is_there:
        write_dataset(join(place, "data"), table(9))
    before = files(place)
    with pytest.raises(StoppedError):
        replace_and_fail(join(place, "data"), after_filling=after_filling)
    assert files(place) == before


def test_replacing_group__an_error_empties_a_store_object():
    store = MemoryStore()
    with pytest.raises(StoppedError):
        replace_and_fail(store)
    begin(store, 3, overwrite=False)()
    assert Dataset.open(store).n_rows == 3


@anywhere
def test_replacing_group__the_new_one_replaces_all_of_the_old(place):
    data, others = join(place, "data"), join(place, "data-of-others")
    write_dataset(data, table(9), np.arange(9))
    write_dataset(others, table(2))
    before = files(others)
    dataset = write_dataset(data, table(3, seed=1))
    assert dataset.y is None
    np.testing.assert_array_equal(dataset.take(np.arange(3)), table(3, seed=1))
    assert set(files(data)) == {"zarr.json", "X/zarr.json", "X/c/0/0"}
    assert files(others) == before
    assert {name.split("/")[0] for name in files(place)} == {"data", "data-of-others"}


@anywhere
@pytest.mark.parametrize("overwrite", [False, True])
def test_replacing_group__not_without_overwrite_and_no_other_kind(place, overwrite):
    write_dataset(join(place, "data"), table(3))
    make_model().save(join(place, "model"))
    before = files(place)
    for name in ("data", "model"):
        if name == "model" or not overwrite:
            message = "exists, but is a dask_nrbfn.model" if overwrite else "exists. Give another"
            with (
                pytest.raises(ExistsError, match=message),
                replacing_group(join(place, name), kind="dataset", overwrite=overwrite),
            ):
                pytest.fail("the block must not run")
    assert files(place) == before


@anywhere
@pytest.mark.parametrize("overwrite", [False, True])
def test_replacing_group__two_writers(place, overwrite):
    data = join(place, "data")
    if overwrite:
        write_dataset(data, table(3))
    finish_first = begin(data, 9, overwrite=overwrite)
    finish_second = begin(data, 5, overwrite=overwrite)
    finish_first()
    assert Dataset.open(data).n_rows == 9
    if overwrite:
        finish_second()
    else:
        with pytest.raises(ExistsError, match=r"data already exists\. Give another path"):
            finish_second()
    assert_only(data, 5 if overwrite else 9, beside=place)


@pytest.mark.parametrize("place", ["directory"], indirect=True)
@pytest.mark.parametrize("overwrite", [False, True])
def test_replacing_group__not_inside_a_group(place, overwrite):
    dataset, names = write_dataset(join(place, "data"), table(9)), ["inner", "a/b", "X/inner"]
    places = [join(dataset.location, name) for name in names]
    (place / "link").symlink_to(place / "data")
    places.append(join(place, "link/inner"))
    before = files(place)
    for inner in places:
        for write in (
            lambda inner: write_over(inner, overwrite=overwrite),
            lambda inner: Run.start(inner, dataset, Spec.of(FitParams()), {}),
        ):
            with pytest.raises(ParameterError, match=r"is inside the Zarr group .*data"):
                write(inner)
    assert files(place) == before


WRITER = """
import sys, time
from dask_nrbfn.storage.group import replacing_group, scratch_next_to
writes = {
    "group": lambda place: replacing_group(place, kind="dataset", overwrite=False),
    "scratch": scratch_next_to,
}
with writes[sys.argv[1]](sys.argv[2]) as begun:
    if sys.argv[1] == "scratch":
        open(begun, "x")
    print("begun", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("written", ["group", "scratch"])
def test_replacing_group__removes_what_a_killed_process_left(tmp_path, written):
    location = tmp_path / "data[1].zarr"
    with begun_writer(location, written) as killed, begun_writer(location, written):
        killed.kill()
        killed.wait()
        assert len([*tmp_path.glob("*.unfinished")]) == 2
        begin(location, 5, overwrite=False)()
        # That of the other process, and its lock, are still there.
        assert len([*tmp_path.glob("*.unfinished")]) == 1
        assert len([*tmp_path.iterdir()]) == 3
        assert location.exists()


def test_replacing_group__keeps_both_groups_of_an_interrupted_replacement(tmp_path):
    kept = abandoned(tmp_path / "data.zarr")
    for has_directory in (False, True):
        if has_directory:
            (tmp_path / "data.zarr").mkdir()
        with pytest.raises(StoppedError):
            replace_and_fail(tmp_path / "data.zarr")
        assert all(path.exists() for path in kept)
    begin(tmp_path / "data.zarr", 5, overwrite=True)()
    assert [path.name for path in tmp_path.iterdir()] == ["data.zarr"]


def abandoned(place):
    """Leave what killed jobs leave beside a place: two directories, and the lock of a third."""
    left = [place.with_name(f".{place.name}.{'0a' * 16}{suffix}") for suffix in (BUILT, MOVED)]
    for path in left:
        path.mkdir()
    lock = place.with_name(f"..{place.name}.{'1b' * 16}{BUILT}.lock")
    lock.touch()
    return [*left, lock]


def test_locked_group__removes_what_killed_jobs_left(tmp_path):
    data = write_dataset(tmp_path / "data", table(3))
    group = zarr.open_group(tmp_path / "data")
    group.create_group("of.partial")
    abandoned(tmp_path / "data")
    others = [tmp_path / ".data.20261126.unfinished", tmp_path / ".data.kept"]
    for path in others:
        path.mkdir()
    others += abandoned(tmp_path / "data.of-others")
    with locked_group(data.location):
        assert {*tmp_path.iterdir()} == {tmp_path / "data", tmp_path / ".data.lock", *others}
        (tmp_path / "data" / "X" / "c" / "0.0a.partial").touch()
        abandoned(tmp_path / "data")
    assert {*tmp_path.iterdir()} == {tmp_path / "data", *others}
    assert [path.name for path in (tmp_path / "data").rglob("*.partial")] == ["of.partial"]


@contextlib.contextmanager
def begun_writer(location, written):
    """Give a process that writes a group or a scratch and is killed at the end."""
    command = [sys.executable, "-c", WRITER, written, str(location)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "begun\n"
        yield writer
    finally:
        writer.kill()
        writer.communicate()


def write_over(place, *, overwrite):
    with replacing_group(place, kind="dataset", overwrite=overwrite) as group:
        fill_dataset(group, table(3))


def directory_of_others(place):
    place.mkdir()
    (place / "thesis.txt").write_text("thesis")


def damaged_model(place):
    make_model().save(place)
    metadata = place / "zarr.json"
    metadata.write_text(metadata.read_text().partition("dask_nrbfn.model")[0])


@pytest.mark.parametrize("put", [directory_of_others, damaged_model])
def test_replacing_group__refuses_what_is_not_known_to_be_of_its_kind(tmp_path, put):
    place = tmp_path / "home"
    put(place)
    before = files(tmp_path)
    message = r"home exists, but is not a dask_nrbfn\.dataset\. Give another path"
    with pytest.raises(ExistsError, match=message):
        write_over(place, overwrite=True)
    assert files(tmp_path) == before


def test_replacing_group__a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file" / "data", tmp_path / "file" / "a" / "data", "/sys/data"):
        with pytest.raises(StorageError, match=f"{place} cannot be written"):
            write_over(place, overwrite=False)
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


def test_replacing_group__no_room(tmp_path):
    with (
        file_size_limit(2**20),
        pytest.raises(StorageError, match=r"data does not fit on the disk \(File too large\)"),
        replacing_group(tmp_path / "data", kind="dataset", overwrite=False) as group,
    ):
        write_array(group, "X", np.zeros((2**20, 1)), "row", "column")
    assert list(tmp_path.iterdir()) == []


def test_open_group__of_nothing_makes_no_directory(tmp_path):
    for writable in (False, True):
        with pytest.raises(MissingDataError):
            open_group(tmp_path / "nowhere", kind="dataset", writable=writable)
    assert list(tmp_path.iterdir()) == []


def test_location__joined_and_beside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"key": "a"}
    bucket = RemoteLocation("s3://bucket/", options)
    assert join("runs", "a") == join(tmp_path / "runs", "a") == f"{tmp_path}/runs/a"
    assert join("s3://bucket/", "a") == "s3://bucket/a"
    assert join(bucket, "a") == locate("s3://bucket/a", options)
    assert hidden_sibling(join(bucket, "a"), "lock") == RemoteLocation(
        "s3://bucket/.a.lock", options
    )
    assert hidden_sibling(RemoteLocation("memory://a"), "lock").url == "memory://.a.lock"
    assert normalize(RemoteLocation("file:///a", options)) == "/a"
    with pytest.raises(ParameterError, match="whole bucket"):
        hidden_sibling(bucket, "lock")
    with pytest.raises(ParameterError, match="store object"):
        join(MemoryStore(), "a")


# A rename is atomic, and flushed data survives a power cut: the file system promises both, and no
# test here can check it.


def write_group(place, attributes):
    with replacing_group(place, kind="run", overwrite=False) as group:
        mark_complete(group, kind="run", attributes=attributes)


def count_in(place):
    return attributes_of(open_group(place, kind="run"))["count"]


UPDATE = """
import sys
from dask_nrbfn.storage.group import attributes_of, open_group, update_record
group = open_group(sys.argv[1], kind="run", writable=True)
count = attributes_of(group)["count"]
while True:
    count += 1
    update_record(group, {"count": count, "padding": "x" * 100_000})
    print(count, flush=True)
"""


def test_update_record__killed_at_any_moment(tmp_path):
    write_group(tmp_path / "run", {"count": 0})
    for delay_s in (0.0, 0.029):
        process = subprocess.Popen(
            [sys.executable, "-c", UPDATE, tmp_path / "run"], stdout=subprocess.PIPE, text=True
        )
        printed = [process.stdout.readline()]
        time.sleep(delay_s)
        process.kill()
        printed += process.communicate()[0].split()
        assert count_in(tmp_path / "run") - int(printed[-1]) in range(2)


def test_get_array__any_flipped_bit_of_the_metadata_is_found_or_means_the_same(tmp_path):
    write_group(tmp_path / "run", {})
    group = open_group(tmp_path / "run", kind="run", writable=True)
    create_array(
        group, "rows", shape=(7, 2), dtype="U5", chunks=(3, 2), dimensions=("row", "column")
    )
    written = get_array(group, "rows").metadata
    file = tmp_path / "run" / "rows" / "zarr.json"
    whole = file.read_bytes()
    n_found = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        try:
            assert get_array(group, "rows").metadata == written
        except DamagedDataError:
            n_found += 1
    # Without the key "configuration", at two places of the file, zarr takes its defaults.
    assert n_found >= len(whole) - 2 * len("configuration")
