import json
import shutil
import subprocess
import sys

import psutil
import pytest

from dask_nrbfn.engine.threads import cluster_settings, worker_environment
from tests.cluster.secured import CLUSTER, START, call
from tests.engine.processes import PATIENCE_S, kill_tree, wait_until

CI = CLUSTER.parent / ".ci"
SCRIPTS = [*CLUSTER.rglob("*.sh"), *CLUSTER.rglob("*.sbatch"), CI / "run", CI / "release"]
ENVIRONMENT = CLUSTER / "worker-environment.sh"


def test_scripts__bash_parses():
    for path in SCRIPTS:
        subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts__shellcheck():
    process = call(["shellcheck", "--external-sources", *SCRIPTS])
    assert process.returncode == 0, process.stdout


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
@pytest.mark.parametrize("name", ["scheduler", "worker"])
def test_units__systemd_accepts_them(tmp_path, name):
    unit = tmp_path / f"nrbfn-{name}.service"
    text = (CLUSTER / "systemd" / unit.name).read_text()
    unit.write_text(text.replace("/opt/dask_nrbfn", str(CLUSTER.parent)))
    process = call(["systemd-analyze", "verify", unit], check=True)
    # Versions before 254 do not know them.
    newer = ("'RestartSteps'", "'RestartMaxDelaySec'")
    told = [line for line in process.stderr.splitlines() if unit.name in line]
    assert [line for line in told if not any(key in line for key in newer)] == []
    assert f"start.sh dask {name} " in text


@pytest.mark.parametrize(
    ("environment", "message"), [({}, "set THREADS"), ({"THREADS": "1"}, "set CERTIFICATES")]
)
def test_start__asks_for_what_it_needs(environment, message):
    process = call([START, "true"], env={"PATH": "/usr/bin:/bin", **environment})
    assert process.returncode != 0
    assert message in process.stderr


@pytest.mark.slow
def test_start__restarts_what_ends_until_it_is_told_to_end(tmp_path):
    path = tmp_path / "log"
    command = f"echo begun; [ $(grep -c begun {path}) = 3 ] || exit 3; exec sleep 600"
    with path.open("ab") as log:
        environment = {"PATH": "/usr/bin:/bin", "THREADS": "1", "CERTIFICATES": "none"}
        command = [str(START), "--restart", "sh", "-c", command]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: path.read_text().count("begun") == 3)
        (child,) = psutil.Process(process.pid).children()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert not child.is_running()
    finally:
        kill_tree(process.pid)
        process.wait(PATIENCE_S)
    told = [line for line in path.read_text().splitlines() if "again" in line]
    assert told == [
        f"start.sh: sh ended with status 3 and is started again in {wait_s} s" for wait_s in (1, 2)
    ]


def test_environment__is_that_of_the_engine():
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    command = f'. "{ENVIRONMENT}" && "{sys.executable}" -c "{show}"'
    out = subprocess.check_output(["sh", "-c", command], env={"THREADS": "3"})
    shell = {"THREADS", "PWD", "SHLVL", "OLDPWD", "_", "LC_CTYPE"}
    exported = {name: value for name, value in json.loads(out).items() if name not in shell}
    settings = cluster_settings(3)
    settings.pop("distributed.nanny.pre-spawn-environ")
    variables = {
        "DASK_" + name.upper().replace(".", "__").replace("-", "_"): value
        for name, value in settings.items()
    }
    assert exported == {**worker_environment(3), **variables}
