"""Source formats, each read as a stream of blocks, whose size and types are known before."""

from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.sources.formats import open_source
from dask_nrbfn.sources.source import Block, Source

__all__ = ["ArraySource", "Block", "Source", "open_source"]
