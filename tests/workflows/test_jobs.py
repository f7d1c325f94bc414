import re

import click
import numpy as np
import pytest
from sklearn.datasets import load_iris

from dask_nrbfn import Dataset, NRBFNError
from dask_nrbfn.cli.data import ingest as ingest_command
from dask_nrbfn.storage.location import RemoteLocation
from tests.workflows.script import ROOT, run_here

SETTINGS = """
[data]
train = { source = "train.npz" }
test = { source = "test.npz" }
chunk_rows = 20

[fit]
alpha = 1e-9
n_parts = 3

[engine]
workers = 0
threads = 1

[output]
directory = "output"
"""


WRONG = {
    "section": ("[fit]", "[fitting]", "unknown key 'fitting' in the settings."),
    "data key": ("chunk_rows", "chunks", "unknown key 'chunks' in [data]."),
    "fit key": ("n_parts", "parts", "unknown key 'parts' in [fit]."),
    "engine type": ("workers = 0", 'workers = "1"', "workers in [engine] is '1'."),
    "fit value": ("alpha = 1e-9", "alpha = 2", "[fit] alpha is 2."),
    "storage without URL": (
        "[engine]",
        '[storage]\nkey = "a"\n[engine]',
        "[storage] is given, but [output] has no URL.",
    ),
    "output over rows": (
        'directory = "output"',
        'directory = "train.npz"',
        "would replace the rows",
    ),
    "missing key": ('directory = "output"', "", "[output] has no directory."),
    "no TOML": ("[fit]", "[fit", "settings.toml is no TOML: "),
}


NIGHT = """
[night]
incoming = { source = "incoming" }
max_error_rate = 0.1
tolerance = 0.01
"""
WRONG_NIGHT = {
    "key": ("tolerance", "tolerances", "unknown key 'tolerances' in [night]."),
    "missing key": ("tolerance = 0.01", "", "[night] has no tolerance."),
    "source key": ("source", "name", "unknown key 'name' in incoming in [night]."),
    "type": ("0.1", "1", "max_error_rate in [night] is 1."),
    "percent": ("0.1", "10.0", "[night] max_error_rate is 10.0."),
    "new rows": ("tolerance", "max_new_error = -1.0\ntolerance", "max_new_error is -1.0."),
}


@pytest.mark.parametrize("case", WRONG_NIGHT)
def test_settings__wrong_nights_are_named(monkeypatch, tmp_path, case):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from settings import read_settings, spelled

    right, wrong, expected = WRONG_NIGHT[case]
    assert right in NIGHT
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS + NIGHT.replace(right, wrong, 1))
    with pytest.raises(NRBFNError) as raised:
        read_settings(path)
    assert expected in raised.value.spelled(spelled)[0]


def test_settings__guide_lists_the_keys_of_data(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "workflows/jobs")
    from settings import DATA_KEYS, SOURCE_KEYS

    page = (ROOT / "workflows/guide/pages/task/schedule.md").read_text()
    listed = page.partition("## The keys of `[data]`")[2].partition("## cron")[0]
    assert {*DATA_KEYS, *SOURCE_KEYS} - {*re.findall(r"`(\w+)`", listed)} == set()


def test_settings__example_of_a_night_is_read(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from settings import read_settings

    example = ROOT / "workflows/jobs/night.toml"
    night = read_settings(example).night
    assert night.directory == example.with_name("incoming")
    assert (night.max_error_rate, night.tolerance, night.refresh) == (0.1, 0.005, True)
    assert night.max_new_error == 0.3


@pytest.mark.parametrize("case", WRONG)
def test_settings__wrong_ones_are_named(monkeypatch, tmp_path, case):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from settings import read_settings, spelled

    right, wrong, expected = WRONG[case]
    assert right in SETTINGS
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS.replace(right, wrong, 1))
    with pytest.raises(NRBFNError) as raised:
        read_settings(path)
    assert expected in raised.value.spelled(spelled)[0]
    assert raised.value.remedy


def test_settings__storage_goes_with_urls(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from settings import read_settings

    path = tmp_path / "settings.toml"
    path.write_text(
        SETTINGS.replace('"output"', '"s3://bucket/fits"')
        + '[storage]\nclient_kwargs = { endpoint_url = "http://a" }\n'
    )
    settings = read_settings(path)
    options = {"client_kwargs": {"endpoint_url": "http://a"}}
    assert settings.location("run") == RemoteLocation("s3://bucket/fits/run.zarr", options)


def test_settings__of_a_file_are_what_ingest_takes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from settings import SOURCE_KEYS

    options = {param.name for param in ingest_command.params if isinstance(param, click.Option)}
    decided = {"chunk_rows", "overwrite", "write_schema", "as_json", "storage_options"}
    assert SOURCE_KEYS.keys() == (options - decided) | {"source"}


def run_night(settings):
    return run_here("workflows/jobs/night.py", settings, cwd="/")


def test_jobs__a_night_needs_its_section(tmp_path):
    X, y = load_iris(return_X_y=True)
    for name in ("train", "test"):
        np.savez(tmp_path / f"{name}.npz", X=X, y=y)
    (tmp_path / "settings.toml").write_text(SETTINGS)
    process = run_night(tmp_path / "settings.toml")
    assert process.returncode == 2
    assert process.stderr.splitlines()[-2] == "the settings have no [night]."


def test_jobs__other_rows_are_read_as_the_training_rows(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from ingest import ingest
    from settings import read_settings

    options = '"train.csv", label = "kind", id = "row", delimiter = "|"'
    text = SETTINGS.replace('"train.npz"', options)
    text = text.replace('"test.npz"', '"test.csv", label = "kind"')
    (tmp_path / "settings.toml").write_text(text)
    (tmp_path / "train.csv").write_text("row|color|kind\n1|red|a\n2|blue|b\n")
    (tmp_path / "test.csv").write_text("kind|color|row\na|red|7\nb|gray|8\n")
    ingest(read_settings(tmp_path / "settings.toml"))
    train, test = (Dataset.open(tmp_path / f"output/{name}.zarr") for name in ("train", "test"))
    assert test.schema.columns == train.schema.columns
    assert test.ids[:].tolist() == [7, 8]
    np.testing.assert_array_equal(test.take(np.arange(2)), [[0, 1], [0, 0]])


def test_jobs__bad_settings_are_two_lines_and_2(tmp_path):
    right, wrong, expected = WRONG["fit value"]
    (tmp_path / "settings.toml").write_text(SETTINGS.replace(right, wrong, 1))
    process = run_night(tmp_path / "settings.toml")
    assert process.returncode == 2
    what, how = process.stderr.splitlines()
    assert expected in what
    assert how
    assert process.stdout == ""
