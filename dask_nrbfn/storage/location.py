"""Where things are stored: local paths, URLs with or without storage options, store objects."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zarr.abc.store
from zarr.storage import LocalStore

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.files import File


@dataclass(frozen=True)
class RemoteLocation:
    """An fsspec URL and the storage options of its file system.

    Options from the environment or from fsspec's configuration are not needed here. The options are
    sent to the workers with every task. The text of the location does not contain the options, so
    they appear in no log, error or record.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/run.zarr``.
    storage_options : mapping
        Arguments of the fsspec file system, such as ``{"key": ..., "secret": ...}``.

    Raises
    ------
    ParameterError
        If `url` is not a URL, or has no name after the protocol.

    Examples
    --------
    >>> print(RemoteLocation("s3://bucket/run.zarr", {"secret": "abc"}))
    s3://bucket/run.zarr
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if "://" not in self.url:
            raise ParameterError(
                f"{self.url} has storage options, but is not a URL.",
                "Give a URL such as s3://bucket/name, or a path without storage options.",
            )
        if not self.url.partition("://")[2].strip("/"):
            raise ParameterError(
                f"{self.url} has no name after the protocol.",
                "Give a complete URL, such as s3://bucket/name.",
            )

    def __str__(self) -> str:
        return self.url


Location = str | os.PathLike[str] | RemoteLocation | zarr.abc.store.Store
"""A local path, an fsspec URL, or a zarr store object of this process."""


def locate(text: str, storage_options: Mapping[str, Any]) -> str | RemoteLocation:
    """Return the location of a path or URL; storage options apply to URLs only."""
    return RemoteLocation(text, storage_options) if storage_options and "://" in text else text


def normalize(location: Location) -> Location:
    """Return a location with an absolute local path, which means the same in every process."""
    if isinstance(location, zarr.abc.store.Store):
        return location
    if isinstance(location, RemoteLocation):
        return normalize(location.url) if location.url.startswith("file://") else location
    text = os.fspath(location).removeprefix("file://")
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def join(location: Location, name: str) -> str | RemoteLocation:
    """Return the location of `name` in the directory, or under the URL, `location`."""
    located = _in_directory(location)
    if isinstance(located, RemoteLocation):
        return replace(located, url=f"{located.url.rstrip('/')}/{name}")
    return f"{located.rstrip('/')}/{name}"


def hidden_sibling(location: Location, suffix: str) -> str | RemoteLocation:
    """Return ``.NAME.suffix`` beside a path or URL that ends in NAME."""
    if (path := local_path(location)) is not None:
        real = real_path(path)
        return str(real.with_name(f".{real.name}.{suffix}"))
    url = remote(_in_directory(location))
    assert url is not None
    place, _, name = url.url.rstrip("/").rpartition("/")
    # memory:// URLs have no bucket.
    if place.endswith(":/") and not place.startswith("memory:"):
        raise ParameterError(
            f"{location} is a whole bucket.",
            f"Give a name in the bucket, such as {location}/name.zarr.",
        )
    return replace(url, url=f"{place}/.{name}.{suffix}")


def _in_directory(location: Location) -> str | RemoteLocation:
    located = normalize(location)
    if isinstance(located, str | RemoteLocation):
        return located
    raise ParameterError(
        f"{location} is a Zarr store object, but a directory or URL is needed here.",
        "Give a directory or URL.",
    )


def local_path(location: Location) -> str | None:
    """Return the absolute path of a location on this machine's file system, else None."""
    located = normalize(location)
    if isinstance(located, LocalStore):
        return str(located.root.absolute())
    return located if isinstance(located, str) and "://" not in located else None


def real_path(path: str) -> Path:
    """Return a local path with links followed."""
    return Path(os.path.realpath(path))


def remote(location: Location) -> RemoteLocation | None:
    """Return a location that fsspec opens with its options, else None."""
    located = normalize(location)
    if isinstance(located, str) and "://" in located:
        return RemoteLocation(located)
    return located if isinstance(located, RemoteLocation) else None


def file_of(location: Location) -> File:
    """Return a path or URL as a file for `dask_nrbfn.sources`."""
    place = _in_directory(location)
    if isinstance(place, RemoteLocation):
        return File(place.url, place.storage_options)
    return File(place)
