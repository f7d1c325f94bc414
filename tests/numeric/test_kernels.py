import numpy as np
import pytest

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.radial import RadialFeatures


@pytest.mark.parametrize("name", ["gaussien", "kernels", "__init__", "", "os"])
def test_kernel_named__unknown(name):
    with pytest.raises(ParameterError, match=f"kernel is {name!r}") as error:
        kernel_named(name)
    assert "Give one of gaussian, laplace-l1, laplacian, matern32, matern52." in error.value.remedy


@pytest.mark.parametrize("far", [1e300, 1e308])
@pytest.mark.parametrize(
    ("name", "width"),
    # The exponents of the Gaussian one are of the size of far / width^2.
    [
        *((name, 1.0) for name in KERNELS),
        *((name, 1e-10) for name in KERNELS if name != "gaussian"),
    ],
)
def test_kernels__rows_as_far_as_float64_goes(name, far, width):
    basis = np.array([[0.0, 0.0], [width, 0.0], [0.0, 3 * width]])
    Phi = RadialFeatures.from_basis(basis, width, kernel=name).activations(np.array([[far, 0.0]]))
    np.testing.assert_allclose(Phi.sum(), 1.0)
    assert Phi.argmax() == 1
