"""Tables of what can be chosen by name. To add a kernel, write it and add its line here.

A line says where an object is defined. The object is imported when it is first used, so a command
can list the names without loading scipy or scikit-learn.
"""

from collections import UserDict
from importlib import import_module
from typing import Any


class Choices(UserDict[str, Any]):
    """Objects of one kind by name, each imported from its ``module:attribute`` when first used."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self.data[name].partition(":")
        return getattr(import_module(f"{__package__}.{module}"), attribute)


KERNELS = Choices(
    {
        "gaussian": "numeric.kernels:GAUSSIAN",
        "laplace-l1": "numeric.kernels:LAPLACE_L1",
        "laplacian": "numeric.kernels:LAPLACIAN",
        "matern32": "numeric.kernels:MATERN32",
        "matern52": "numeric.kernels:MATERN52",
    }
)
LOSSES = Choices(
    {
        "hinge": "numeric.losses:HINGE",
        "logistic": "numeric.losses:LOGISTIC",
        "squared": "numeric.losses:SQUARED",
        "squared-hinge": "numeric.losses:SQUARED_HINGE",
    }
)
PENALTIES = Choices(
    {
        "clusters": "numeric.penalties:CLUSTERS",
        "kernel": "numeric.penalties:KERNEL",
        "weights": "numeric.penalties:WEIGHTS",
    }
)
BASES = Choices(
    {
        "kmeans": "stages.basis:KMEANS",
        "random": "stages.basis:RANDOM",
        "sknn": "stages.basis:SKNN",
    }
)
