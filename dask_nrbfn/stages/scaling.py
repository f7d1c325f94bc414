"""What is done to rows before distances are taken, as the stages of a run have found it."""

from dataclasses import replace

from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.stages.columns import read_statistics
from dask_nrbfn.storage.run import Run

LEARNED = "learned"
"""The scale whose weights of the features are learned on a sample."""


def read_scaling(run: Run) -> Scaling:
    """Return the scaling that the run's parameters ask for."""
    scaling = Scaling.from_statistics(run.params.scale, read_statistics(run))
    if run.params.scale != LEARNED:
        return scaling
    return replace(scaling, root=run.read("metric/root"))
