"""Versions of a run: its models after rows were added or removed.

Version 0 is the fit. Each later version has its own group. It becomes the latest version when it is
recorded in the attributes of the run, which are replaced as a whole.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dask_nrbfn.storage.dataset import Dataset

ADD, FORGET, MERGE = "add", "forget", "merge"

# The group of the versions in a run.
VERSIONS = "versions"


def version_name(version: int) -> str:
    """Return the name of the group with all attempts at a version after the fit."""
    return f"{VERSIONS}/{version}"


def versions_of(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of the versions after the fit, from a run's attributes."""
    records: list[dict[str, Any]] = attributes["versions"]
    return records


def latest_place(attributes: Mapping[str, Any]) -> str:
    """Return the group of the latest version; "" for the fit."""
    records = versions_of(attributes)
    return str(records[-1]["place"]) if records else ""


def model_name(place: str) -> str:
    """Return the name of the group of a version's model."""
    return f"{place}/model" if place else "model"


def members_held(attributes: Mapping[str, Any]) -> Counter[str]:
    """Return the number of times a run has each content; -1 if unknown rows were removed."""
    held = Counter(member["content"] for member in attributes["members"])
    for record in versions_of(attributes):
        for member in record["members"]:
            held[member["content"]] += -1 if record["action"] == FORGET else member.get("times", 1)
    return held


def members_by_content(attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the record of each set of rows that was ever added or removed, by its content."""
    records = [{"members": attributes["members"]}, *versions_of(attributes)]
    return {member["content"]: member for record in records for member in record["members"]}


def n_rows_held(attributes: Mapping[str, Any]) -> int:
    """Return the number of rows behind the latest model."""
    known = members_by_content(attributes)
    held = members_held(attributes)
    return sum(times * known[content]["n_rows"] for content, times in held.items())


def member_of(dataset: Dataset) -> dict[str, Any]:
    """Return the record of a dataset in a run: its location, content digest and row counts."""
    return {
        "dataset": str(dataset.location),
        "content": dataset.content,
        "n_rows": dataset.n_rows,
        **({"n_unlabelled": dataset.n_unlabelled} if dataset.n_unlabelled else {}),
    }
