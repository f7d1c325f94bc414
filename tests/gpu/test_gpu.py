"""The claims of `tests/numeric/test_device.py` on a GPU: `pytest -m gpu`."""

import pytest

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric import device
from tests.gpu import claims
from tests.tables import spirals, write_table

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def gpu():
    try:
        return device.open_gpu()
    except ParameterError as error:
        pytest.skip(error.problem)


@pytest.mark.parametrize("claim", claims.CLAIMS)
def test_gpu__agrees_with_the_cpu(claim):
    claims.CLAIMS[claim]()


def test_gpu__finishes_a_run_of_the_cpu(caplog):
    claims.run_goes_on(caplog)


def test_gpu__in_a_worker_of_its_own(tmp_path):
    X, y = spirals(300)
    dataset = write_table(tmp_path / "rows", X, y)
    with connect(EngineOptions(workers=1, device="gpu")) as engine:
        run = fit_dataset(dataset, tmp_path / "run", claims.PARAMS, engine)
    claims.scores_agree(X, run, fit_dataset(dataset, tmp_path / "cpu", claims.PARAMS, claims.CPU))


def test_gpu__memory_is_a_budget():
    claims.memory_is_a_budget(lambda: device.active_gpu().xp.empty(2**40))
