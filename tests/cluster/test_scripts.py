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
