import os
from importlib.util import find_spec

import pytest
from distributed import Client

from dask_nrbfn.engine import DaskEngine, EngineOptions, connect
from dask_nrbfn.engine.connection import local_cluster

# What the extra `ci` brings: packages that take longer to install than the tests to run.
CI_PACKAGES = (
    *("check_jsonschema", "dask_kubernetes", "kubernetes_validate"),
    *("moto", "prefect", "s3fs", "selenium"),
)


def pytest_collection_modifyitems(items):
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
