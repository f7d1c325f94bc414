import re

import click
import numpy as np
import pytest

from dask_nrbfn import Dataset, NRBFNError
from dask_nrbfn.cli.data import ingest as ingest_command
from tests.workflows.nights import SETTINGS
from tests.workflows.script import ROOT

# What is replaced in good settings, by what, and what is then wrong.
WRONG = {
    "section": ("[fit]", "[fitting]", "unknown key 'fitting' in the settings file."),
    "data key": ("[fit]", "chunks = 2\n[fit]", "unknown key 'chunks' in [data]."),
    "fit value": ("alpha = 1e-9", "alpha = 2", "[fit] alpha is 2."),
    "output over rows": ('"output"', '"train.csv"', "would replace the rows"),
    "missing key": ("tolerance = 0.02", "", "[night] has no tolerance."),
    "new rows": ("tolerance", "max_new_error = -1.0\ntolerance", "max_new_error is -1.0."),
    "no TOML": ("[fit]", "[fit", "settings.toml is no TOML: "),
}


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "workflows/jobs")
    import settings

    return settings


@pytest.mark.parametrize("case", WRONG)
def test_settings__wrong_ones_are_named(jobs, tmp_path, case):
    right, wrong, expected = WRONG[case]
    assert right in SETTINGS
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS.replace(right, wrong, 1))
    with pytest.raises(NRBFNError) as raised:
        jobs.read_settings(path)
    problem, remedy = raised.value.spelled(jobs.spelled)
    assert expected in problem
    assert remedy


def test_record__is_appended_to_at_a_url(jobs, tmp_path):
    from record import read_nights, write_night

    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS.replace('"output"', f'"memory://{tmp_path}"'))
    settings = jobs.read_settings(path)
    assert read_nights(settings) == []
    for n in range(2):
        write_night(settings, {"n": n})
    assert [night["n"] for night in read_nights(settings)] == [0, 1]


def test_settings__example_is_read(jobs):
    example = ROOT / "workflows/jobs/night.toml"
    night = jobs.read_settings(example).night
    assert night.directory == example.with_name("incoming")
    assert (night.max_error_rate, night.max_new_error, night.refresh) == (0.1, 0.3, True)


def test_settings__of_a_file_are_what_ingest_takes_and_the_guide_lists(jobs):
    options = {param.name for param in ingest_command.params if isinstance(param, click.Option)}
    decided = {"chunk_rows", "overwrite", "as_json"}
    assert jobs.SOURCE_KEYS.keys() == (options - decided) | {"source"}
    page = (ROOT / "workflows/guide/pages/task/schedule.md").read_text()
    listed = page.partition("## The keys of `[data]`")[2].partition("## cron")[0]
    assert {*jobs.DATA_KEYS, *jobs.SOURCE_KEYS} <= {*re.findall(r"`(\w+)`", listed)}


def test_ingest__other_rows_are_read_as_the_training_rows(jobs, tmp_path):
    from ingest import ingest

    options = '"train.csv", label = "kind", id = "row", delimiter = "|"'
    text = SETTINGS.replace('"train.csv", label = "class"', options)
    text = text.replace('"test.csv", label = "class"', '"test.csv", label = "kind"')
    (tmp_path / "settings.toml").write_text(text)
    (tmp_path / "train.csv").write_text("row|color|kind\n1|red|a\n2|blue|b\n")
    (tmp_path / "test.csv").write_text("kind|color|row\na|red|7\nb|gray|8\n")
    (tmp_path / "incoming").mkdir()
    ingest(jobs.read_settings(tmp_path / "settings.toml"))
    train, test = (Dataset.open(tmp_path / f"output/{name}.zarr") for name in ("train", "test"))
    assert test.schema.columns == train.schema.columns
    assert test.ids[:].tolist() == [7, 8]
    np.testing.assert_array_equal(test.take(np.arange(2)), [[0, 1], [0, 0]])
