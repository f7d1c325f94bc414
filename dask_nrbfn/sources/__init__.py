"""Source formats, each read as a stream of blocks.

The size and types of a source are known before its first block is read, so that a dataset can be
laid out at once. Most sources hold only a few blocks in memory.
"""

from typing import TYPE_CHECKING

from dask_nrbfn.lazy import lazy_names

if TYPE_CHECKING:
    from dask_nrbfn.sources.arrays import ArraySource
    from dask_nrbfn.sources.formats import open_source
    from dask_nrbfn.sources.source import Block, Source
else:
    # `formats` lists the formats without loading numpy.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "arrays": ["ArraySource"],
            "formats": ["open_source"],
            "source": ["Block", "Source"],
        },
    )

__all__ = ["ArraySource", "Block", "Source", "open_source"]
