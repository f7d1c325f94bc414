"""Foreign source formats, each read as a stream of blocks.

A source knows its size and types before the first block is read, so that a dataset can be laid
out at once. It never holds more than a few blocks.
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
