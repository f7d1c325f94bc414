"""Sums over rows. The sums of disjoint sets of rows add up to the sum of their union."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

# Types of the fields that are numbers, and the name of the array in which all numbers are stored.
_NUMBER_TYPES = (int, float)
_NUMBERS = "numbers"


@dataclass(frozen=True, eq=False)
class RowSum:
    """A sum over rows, whose fields are arrays and numbers.

    Fields add one by one unless a subclass overrides this. The left operand is the sum of the
    earlier rows; ``+=`` may reuse its arrays.
    """

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return type(self)(**sums)

    @classmethod
    def array_names(cls) -> list[str]:
        """Return the names of the `arrays`."""
        names = [each.name for each in fields(cls) if each.type not in _NUMBER_TYPES]
        if len(names) < len(fields(cls)):
            names.append(_NUMBERS)
        return names

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the array fields by name, and one array of all number fields."""
        arrays, numbers = {}, []
        for each in fields(self):
            if each.type in _NUMBER_TYPES:
                numbers.append(getattr(self, each.name))
            else:
                arrays[each.name] = getattr(self, each.name)
        if numbers:
            arrays[_NUMBERS] = np.array(numbers, dtype=np.float64)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the sum that has these `arrays`."""
        values: dict[str, Any] = dict(arrays)
        numbers = values.pop(_NUMBERS, ())
        number_fields = [each for each in fields(cls) if each.type in _NUMBER_TYPES]
        for each, number in zip(number_fields, numbers, strict=True):
            values[each.name] = int(number) if each.type is int else float(number)
        return cls(**values)
