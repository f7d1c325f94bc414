import os
from collections import defaultdict
from importlib.util import find_spec

# The processes of pytest-xdist share the cores. BLAS and OpenMP read this when they are loaded.
# Threads of OpenMP that wait for a busy core spin: clusters of 300 rows take seconds.
if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")

import pytest
from distributed import Client
from hypothesis import HealthCheck, settings

from dask_nrbfn.engine import DaskEngine, EngineOptions, connect
from dask_nrbfn.engine.connection import local_cluster
from dask_nrbfn.storage.run import Run

# What the extra `ci` brings: packages that take longer to install than the tests to run.
CI_PACKAGES = (
    *("check_jsonschema", "dask_kubernetes", "datasets", "kubernetes_validate"),
    *("mkdocstrings", "moto", "prefect", "s3fs"),
)

# A busy machine is no defect.
settings.register_profile(
    "quick", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tell what is slow, before it is deselected, and what cannot run here."""
    mark_slow_cases(items)
    skip_without_ci_packages(items)


def mark_slow_cases(items):
    """Of the cases of a test with many, leave those fast that `fast_cases` asks for."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("fast_cases"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for own in cases.values():
        (n_fast,) = own[0].get_closest_marker("fast_cases").args
        fast = {place * len(own) // n_fast for place in range(n_fast)}
        for place, item in enumerate(own):
            if place not in fast:
                item.add_marker(pytest.mark.slow)


def skip_without_ci_packages(items):
    """Skip the tests that need the extra `ci` where it is not installed."""
    missing = [name for name in CI_PACKAGES if find_spec(name) is None]
    if not missing:
        return
    skip = pytest.mark.skip(reason=f"{', '.join(missing)} missing: pip install '.[ci]'")
    for item in items:
        if item.get_closest_marker("ci"):
            item.add_marker(skip)


# Names of the settings of numba that the session began with.
NUMBA_SETTINGS = {name for name in os.environ if name.startswith("NUMBA_")}


def pytest_runtest_setup():
    """Take away what clusters that are kept open, and their nannies, have set for their workers.

    Numba reads its settings anew before it compiles, and refuses another number of threads than it
    has started in this process.
    """
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        if name not in NUMBA_SETTINGS:
            del os.environ[name]


@pytest.fixture(scope="session", autouse=True)
def no_flush():
    """Let `os.fsync` look at its file only: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session")
def two_workers() -> DaskEngine:
    """Give an engine on two worker processes with one BLAS thread each."""
    options = EngineOptions(workers=2, threads=1, memory="2GiB")
    with (
        local_cluster(options) as cluster,
        Client(cluster, set_as_default=False) as client,
        connect(client=client) as engine,
    ):
        yield engine


@pytest.fixture
def kept_scratch(monkeypatch):
    """Let a finished run keep what a stage has tried or learned on."""
    monkeypatch.setattr(Run, "group_names", lambda run, prefix: [])
