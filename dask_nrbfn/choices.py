"""Tables of what can be chosen by name. To add a kernel, write it and add its name here.

The object of the kernel ``laplace-l1`` is ``LAPLACE_L1`` in the module of the table. It is imported
when it is first used, so a command can list the names without loading scipy.
"""

from collections import UserDict
from importlib import import_module
from typing import Any


class Choices(UserDict[str, Any]):
    """Objects of one module by name; the names of the objects in the module may have a suffix."""

    def __init__(self, module: str, *names: str, suffix: str = "") -> None:
        super().__init__(dict.fromkeys(names, f"{__package__}.{module}"))
        self._suffix = suffix

    def __getitem__(self, name: str) -> Any:
        own = name.upper().replace("-", "_") + self._suffix
        return getattr(import_module(self.data[name]), own)


KERNELS = Choices(
    "numeric.kernels",
    "gaussian",
    "laplace-l1",
    "laplacian",
    "matern32",
    "matern52",
)
LOSSES = Choices("numeric.losses", "hinge", "logistic", "squared", "squared-hinge")
PENALTIES = Choices("numeric.penalties", "clusters", "kernel", "weights", suffix="_PENALTY")
BASES = Choices("stages.basis", "kmeans", "random", "sknn")
