"""How the rows of a run are cut into parts and blocks, and the names of parts."""

from dataclasses import dataclass
from typing import Self

# A crash can cost the work of one part. Each part writes its r x r sums once; with 24,576 rows that
# takes a thirtieth of the time of summing. From 16,384 rows on there are two parts for two workers.
# Beyond 64 parts, or one for every worker, the parts grow.
_DEFAULT_PART_ROWS, _MIN_HALF_ROWS = 24_576, 8192
_DEFAULT_MAX_PARTS = 64

# Writing the sums takes as long on a GPU as on a CPU, and summing a thirtieth of the time.
_GPU_PART_ROWS = 32 * _DEFAULT_PART_ROWS

# Chunks of the arrays with one row per row of X. The upper limit keeps the memory of a task
# independent of n: 20 neighbours of 4,096 rows are 640 KiB. A part is a whole number of chunks, and
# has enough of them that all parts are about equally large.
_MAX_CHUNK_ROWS, _MIN_CHUNK_ROWS, _CHUNKS_OF_PART = 4096, 512, 16

# Elements of one block of activations: 128 MiB of float64. With 2,048 rows the products run at
# their full rate; more rows only touch more memory in every task.
_BLOCK_ELEMENTS = 2**24
_MAX_BLOCK_ROWS = 2048

# The same on a GPU: 2 GiB.
_GPU_BLOCK_ELEMENTS = 2**28
_GPU_BLOCK_ROWS = 8192

# Elements of a block of plain rows: 32 MiB. With fewer rows the calls take longer than the work.
_NARROW_ELEMENTS = 2**22
_MAX_NARROW_ROWS = 16384


@dataclass(frozen=True)
class PartLayout:
    """How n rows are cut into parts: all but the last have `part_rows`, a whole number of chunks.

    A run records its layout, so that it can continue after the defaults have changed.
    """

    n_rows: int
    part_rows: int
    chunk_rows: int

    @classmethod
    def of(
        cls, n_rows: int, n_parts: int | None = None, *, n_workers: int = 1, gpu: bool = False
    ) -> Self:
        """Return the layout of a number of parts."""
        if not n_parts:
            # The same for up to 64 workers.
            n_parts = max(n_rows // _DEFAULT_PART_ROWS, min(n_rows // _MIN_HALF_ROWS, 2), 1)
            if gpu:
                n_parts = max(n_rows // _GPU_PART_ROWS, n_workers)
            n_parts = min(n_parts, max(_DEFAULT_MAX_PARTS, n_workers))
        share = max(1, -(-n_rows // n_parts))
        chunk_rows = share
        if share > _MAX_CHUNK_ROWS:
            chunk_rows = max(-(-share // _CHUNKS_OF_PART), _MIN_CHUNK_ROWS)
            chunk_rows = min(chunk_rows, _MAX_CHUNK_ROWS)
        return cls(n_rows, -(-share // chunk_rows) * chunk_rows, chunk_rows)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return -(-self.n_rows // self.part_rows)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First row of every part, and the row after its last."""
        size = self.part_rows
        return [(a, min(a + size, self.n_rows)) for a in range(0, self.n_rows, size)]


def part_name(part: int | range) -> str:
    """Return the name under which a part, or the sum of consecutive parts, is stored."""
    if isinstance(part, int) or len(part) == 1:
        return f"{part if isinstance(part, int) else part[0]}"
    return f"{part[0]}-{part[-1]}"


def parts_in(name: str) -> range:
    """Return the indices of the parts that are stored under a `part_name`."""
    first, _, last = name.partition("-")
    return range(int(first), int(last or first) + 1)


def block_rows(n_basis: int) -> int:
    """Return the number of rows of a block with `n_basis` activations per row.

    The number depends on nothing else, so sums have the same bits on every machine.
    """
    return max(1, min(_MAX_BLOCK_ROWS, _BLOCK_ELEMENTS // n_basis))


def gpu_block_rows(n_basis: int, n_features: int) -> int:
    """Return the number of rows of a block on a GPU."""
    return max(1, min(_GPU_BLOCK_ROWS, _GPU_BLOCK_ELEMENTS // max(n_basis, 8 * n_features)))


def narrow_block_rows(row_values: float) -> int:
    """Return the number of rows of a block with `row_values` stored values per row."""
    return max(1, min(_MAX_NARROW_ROWS, int(_NARROW_ELEMENTS / max(row_values, 1.0))))
