"""What is done to rows before distances are taken, as the stages of a run have found it."""

from dataclasses import replace

from dask_nrbfn.numeric.scaling import LEARNED, Scaling
from dask_nrbfn.stages.columns import COLUMNS, read_statistics
from dask_nrbfn.storage.run import Run


def read_scaling(run: Run, scale: str | None = None) -> Scaling:
    """Return the scaling of a name, or that which the run's parameters ask for."""
    scale = scale or run.chosen_params.scale
    scaling = unlearned_scaling(run, scale)
    return replace(scaling, root=run.read("metric/root")) if scale == LEARNED else scaling


def unlearned_scaling(run: Run, scale: str) -> Scaling:
    """Return the scaling of a name as it is before weights of the features are learned."""
    columns = COLUMNS.recorded(run)
    groups = [(start, stop) for start, stop in columns.groups or ()]
    return Scaling.from_statistics(scale, read_statistics(run), groups, centred=not columns.sparse)
