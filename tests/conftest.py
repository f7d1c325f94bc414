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
