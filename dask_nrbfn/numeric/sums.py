"""Sums over rows. The sums of disjoint sets of rows add up to the sum of their union."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_NUMBERS, _TOGETHER = (int, float), "numbers"


@dataclass(frozen=True, eq=False)
class RowSum:
    """A sum over rows, whose fields are arrays and numbers.

    Fields add one by one unless a subclass overrides this. The left operand is the sum of the
    earlier rows; ``+=`` may reuse its arrays.
    """

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @classmethod
    def array_names(cls) -> list[str]:
        """Return the names of the `arrays`."""
        names = [each.name for each in fields(cls) if each.type not in _NUMBERS]
        return names if len(names) == len(fields(cls)) else [*names, _TOGETHER]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the array fields by name, and one array of all number fields."""
        values = {name: getattr(self, name) for name in self.array_names() if name != _TOGETHER}
        numbers = [getattr(self, each.name) for each in fields(self) if each.type in _NUMBERS]
        return values | ({_TOGETHER: np.array(numbers, dtype=np.float64)} if numbers else {})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the sum that has these `arrays`."""
        values: dict[str, Any] = dict(arrays)
        names = [each for each in fields(cls) if each.type in _NUMBERS]
        for each, number in zip(names, values.pop(_TOGETHER, ()), strict=True):
            values[each.name] = int(number) if each.type is int else float(number)
        return cls(**values)
