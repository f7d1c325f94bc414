import math
import sys

import numpy as np
import pytest

from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric import device
from dask_nrbfn.numeric.trials import try_networks
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import trials, units
from tests.gpu import claims
from tests.stages.fits import fit_table
from tests.stand_in_gpu import OutOfMemoryError, StandInGpu
from tests.tables import spirals


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """The stand-in, whose arrays refuse every implicit copy to the host."""
    stand_in = StandInGpu()
    monkeypatch.setattr(device, "open_gpu", lambda: stand_in)
    return stand_in


@pytest.mark.fast_cases(13)
@pytest.mark.parametrize("claim", claims.CLAIMS)
def test_stand_in__agrees_with_the_cpu(claim, gpu):
    claims.CLAIMS[claim]()
    assert gpu.uploads


def test_stand_in__finishes_a_run_of_the_cpu(caplog):
    claims.run_goes_on(caplog)


def test_stand_in__memory_is_a_budget():
    def allocate():
        raise OutOfMemoryError("out of memory")

    claims.memory_is_a_budget(allocate)


def test_moments__only_sums_come_back(gpu):
    claims.fit_agrees(claims.FITS["plain"])
    # Parts of gram, the products of targets, weights, and scores (b, K) of new rows.
    assert not [shape for shape in gpu.downloads if shape[0] > 40]


@pytest.mark.parametrize("name", ["classes", "kernel", "clusters", "components"])
def test_networks__only_scores_and_weights_come_back(name, gpu):
    network = claims.NETWORKS[name]
    claims.networks_agree(network)
    # Twice each ridge and fold. Eigenfunctions are small systems, which the CPU solves.
    assert gpu.n_factors >= (0 if name == "components" else 2 * 2 * len(network.ridges))
    assert (200, 4) in gpu.uploads
    # Not a block of activations (64, 40), nor a gram matrix; the kernel stays there too.
    assert max(map(math.prod, gpu.downloads)) < 40 * 20 + 1


def test_tuning__only_scores_and_weights_come_back(gpu):
    claims.tuning_agrees(*claims.TUNINGS["kernel"])
    of_basis = [shape for shape in gpu.downloads if len(shape) == 2 and shape[1] == 40]
    assert of_basis
    assert max(n_rows for n_rows, _ in of_basis) < 10


def test_tuning__all_trials_use_the_gpu_whatever_the_threads(monkeypatch):
    uses_gpu = []

    def spy(*arguments, **options):
        uses_gpu.append(device.active_gpu() is not None)
        return try_networks(*arguments, **options)

    monkeypatch.setattr(units, "try_networks", spy)
    monkeypatch.setattr(trials, "try_networks", spy)
    engine = InlineEngine(threads=2, device="gpu")
    tuning = TuneParams(effort="quick", folds=2, scales=("standard", "learned"))
    fit_table(*spirals(200), FitParams(basis="random"), tuning=tuning, engine=engine)
    assert len(uses_gpu) > 10
    assert all(uses_gpu)


def test_without_gpu__nothing_moves():
    X = np.ones((2, 3))
    assert device.to_device(X) is X
    assert device.to_host(X) is X
    assert device.beside(X, X) is X
    assert device.array_module(X) is np


def test_open_gpu__without_cupy(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.open_gpu.cache_clear()
    with pytest.raises(ParameterError, match=r"device is gpu, but CuPy.*dask-nrbfn\[cuda13\]"):
        device.on_gpu(lambda: None)
