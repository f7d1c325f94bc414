"""Foreign formats that rows come from, each read as a stream of blocks.

A source knows its size and types before the first block is read, so that a dataset can be laid
out at once, and never holds more than a few blocks.
"""

from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.sources.open import open_source
from dask_nrbfn.sources.source import Block, Source

__all__ = ["ArraySource", "Block", "Source", "open_source"]
