"""What a fit to rows in CSR goes without."""

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.trials import scales_of
from dask_nrbfn.storage.dataset import Dataset


def sees_sparse(dataset: Dataset, params: FitParams) -> bool:
    """Return whether the stages of a fit see rows in CSR, and not coordinates of them."""
    return dataset.is_sparse and params.svd is None


def check_sparse(dataset: Dataset, params: FitParams, tuning: TuneParams | None = None) -> None:
    """Raise ParameterError if rows in CSR would have to be filled."""
    if not sees_sparse(dataset, params) or LEARNED not in scales_of(params, tuning):
        return
    name = "scale" if params.scale == LEARNED else "scales"
    raise ParameterError(
        f"`{name}` has {LEARNED}, and X is sparse: gradients and means would fill its rows.",
        "Give none, standard or unit, or `svd`, or X as an array.",
    )
