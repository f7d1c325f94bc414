import pytest
from distributed import Client

from dask_nrbfn.engine import DaskEngine, EngineOptions, connect
from dask_nrbfn.engine.connection import local_cluster


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
