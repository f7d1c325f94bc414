"""Sources with their options by name."""

from dask_nrbfn.sources import formats
from dask_nrbfn.sources.options import ReadOptions


def open_source(source, *, spoiled=False, read_as=None, **options):
    """Return the rows of a source."""
    return formats.open_source(source, ReadOptions(**options), spoiled=spoiled, read_as=read_as)
