"""Check the datasets of the files that wait, before any of their rows is learnt."""

from functools import partial

from incoming import IncomingFile, for_each_file
from settings import Settings

from dask_nrbfn import Dataset, describe
from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.stages.validation import codes_in_training


def check(settings: Settings) -> None:
    """Read every dataset, and compare its columns and labels with those of the training rows."""
    train = Dataset.open(settings.location("train"))
    for_each_file(settings, partial(check_incoming, settings, train))


def check_incoming(settings: Settings, train: Dataset, file: IncomingFile) -> None:
    """Raise DataError if columns or labels are others, DamagedDataError if the disk is to blame."""
    dataset = Dataset.open(settings.location(file.dataset))
    codes_in_training(train, dataset)
    if problems := describe(dataset.location, verify=True)["problems"]:
        raise DamagedDataError(
            f"{dataset.location} is damaged: {problems[0]}",
            "Remove it; the next start writes it again.",
        )
