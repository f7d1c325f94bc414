"""The cost of stages: work, bytes and memory, and the seconds that these are expected to take."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """The largest terms of the expected cost of one stage.

    Products, systems, exponentials and pairs are the work of all tasks, see `Rates`, and so are the
    bytes read and written; `held_bytes` is the peak memory of one worker, including its process.
    """

    products: float = 0.0
    # Number of factored systems by their size; each takes ``r^3 / 3`` products.
    systems: Mapping[int, float] = field(default_factory=dict)
    exponentials: float = 0.0
    pairs: float = 0.0
    pair_flops: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    held_bytes: int
    n_tasks: int = 1
    # Seconds of all tasks that do not depend on the rates.
    other_s: float = 0.0

    @property
    def all_products(self) -> float:
        """Products of sums and of systems."""
        return self.products + sum(n * size**3 / 3 for size, n in self.systems.items())

    @property
    def flops(self) -> float:
        """Floating-point operations of all tasks."""
        return self.all_products + self.pairs * self.pair_flops


# Seconds of overhead of a part, from its submission to its record: the scheduler, opening the run
# and the dataset, writing the part.
_PART_S = 0.06

# A system of r basis rows is copied, factored in blocks and its condition estimated, which takes as
# long as so many r^2 products, and at least so many seconds.
_COPIES, _SYSTEM_S = 200, 1e-4


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The amounts of work that one worker does in a second.

    Floating-point operations of products and factorizations, activations without their products,
    pairs of rows in an exact search, with the columns of the dataset, and bytes.
    """

    products: float
    exponentials: float
    pairs: float
    bytes: float


def expected_s(cost: StageCost, rates: Rates, n_workers: int) -> float:
    """Return the expected seconds of a stage."""
    copies = sum(n * _COPIES * size**2 for size, n in cost.systems.items())
    shared = (
        (cost.all_products + copies) / rates.products
        + cost.exponentials / rates.exponentials
        + cost.pairs / rates.pairs
        + (cost.read_bytes + cost.written_bytes) / rates.bytes
        + sum(cost.systems.values()) * _SYSTEM_S
        + cost.other_s
    )
    # The last round of tasks may leave workers idle.
    rounds = math.ceil(cost.n_tasks / n_workers)
    return shared * rounds / cost.n_tasks + rounds * _PART_S


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The time at which a tuning should end, by `time.monotonic`, and the rates of a worker."""

    ends: float = math.inf
    rates: Rates | None = None
    n_workers: int = 1

    def needed_s(self, costs: Iterable[StageCost]) -> float:
        """Return the expected seconds of stages; 0 without rates."""
        rates = self.rates
        return sum(expected_s(cost, rates, self.n_workers) for cost in costs) if rates else 0.0

    def left_s(self, costs: Iterable[StageCost]) -> float:
        """Return the seconds that are left before stages with these costs must begin."""
        return self.ends - time.monotonic() - self.needed_s(costs)
