import json
import re

import click
import numpy as np
import pytest
from sklearn.datasets import load_iris

from dask_nrbfn import Dataset, NRBFNClassifier, NRBFNError
from dask_nrbfn.cli.data import ingest
from dask_nrbfn.storage.location import RemoteLocation
from tests.workflows.script import ROOT, run_here, run_script

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
predictions = "predictions.csv"
probabilities = true
"""
JOBS = ("ingest", "fit", "predict", "evaluate")


def run_job(name, settings, *options, run=run_script):
    return run(f"workflows/jobs/{name}.py", settings, *options, cwd="/")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory with rows and settings, and the processes of all jobs run twice in it.

    The first fit runs on a cluster; the other jobs in their own process, to save starting one, and
    all of the second round in this one.
    """
    directory = tmp_path_factory.mktemp("jobs")
    X, y = load_iris(return_X_y=True)
    np.savez(directory / "train.npz", X=X[::2], y=y[::2])
    np.savez(directory / "test.npz", X=X[1::2], y=y[1::2])
    inline, cluster = directory / "settings.toml", directory / "cluster.toml"
    inline.write_text(SETTINGS)
    cluster.write_text(SETTINGS.replace("workers = 0", "workers = 1"))
    first = {job: run_job(job, cluster if job == "fit" else inline) for job in JOBS}
    return directory, (first, {job: run_job(job, inline, run=run_here) for job in JOBS})


@pytest.mark.slow
def test_jobs__all_end_well_twice(workplace):
    _, rounds = workplace
    for processes in rounds:
        for process in processes.values():
            assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_jobs__results_are_those_of_the_estimator(workplace):
    directory, rounds = workplace
    X, y = load_iris(return_X_y=True)
    network = NRBFNClassifier(alpha=1e-9, n_parts=3).fit(X[::2], y[::2])
    predicted = np.loadtxt(directory / "predictions.csv", delimiter=",", skiprows=1, dtype=float)
    np.testing.assert_array_equal(predicted[:, 0], network.predict(X[1::2]))
    np.testing.assert_allclose(predicted[:, 1:], network.predict_proba(X[1::2]), atol=1e-9)
    n_errors = int(np.sum(network.predict(X[1::2]) != y[1::2]))
    for processes in rounds:
        assert json.loads(processes["evaluate"].stdout) == {
            "rows": 75,
            "errors": n_errors,
            "error_rate": n_errors / 75,
        }


@pytest.mark.slow
def test_jobs__second_round_does_no_work_again(workplace):
    _, (first, second) = workplace
    assert "75 x 4 into" in first["ingest"].stderr
    assert second["ingest"].stderr.count("is complete") == 2
    assert "moments: 75 rows in" in first["fit"].stderr
    assert "moments" not in second["fit"].stderr


def test_jobs__fit_before_ingest(tmp_path):
    (tmp_path / "settings.toml").write_text(SETTINGS)
    process = run_job("fit", tmp_path / "settings.toml", run=run_here)
    assert process.returncode == 2
    assert f"there is no dataset at {tmp_path}/output/train.zarr." in process.stderr


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
    "predictions over rows": (
        '"predictions.csv"',
        '"train.npz"',
        "[output] would replace the rows in",
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
    assert settings.predictions == f"{tmp_path}/predictions.csv"


def test_settings__of_a_file_are_what_ingest_takes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "jobs")
    from settings import SOURCE_KEYS

    options = {param.name for param in ingest.params if isinstance(param, click.Option)}
    decided = {"chunk_rows", "overwrite", "write_schema", "as_json", "storage_options"}
    assert SOURCE_KEYS.keys() == (options - decided) | {"source"}


def test_jobs__other_rows_are_read_as_the_training_rows(tmp_path):
    text = SETTINGS.replace('"train.npz"', '"train.csv", label = "kind", id = "row", quote = "\'"')
    text = text.replace('"test.npz"', '"test.csv", label = "kind"')
    (tmp_path / "settings.toml").write_text(text)
    (tmp_path / "train.csv").write_text("row,color,kind\n1,'red',a\n2,'blue',b\n")
    (tmp_path / "test.csv").write_text("kind,color,row\na,'red',7\nb,'gray',8\n")
    process = run_job("ingest", tmp_path / "settings.toml", run=run_here)
    assert process.returncode == 0, process.stderr
    train, test = (Dataset.open(tmp_path / f"output/{name}.zarr") for name in ("train", "test"))
    assert test.schema.columns == train.schema.columns
    assert test.ids[:].tolist() == [7, 8]
    np.testing.assert_array_equal(test.take(np.arange(2)), [[0, 1], [0, 0]])


def test_jobs__bad_settings_are_two_lines_and_2(tmp_path):
    right, wrong, expected = WRONG["fit value"]
    (tmp_path / "settings.toml").write_text(SETTINGS.replace(right, wrong, 1))
    process = run_job("fit", tmp_path / "settings.toml", run=run_here)
    assert process.returncode == 2
    what, how = process.stderr.splitlines()
    assert expected in what
    assert how
    assert process.stdout == ""


def test_jobs__test_rows_are_asked_for(tmp_path):
    without = SETTINGS.replace('test = { source = "test.npz" }\n', "")
    (tmp_path / "settings.toml").write_text(without)
    process = run_job("predict", tmp_path / "settings.toml", run=run_here)
    assert process.returncode == 2
    assert process.stderr.splitlines()[0] == "[data] has no test."


def test_jobs__example_settings_are_read(tmp_path):
    X, y = load_iris(return_X_y=True)
    for name in ("train.csv", "test.csv"):
        table = np.column_stack([X, y])
        np.savetxt(tmp_path / name, table, delimiter=",", header="a,b,c,d,class", comments="")
    text = (ROOT / "workflows/jobs/example.toml").read_text()
    (tmp_path / "example.toml").write_text(text)
    process = run_job("ingest", tmp_path / "example.toml", run=run_here)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "output/train.zarr").is_dir()
    assert (tmp_path / "output/test.zarr").is_dir()
