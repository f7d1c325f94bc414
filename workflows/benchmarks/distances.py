"""Time l1 distances here, in scipy, and numpy's product of the same matrices, in one run.

Each figure is the number of 1e9 pairs of values a second: absolute differences of l1 distances, and
multiply-adds of the float64 product. It is the best of several repeats, which alternate:

    python workflows/benchmarks/distances.py --basis-size 2000
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist

from dask_nrbfn.numeric.distances import BasisDistances
from dask_nrbfn.numeric.threads import blas_threads

# Values of the rows that are timed together: a tenth of a second.
ELEMENTS = 2**19
HEADER = "features    l1 here     cdist   product   to cdist   to product"


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, nargs="+", default=[10, 20, 100, 784])
    parser.add_argument("--basis-size", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=blas_threads())
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    print(
        f"{options.basis_size} basis rows, {options.threads} threads, 1e9 pairs of values a second"
    )
    print(HEADER)
    for p in options.features:
        l1, scipys, product = rates(
            p, options.basis_size, threads=options.threads, repeats=options.repeats
        )
        print(
            f"{p:8d} {l1:10.1f} {scipys:9.2f} {product:9.1f} {l1 / scipys:10.1f} "
            f"{l1 / product:12.2f}"
        )
    return 0


def rates(p: int, r: int, *, threads: int, repeats: int) -> list[float]:
    """Return the 1e9 pairs of values a second of l1 distances, cdist and the product."""
    rng = np.random.default_rng(0)
    n = min(max(ELEMENTS // p, 64), 8192)
    X, basis = rng.normal(size=(n, p)), rng.normal(size=(r, p))
    distances, out = BasisDistances.from_basis(basis, l1=True), np.empty((n, r))
    few = X[: max(n // 8, 1)]
    works: list[tuple[int, Callable[[], object]]] = [
        (n, lambda: distances.squared(X, out=out, threads=threads)),
        (len(few), lambda: cdist(few, basis, "cityblock")),
        (n, lambda: np.matmul(X, basis.T, out=out)),
    ]
    # The first call compiles.
    seconds = [min(each) for each in zip(*(timed(works) for _ in range(repeats + 1)), strict=True)]
    return [rows * p * r / fastest / 1e9 for (rows, _), fastest in zip(works, seconds, strict=True)]


def timed(works: list[tuple[int, Callable[[], object]]]) -> list[float]:
    """Return the seconds of each."""
    seconds = []
    for _, work in works:
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
