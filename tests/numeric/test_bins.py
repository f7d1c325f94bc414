from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given

from dask_nrbfn.numeric import bins
from dask_nrbfn.numeric.bins import Bins, median
from tests.numeric.chunkings import row_chunkings, split


def bins_of(values):
    return Bins.of_values(values, np.ones((len(values), 1), dtype=np.int64))


@pytest.mark.parametrize("n_rows", [1, 2, 5, 3000, 3001])
def test_median__exact_of_few_different_numbers(n_rows):
    values = np.random.default_rng(n_rows).normal(size=n_rows) * 1e3
    assert median(bins_of(values)) == pytest.approx(np.median(values), rel=1e-15)


@pytest.mark.parametrize(("scale", "offset"), [(1, 3), (1e-300, 0), (1e300, 0), (1, -1e6)])
def test_median__of_many_numbers_is_near(scale, offset):
    values = np.random.default_rng(0).normal(size=100_001) * scale + offset
    found = bins_of(values).binned()
    assert len(found.keys) <= 2**14
    # Between numbers not further apart than ranks of 1 %.
    low, high = np.quantile(values, [0.49, 0.51])
    assert low <= median(found) <= high


@given(lengths=row_chunkings(200))
def test_median__any_division(lengths):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bins, "_MOST_BINS", 20)
        patch.setattr(bins, "MOST_ENTRIES", 40)
        values = np.random.default_rng(0).normal(size=200)
        parts = [bins_of(part) for part in split(values, lengths)]
        found = [median(reduce(add, each)) for each in (parts, parts[::-1])]
        assert found == [median(bins_of(values))] * 2
