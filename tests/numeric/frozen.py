"""Arrays that nothing may write to: numeric functions leave their arguments as they are."""

from dataclasses import fields, is_dataclass
from functools import wraps

import numpy as np


def read_only(draw):
    """Return the function with every array of its result made read-only."""

    @wraps(draw)
    def drawn(*arguments, **options):
        values = draw(*arguments, **options)
        freeze(values)
        return values

    return drawn


def freeze(values):
    if isinstance(values, np.ndarray):
        values.setflags(write=False)
    elif isinstance(values, tuple):
        for each in values:
            freeze(each)
    elif is_dataclass(values):
        for field in fields(values):
            freeze(getattr(values, field.name))
