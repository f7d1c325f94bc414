import re
import shutil
import sys

import numpy as np
import pytest

from dask_nrbfn.storage.group import locked_run
from dask_nrbfn.storage.model import Model
from tests.cluster.secured import call
from tests.tables import spirals
from tests.workflows.nights import NAMES, SETTINGS, Place, write_csv
from tests.workflows.script import ENVIRONMENT, ROOT


@pytest.fixture(scope="module")
def first_night(tmp_path_factory):
    """A place after its first night, with one file, and the process of that night."""
    place = Place(tmp_path_factory.mktemp("first"))
    place.write_sources()
    place.bring("today.csv", *spirals(200, seed=10))
    return place, place.night()


@pytest.fixture
def place(first_night, tmp_path):
    shutil.copytree(first_night[0].directory, tmp_path / "place")
    return Place(tmp_path / "place")


def test_night__first_one_fits_adds_and_publishes(first_night):
    place, process = first_night
    assert process.returncode == 0, process.stderr
    (version,) = place.versions()
    assert place.n_rows() == 800
    assert place.waiting() == []
    assert place.moved_to("done") == ["today"]
    assert place.model().digest() == Model.load(place.run_location).digest()
    X, y = spirals(300, seed=1)
    labels = place.model().scores(X).argmax(axis=1)
    assert version["error_rate"] == np.mean(labels != y) < 0.15
    (night,) = place.nights()
    (file,) = night["learned"]
    assert (file["n_rows"], file["new_error"]) == (200, version["new_error"])
    assert (night["published"], night["error_rate"]) == (True, version["error_rate"])
    assert (night["rejected"], night["refreshed"], night["problem"]) == ([], False, None)


def test_night__same_rows_are_added_once_and_a_name_may_come_again(place):
    before = place.model().digest()
    X, y = spirals(200, seed=10)
    place.bring("again.csv", X[:, ::-1], y, NAMES[::-1])
    place.bring("today.csv", *spirals(200, seed=11))
    process = place.night()
    assert process.returncode == 0, process.stderr
    assert "holds the rows" in process.stderr
    assert [file["n_rows"] for file in place.nights()[-1]["learned"]] == [0, 200]
    assert place.n_rows() == 1000
    assert place.moved_to("done") == ["again", "today", "today"]
    assert place.model().digest() != before


def not_a_number(place):
    X, y = spirals(50, seed=12)
    X[30, 2] = np.nan
    place.bring("nan.csv", X, y)


def other_format(place):
    (place.incoming / "notes.txt").write_text("nothing new\n")


def unknown_label(place):
    X, y = spirals(50, seed=16)
    place.bring("labels.csv", X, np.where(y == 2, 7, y))


def broken_link_in_a_directory(place):
    (place.incoming / "days").mkdir()
    write_csv(place.incoming / "days" / "1.csv", *spirals(50, seed=18))
    (place.incoming / "days" / "2.csv").symlink_to("2.csv")


@pytest.mark.parametrize(
    "bad",
    [
        {
            broken_link_in_a_directory: "days/2.csv is a link to nothing",
            not_a_number: "nan.csv has no value in some rows",
            other_format: "notes.txt has no column",
        },
        {unknown_label: "label 7 of"},
    ],
    ids=["when written", "when checked"],
)
def test_night__learns_the_files_that_are_not_bad(place, bad):
    before = place.model().digest()
    for bring in bad:
        bring(place)
    place.bring("good.csv", *spirals(200, seed=17))
    process = place.night()
    assert process.returncode == 2, process.stderr
    assert len(place.nights()[-1]["rejected"]) == len(bad)
    assert place.model().digest() == Model.load(place.run_location).digest() != before
    assert place.n_rows() == 1000
    assert place.waiting() == []
    assert place.moved_to("done") == ["good", "today"]
    assert len(list(place.directory.glob("output/datasets/*"))) == 2
    for reason, text in zip(bad.values(), place.reasons(), strict=True):
        assert reason in text


def test_night__killed_one_is_recorded_by_the_next(place):
    not_a_number(place)
    good = spirals(200, seed=17)
    place.bring("good.csv", *good)
    place.night()
    # As if it had been killed while it wrote its last line.
    record = place.directory / "output/nights.jsonl"
    record.write_text(record.read_text()[:-20])
    place.bring("again.csv", *good)
    process = place.night()
    assert process.returncode == 2
    assert "1 file cannot be used: nan-" in process.stderr
    night = place.nights()[-1]
    assert [file["n_rows"] for file in night["learned"]] == [0, 200]
    assert night["learned"][1]["new_error"] == place.versions()[-1]["new_error"]


def test_night__one_that_fails_is_recorded(tmp_path):
    place = Place(tmp_path)
    assert place.night().returncode == 2
    (night,) = place.nights()
    assert "train.csv does not exist" in night["problem"]


