import contextlib
import shutil
import subprocess

import psutil
import pytest

from tests.cluster.manifests import CLUSTER
from tests.engine.processes import PATIENCE_S, kill_tree, wait_until

CI = CLUSTER.parent / ".ci"
SCRIPTS = sorted([*CLUSTER.rglob("*.sh"), *CLUSTER.rglob("*.sbatch"), CI / "run", CI / "release"])


def names(path):
    return path.name


def test_scripts__are_found():
    assert {"start.sh", "tls-environment.sh", "cluster.sbatch"} <= set(map(names, SCRIPTS))


@pytest.mark.parametrize("path", SCRIPTS, ids=names)
def test_scripts__bash_parses(path):
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("path", SCRIPTS, ids=names)
def test_scripts__shellcheck(path):
    process = subprocess.run(
        ["shellcheck", "--external-sources", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
@pytest.mark.parametrize("name", ["scheduler", "worker"])
def test_units__systemd_accepts_them(tmp_path, name):
    unit = tmp_path / f"nrbfn-{name}.service"
    text = (CLUSTER / "systemd" / unit.name).read_text()
    unit.write_text(text.replace("/opt/dask_nrbfn", str(CLUSTER.parent)))
    process = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=True
    )
    # Versions before 254 do not know them.
    newer = ("'RestartSteps'", "'RestartMaxDelaySec'")
    told = [line for line in process.stderr.splitlines() if unit.name in line]
    assert [line for line in told if not any(key in line for key in newer)] == []
    assert f"start.sh dask {name} " in text


@pytest.mark.parametrize(
    ("environment", "message"),
    [({}, "set THREADS"), ({"THREADS": "1"}, "set CERTIFICATES")],
)
def test_scripts__start_asks_for_what_it_needs(environment, message):
    process = subprocess.run(
        [str(CLUSTER / "start.sh"), "true"],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode != 0
    assert message in process.stderr


@contextlib.contextmanager
def restarting(directory, command):
    """Give a process of `start.sh --restart` with a command of the shell, and its log."""
    path = directory / "log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [str(CLUSTER / "start.sh"), "--restart", "sh", "-c", command],
            env={"PATH": "/usr/bin:/bin", "THREADS": "1", "CERTIFICATES": "none"},
            stdout=log,
            stderr=log,
        )
    try:
        yield process, path
    finally:
        kill_tree(process.pid)
        process.wait(PATIENCE_S)


@pytest.mark.slow
def test_start__restarts_what_ends_and_waits_longer_each_time(tmp_path):
    with restarting(tmp_path, "echo begun; exit 3") as (process, log):
        wait_until(lambda: log.read_text().count("begun") == 3)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    told = [line for line in log.read_text().splitlines() if line != "begun"]
    assert told[:2] == [
        f"start.sh: sh ended with status 3 and is started again in {wait_s} s" for wait_s in (1, 2)
    ]


def test_start__restarts_nothing_once_it_is_told_to_end(tmp_path):
    with restarting(tmp_path, "echo begun; exec sleep 600") as (process, log):
        wait_until(lambda: log.read_text() == "begun\n")
        (child,) = psutil.Process(process.pid).children()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert not child.is_running()
    assert "again" not in log.read_text()
