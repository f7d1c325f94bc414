"""How many rows of a table lack values, whichever of its columns are kept."""

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

# What is held of the sets of columns that rows lack values in, at most.
HELD_BYTES = 16 << 20
# What Python takes for a set beside its bytes.
SET_BYTES = 150


class GapSets:
    """How many rows lack values in the same columns.

    Attributes
    ----------
    are_all : bool
        Whether all sets of columns are held, which take `HELD_BYTES` at most.

    Examples
    --------
    >>> gap_sets = GapSets()
    >>> gap_sets.add({"a": np.array([True, False, True]), "b": np.array([False, False, True])})
    >>> gap_sets.among(["a", "b"]), gap_sets.among(["b"])
    ((2, {'a': 2, 'b': 1}), (1, {'b': 1}))
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sets: Counter[bytes] = Counter()
        self.are_all = True

    def add(self, lacking: Mapping[str, np.ndarray]) -> None:
        """Add rows: which of them, bool (b,), lack a value in each column."""
        self._names = tuple(lacking)
        none = np.stack([*lacking.values()], axis=1)
        if self.are_all:
            packed = np.packbits(none[none.any(axis=1)], axis=1)
            self._sets.update(row.tobytes() for row in packed)
            self.are_all = len(self._sets) * (packed.shape[1] + SET_BYTES) <= HELD_BYTES
            if not self.are_all:
                self._sets.clear()

    def among(self, names: Collection[str]) -> tuple[int, dict[str, int]]:
        """Return how many rows lack a value in some columns, and how many in each of them."""
        packed = np.frombuffer(b"".join(self._sets), np.uint8)
        packed = packed.reshape(len(self._sets), (len(self._names) + 7) // 8)
        kept = [place for place, name in enumerate(self._names) if name in names]
        none = np.unpackbits(packed, axis=1, count=len(self._names))[:, kept].astype(bool)
        counts = np.fromiter(self._sets.values(), np.int64, len(self._sets))
        lacking = dict(zip((self._names[place] for place in kept), counts @ none, strict=True))
        return int(counts[none.any(axis=1)].sum()), {name: int(n) for name, n in lacking.items()}
