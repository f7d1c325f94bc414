"""What is done to rows before distances are taken, as the stages of a run have found it."""

from dataclasses import replace

from dask_nrbfn.numeric.scaling import LEARNED, Scaling
from dask_nrbfn.stages.columns import read_statistics
from dask_nrbfn.storage.run import Run


def read_scaling(run: Run, scale: str | None = None) -> Scaling:
    """Return the scaling of a name, or that which the run's parameters ask for."""
    scale = scale or run.params.scale
    scaling = Scaling.from_statistics(scale, read_statistics(run))
    return replace(scaling, root=run.read("metric/root")) if scale == LEARNED else scaling
