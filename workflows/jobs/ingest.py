"""Write the training rows, the test rows and the files that wait as datasets, unless complete."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from incoming import IncomingFile, for_each_file
from settings import Settings

from dask_nrbfn import Dataset, ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.storage.location import Location

logger = logging.getLogger("dask_nrbfn.jobs.ingest")


def ingest(settings: Settings) -> None:
    """Write every dataset that is not there yet."""
    for part, source in settings.sources.items():
        ingest_source(settings, source, part)
    for_each_file(
        settings,
        partial(ingest_incoming, settings),
        bad=(DataError, DamagedDataError, ParameterError),
    )


def ingest_incoming(settings: Settings, file: IncomingFile) -> None:
    """Write the dataset of a file that waits."""
    for path in (file.path, *file.path.rglob("*")):
        if not path.exists():
            raise DataError(f"{path} is a link to nothing.", "Correct the link, or remove it.")
    source = {**settings.night.incoming, "source": str(file.path)}
    ingest_source(settings, source, file.dataset)


def ingest_source(settings: Settings, source: Mapping[str, Any], name: str) -> None:
    """Write one dataset, unless it is complete; its columns are those of the training rows."""
    location = settings.location(name)
    if is_complete(location):
        logger.info("ingest: %s is complete", location)
        return
    own: dict[str, Any] = {"chunk_rows": settings.chunk_rows}
    if name != "train":
        own["schema"] = Dataset.open(settings.location("train")).schema
    ingest_file(**{**own, **source}, location=location)


def is_complete(location: Location) -> bool:
    """Return whether a finished dataset is at `location`."""
    try:
        Dataset.open(location)
    except MissingDataError:
        return False
    return True
