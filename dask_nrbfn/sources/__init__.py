"""Source formats, each read as a stream of blocks.

The size and types of a source are known before its first block is read, so that a dataset can be
laid out at once. Most sources hold only a few blocks in memory.
"""

from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.sources.formats import open_source
from dask_nrbfn.sources.source import Block, Source

__all__ = ["ArraySource", "Block", "Source", "open_source"]
