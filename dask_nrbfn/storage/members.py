"""How a run records the datasets whose rows it holds."""

from collections.abc import Mapping
from typing import Any

from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import SideBySide

# Before the content of rows that were taken without labels.
_BESIDE = "beside "


def member_of(dataset: Dataset) -> dict[str, Any]:
    """Return how a run records a dataset whose rows it holds."""
    return {
        "dataset": str(dataset.location),
        "content": dataset.content,
        "n_rows": dataset.n_rows,
        **({"n_unlabelled": dataset.n_unlabelled} if dataset.n_unlabelled else {}),
    }


def members_of(dataset: Dataset) -> list[dict[str, Any]]:
    """Return how a run records the datasets whose rows follow one another in one."""
    location = dataset.location
    if not isinstance(location, SideBySide):
        return [member_of(dataset)]
    first, second = Dataset.open(location.labelled), Dataset.open(location.unlabelled)
    return [*members_of(first), member_beside(second)]


def member_beside(dataset: Dataset) -> dict[str, Any]:
    """Return how a run records a dataset that was taken as rows without labels.

    It is another member than the same rows with their labels.
    """
    content = content_beside(dataset)
    return {**member_of(dataset), "content": content, "n_unlabelled": dataset.n_rows}


def content_beside(dataset: Dataset) -> str:
    """Return by what a run knows the rows of a dataset that were taken without labels."""
    return f"{_BESIDE}{dataset.content}"


def is_beside(member: Mapping[str, Any]) -> bool:
    """Return whether a dataset that a run records was taken as rows without labels."""
    return str(member["content"]).startswith(_BESIDE)
