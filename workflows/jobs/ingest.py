"""Write the training rows, and the test rows if the settings name some, as datasets.

A dataset that is complete stays as it is:

    python workflows/jobs/ingest.py settings.toml [--overwrite]
"""

import argparse
import logging
import sys

from job import run_job
from settings import Settings

from dask_nrbfn import Dataset, ingest_file
from dask_nrbfn.errors import MissingDataError
from dask_nrbfn.storage.location import Location

logger = logging.getLogger("dask_nrbfn.jobs.ingest")


def ingest(settings: Settings, options: argparse.Namespace) -> None:
    """Write every dataset that is not there yet."""
    for part, source in settings.sources.items():
        location = settings.location(part)
        if not options.overwrite and is_complete(location):
            logger.info("ingest: %s is complete", location)
        else:
            ingest_file(
                **source,
                location=location,
                chunk_rows=settings.chunk_rows,
                overwrite=options.overwrite,
            )


def is_complete(location: Location) -> bool:
    """Return whether a finished dataset is at `location`."""
    try:
        Dataset.open(location)
    except MissingDataError:
        return False
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--overwrite", action="store_true", help="write complete datasets anew")
    sys.exit(run_job(ingest, parser))
