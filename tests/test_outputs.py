"""Files that are made for a person: what they may not replace, and who comes first."""

from contextlib import nullcontext

import pytest

from dask_nrbfn.errors import ExistsError, ParameterError, StorageError
from dask_nrbfn.outputs import check_not_input, check_output_file, new_file
from tests.storage.written import file_size_limit, make_model


def refused_places(directory):
    """Make places that no file can be written to; return errors and problems by place."""
    (directory / "old.txt").write_text("old")
    make_model().save(directory / "model.zarr")
    (directory / "link").symlink_to(directory / "model.zarr")
    inside = (ParameterError, "is inside the Zarr group .*model.zarr")
    return {
        "old.txt": (ExistsError, r"old.txt already exists\. Give another path, or set overwrite"),
        "model.zarr/zarr.json": inside,
        "model.zarr/page.html": inside,
        "model.zarr/new/page.html": inside,
        "model.zarr/basis/page.html": inside,
        "link/page.html": inside,
        "model.zarr": (ExistsError, "model.zarr exists, but is not a file"),
        "link": (ExistsError, "link exists, but is not a file"),
        "old.txt/page.html": (StorageError, r"page.html cannot be written \("),
        "old.txt/new/page.html": (StorageError, r"page.html cannot be written \("),
        "/sys/page.html": (StorageError, r"/sys/page.html cannot be written \("),
        f"{'x' * 300}.html": (StorageError, r"x.html cannot be written \(File name too long"),
        "/dev/full": (ExistsError, "/dev/full exists, but is not a file"),
        "s3://bucket/page.html": (ParameterError, "is not a local file"),
    }


def test_check_output_file__refused_places(tmp_path):
    places = refused_places(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for name, (error, problem) in places.items():
        place = name if "://" in name else tmp_path / name
        for overwrite in (False, True)[: 1 if name == "old.txt" else 2]:
            with pytest.raises(error, match=problem):
                check_output_file(place, overwrite=overwrite)
    assert sorted(tmp_path.rglob("*")) == before


def test_check_output_file__here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExistsError, match=r"^\. exists, but is not a file\. Give the name of a"):
        check_output_file(".", overwrite=True)
    assert check_output_file("page.html", overwrite=False) == tmp_path.resolve() / "page.html"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "place", "relation"),
    [
        ("a/rows.csv", "a/rows.csv", "is"),
        ("a/../a/rows.csv", "file://{}/a/rows.csv", "is"),
        ("hard.csv", "a/rows.csv", "is"),
        ("link/rows.csv", "a/rows.csv", "is"),
        ("new.zarr", "a/../new.zarr", "is"),
        ("a", "link/rows.csv", "contains"),
        ("link/new.zarr", "a", "is inside"),
        ("s3://bucket//rows.zarr/", "s3://bucket/rows.zarr", "is"),
        ("s3://bucket/rows.zarr", "s3://bucket/rows.zarr/X", "contains"),
        ("a/rows.csv.csv", "a/rows.csv", None),
        ("s3://bucket/rows", "s3://other/rows", None),
        (f"{'x' * 300}", "a", None),
    ],
)
def test_check_not_input__by_any_spelling_and_link(tmp_path, monkeypatch, out, place, relation):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rows.csv").write_text("1")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "hard.csv").hardlink_to("a/rows.csv")
    place = place.format(tmp_path)
    refused = pytest.raises(ParameterError, match=f"^the output {out} {relation} the input {place}")
    with refused if relation else nullcontext():
        check_not_input(out, ["other", place])


def write(path, text, *, overwrite=False):
    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_text(text)


def test_new_file__makes_its_directory_and_follows_links(tmp_path):
    write(tmp_path / "a" / "b" / "page.html", "new")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "page.html")
    with pytest.raises(ExistsError):
        write(tmp_path / "link", "newer")
    write(tmp_path / "link", "newer", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "b" / "page.html").read_text() == "newer"


def test_new_file__an_error_leaves_the_old_one(tmp_path):
    write(tmp_path / "page.html", "old")

    def write_and_fail():
        with new_file(tmp_path / "page.html", overwrite=True) as unfinished:
            unfinished.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"page.html": "old"}


def test_new_file__two_writers_of_a_new_name(tmp_path):
    page = tmp_path / "page.html"
    second = new_file(page, overwrite=False)
    with new_file(page, overwrite=False) as unfinished:
        unfinished.write_text("first")
        second.__enter__().write_text("second")
    with pytest.raises(ExistsError, match="another job wrote it"):
        second.__exit__(None, None, None)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"page.html": "first"}


def test_new_file__no_room(tmp_path):
    with (
        file_size_limit(2**20),
        pytest.raises(StorageError, match=r"page.html does not fit on the disk \(File too large\)"),
    ):
        write(tmp_path / "page.html", "x" * 2**21)
    assert list(tmp_path.iterdir()) == []


def test_check_output_file__no_room_is_found_before_the_work(tmp_path):
    with file_size_limit(100), pytest.raises(StorageError, match=r"page.html does not fit"):
        check_output_file(tmp_path / "page.html", overwrite=False)
    assert list(tmp_path.iterdir()) == []
