"""What a tuning tries, and on how many rows."""

from dataclasses import dataclass
from itertools import product

from dask_nrbfn.params import FitParams, TuneParams

# Elements of the sample without a number of rows, and the bounds of that: the error of a percent is
# known to a twentieth of it on 40,000 rows.
_SAMPLE_ELEMENTS = 2**25
_MIN_SAMPLE_ROWS, _MAX_SAMPLE_ROWS = 20_000, 100_000


@dataclass(frozen=True)
class Candidate:
    """A combination that is tried."""

    features: str
    kernel: str
    width_factor: float
    basis_rule: str


def candidates(params: FitParams, tuning: TuneParams) -> list[Candidate]:
    """Return all combinations to try, wide kernels first.

    The basis rule matters only to a basis of a given size of rows of low confidence.
    """
    rules = tuning.basis_rules or (params.basis_rule,)
    if params.basis != "sknn" or params.basis_size is None:
        rules = (params.basis_rule,)
    factors = sorted(set(tuning.width_factors), reverse=True)
    kernels = tuning.kernels or (params.kernel,)
    return [Candidate(*values) for values in product(tuning.features, kernels, factors, rules)]


def search_rows(n_rows: int, n_features: int, tuning: TuneParams) -> int:
    """Return the rows of the sample, at most all."""
    rows = tuning.search_rows
    if rows is None:
        rows = max(_MIN_SAMPLE_ROWS, min(_SAMPLE_ELEMENTS // n_features, _MAX_SAMPLE_ROWS))
    return min(rows, n_rows)


def search_basis_size(params: FitParams, tuning: TuneParams, n_rows: int, n_classes: int) -> int:
    """Return the basis rows of the search: no more than the fit will have."""
    size = min(tuning.search_basis, params.basis_size or n_rows, n_rows)
    return max(size, n_classes)
