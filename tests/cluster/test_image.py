import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cluster.manifests import CLUSTER

ROOT = CLUSTER.parent
DOCKERFILE = (CLUSTER / "Dockerfile").read_text()


def locked_versions():
    """Return the locked versions by name, each with its hashes."""
    text = (CLUSTER / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pins = (re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines)
    versions = {canonicalize_name(pin[1]): pin[2] for pin in pins}
    assert len(versions) == len(lines)
    assert all("--hash=sha256:" in line for line in lines)
    return versions


def test_image__lock_has_what_the_package_asks_for():
    locked = locked_versions()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = re.findall(r"--extra (\w+)", DOCKERFILE)
    asked = [
        *project["project"]["dependencies"],
        *(line for name in extras for line in project["project"]["optional-dependencies"][name]),
        *project["build-system"]["requires"],
    ]
    for requirement in map(Requirement, asked):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not locked"
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}"


def test_image__what_is_copied_is_sent():
    sent = {
        line.removeprefix("!")
        for line in (CLUSTER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    instructions = re.findall(r"^COPY (.+)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)
    sources = [source for line in instructions for source in line.split()[:-1]]
    assert "dask_nrbfn" in sources
    for source in sources:
        assert (ROOT / source).exists()
        assert source.split("/")[0] in sent