@pytest.mark.slow
def test_night__worse_model_is_refused(place):
    before, digest, versions = place.published(), place.model().digest(), place.versions()
    X, y = spirals(2000, seed=19)
    place.bring("wrong.csv", X, (y + 1) % 3)
    process = place.night()
    assert process.returncode == 2, process.stderr
    assert place.published() == before
    assert Model.load(place.run_location).digest() == digest
    assert place.versions() == versions
    assert place.moved_to("rejected") == ["wrong"]
    (reason,) = place.reasons()
    assert re.search(r"has an error of [\d.]+ on .*, but only [\d.]+ is allowed", reason)

    place.bring("good.csv", *spirals(200, seed=20))
    assert place.night().returncode == 0
    assert place.model().digest() == Model.load(place.run_location).digest() != digest


def test_night__floor_and_tolerance_both_hold(monkeypatch, place):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from publish import judge_of
    from settings import read_settings

    from dask_nrbfn import connect

    now = place.versions()[-1]["error_rate"]
    settings = read_settings(place.settings)
    with connect(settings.engine) as engine:
        assert judge_of(settings, engine).max_error_rate == now + 0.02 < 0.15
        place.settings.write_text(SETTINGS.replace("tolerance = 0.02", "tolerance = 0.5"))
        assert judge_of(read_settings(place.settings), engine).max_error_rate == 0.15
        shutil.rmtree(place.model_location)
        assert judge_of(settings, engine).max_error_rate == 0.15


@pytest.mark.slow
def test_night__a_damaged_published_model_is_replaced(place):
    digest = place.model().digest()
    (place.model_location / "weights" / "c" / "0" / "0").write_bytes(b"")
    assert place.night().returncode == 0
    assert place.model().digest() == digest


@pytest.mark.slow
def test_night__from_the_crontab(place, tmp_path):
    (command,) = [
        line.split(maxsplit=5)[5]
        for line in (ROOT / "workflows/jobs/crontab").read_text().splitlines()
        if not line.startswith("#")
    ]
    before, versions = place.published(), place.versions()
    home = place.directory.rename(tmp_path / "nrbfn")
    (home / ".venv").symlink_to(sys.prefix)
    (home / "workflows").symlink_to(ROOT / "workflows")
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **ENVIRONMENT}
    (home / "night.log").write_text("of the night before\n")
    for day in range(1, 9):
        (home / f"before/2026-01-0{day}-021500").mkdir(parents=True)

    def run():
        return call(["/bin/sh", "-c", command], cwd=tmp_path, env=environment)

    process = run()
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    log = (home / "night.log").read_text()
    assert log.startswith("of the night before\n")
    # A night without files changes nothing.
    place = Place(home)
    assert place.published() == before
    assert place.versions() == versions

    # The last seven copies are kept, and the latest one has what was there before the night.
    not_a_number(place)
    place.bring("good.csv", *spirals(200, seed=17))
    process = run()
    assert process.returncode == 2
    assert process.stdout.startswith("1 file cannot be used: nan-")
    assert len(process.stdout.splitlines()) == 2
    copies = sorted((home / "before").iterdir())
    assert len(copies) == 7
    assert copies[4].name == "2026-01-08-021500"
    assert place.versions() != versions
    for group in ("run.zarr", "model.zarr"):
        shutil.rmtree(home / "output" / group)
        shutil.copytree(copies[-1] / group, home / "output" / group)
    assert place.published() == before
    assert place.versions() == versions
    assert run().returncode == 0
    assert place.published() == before


def test_night__second_at_once_is_refused(place):
    before = place.published()
    place.bring("good.csv", *spirals(200, seed=21))
    with locked_run(place.directory / "output/night.zarr"):
        process = place.night()
    assert process.returncode == 2
    assert "works on" in process.stderr
    assert place.published() == before
    assert place.waiting() == ["good.csv"]


@pytest.mark.slow
def test_night__refresh_when_an_update_says_so(tmp_path):
    settings = SETTINGS.replace("refresh = false", "refresh = true")
    place = Place(tmp_path, settings.replace("alpha = 1e-9", "cells = 2"))
    place.write_sources()
    place.bring("many.csv", *spirals(1500, seed=22))
    assert place.night().returncode == 0
    assert [member["n_rows"] for member in place.run().attributes["members"]] == [600, 1500]
    assert place.run().attributes["n_rows"] == 2100
    assert place.versions() == []
    (night,) = place.nights()
    assert night["refreshed"]
    assert night["learned"][0]["n_rows"] == 1500
    assert night["learned"][0]["new_error"] > 0
    assert place.model().digest() == Model.load(place.run_location).digest()

    place.settings.write_text(settings.replace("alpha = 1e-9", "alpha = 1e-8\ncells = 2"))
    other = place.night()
    assert other.returncode == 2
    assert "was refreshed with other parameters" in other.stderr
