"""Tables of what can be chosen by name. To add a kernel, write it and add its name here.

The object of a name such as ``laplace-l1`` is ``LAPLACE_L1`` in the module of the table. It is
imported when it is first used, so a command can list the names without loading scipy.
"""

from collections import UserDict
from importlib import import_module
from typing import Any


class Choices(UserDict[str, Any]):
    """Objects of one module by name."""

    def __init__(self, module: str, *names: str) -> None:
        super().__init__(dict.fromkeys(names, f"{__package__}.{module}"))

    def __getitem__(self, name: str) -> Any:
        return getattr(import_module(self.data[name]), name.upper().replace("-", "_"))


KERNELS = Choices("numeric.kernels", "gaussian", "laplace-l1", "laplacian", "matern32", "matern52")
LOSSES = Choices("numeric.losses", "hinge", "logistic", "squared", "squared-hinge")
PENALTIES = Choices("numeric.penalties", "clusters", "kernel", "weights")
BASES = Choices("stages.basis", "kmeans", "random", "sknn")
