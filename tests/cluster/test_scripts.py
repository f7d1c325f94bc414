import shutil
import subprocess

import pytest

from tests.cluster.manifests import CLUSTER

SCRIPTS = sorted([*CLUSTER.rglob("*.sh"), *CLUSTER.rglob("*.sbatch")])


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
