"""A site, which is a copy of a run with other rows than the run; and the moments of a run."""

from dask_nrbfn.commands.update import kept_stages, update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.stages.moments import MOMENTS, read_sums
from dask_nrbfn.storage.run import Run


def write_site(run, place, first, *added) -> Run:
    """Copy a fit to the rows `first`, add rows to the copy, and forget those of the fit."""
    run.copy_fit(place, (*kept_stages(run), MOMENTS.name))
    for dataset in added:
        update_run(place, dataset, InlineEngine())
    update_run(place, first, InlineEngine(), forget=True)
    return Run.open(place)


def read_latest_moments(location):
    """Return the moments of the latest model of a run."""
    run = Run.open(location)
    return read_sums(run, run.latest_place or MOMENTS.name)
