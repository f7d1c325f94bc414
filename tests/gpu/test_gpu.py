"""The claims of `tests/numeric/test_device.py` on a GPU: `pytest -m gpu`."""

import pytest

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric import device
from tests.gpu import claims

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


def test_gpu__memory_is_a_budget():
    claims.memory_is_a_budget(lambda: device.active_gpu().xp.empty(2**40))
