import json
import os
import re
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest

from tests.cluster.manifests import CLUSTER, documents, parse
from tests.cluster.secured import PLAIN, START, call, make_certificates
from tests.engine.processes import PATIENCE_S, free_port, kill_tree
from tests.tables import spirals

KEYS = {"STORE_ACCESS_KEY": "somebody", "STORE_SECRET_KEY": "something"}
SCHEMA = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"


@pytest.fixture(scope="module")
def compose():
    (document,) = documents("compose/compose.yaml")
    return document


def interpolated(text, variables):
    """Return text with ${NAME:-default} and ${NAME:?error} replaced, as compose does."""

    def value(match):
        name, operator, word = match.groups()
        found = variables.get(name)
        assert found or operator == "-", word
        return found or word

    return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", value, str(text))


@pytest.mark.ci
def test_compose__validates(compose):
    import jsonschema

    (schema,) = (path for path in metadata.files("check-jsonschema") if str(path) == SCHEMA)
    jsonschema.validate(compose, json.loads(schema.locate().read_text()))


def test_compose__what_it_refers_to_is_there(compose):
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        sources = {volume.split(":")[0] for volume in service["volumes"]}
        assert {name for name in sources if not name.startswith("$")} <= set(compose["volumes"])
    asked = set(re.findall(r"\$\{(\w+)", json.dumps(compose)))
    example = (CLUSTER / "compose" / ".env.example").read_text()
    assert set(re.findall(r"^(\w+)=", example, re.MULTILINE)) == asked
    build = services["worker"]["build"]
    assert (CLUSTER / "compose" / build["context"] / build["dockerfile"]).exists()


def test_compose__commands(compose):
    services = compose["services"]
    options = parse(services["worker"]["command"])
    assert "tls://scheduler:8786" in options["scheduler"]
    assert (options["nthreads"], options["dashboard"]) == (1, False)
    assert parse(services["scheduler"]["command"])["port"] == "8786"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Give the port of an S3 store behind the certificates in tmp_path, empty and with TLS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    port = free_port()
    certificates = make_certificates(tmp_path / "certificates")
    files = {"--ssl-cert": certificates / "cert.pem", "--ssl-key": certificates / "key.pem"}
    options = [str(word) for option in files.items() for word in option]
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    yield port
    kill_tree(process.pid)
    process.wait(PATIENCE_S)


@pytest.mark.ci
@pytest.mark.slow
def test_compose__environment_reaches_the_store(compose, store, tmp_path):
    services = compose["services"]

    def run(command, environment):
        here = {
            name: interpolated(value, KEYS)
            .replace("store:7070", f"localhost:{store}")
            .replace("/certificates", str(tmp_path / "certificates"))
            for name, value in environment.items()
        }
        own = {name: PLAIN[name] for name in ("PATH", "PYTHONPATH")}
        process = call([START, *command], patience=2, cwd=tmp_path, env=own | here)
        assert process.returncode == 0, process.stderr
        return process.stdout

    run(services["bucket"]["command"], services["bucket"]["environment"])
    np.savez(tmp_path / "rows.npz", **dict(zip("Xy", spirals(300), strict=True)))
    for job in ("ingest rows.npz s3://nrbfn/data --x X --y y", "inspect s3://nrbfn/data"):
        out = run(["dask-nrbfn", *job.split()], services["job"]["environment"])
    assert "n_features         4" in out
