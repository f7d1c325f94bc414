"""Local files and files behind URLs, read in the same way."""

import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import PurePath
from tempfile import mkdtemp
from typing import IO, Any

from dask_nrbfn.errors import (
    DamagedDataError,
    DataError,
    MissingDataError,
    NRBFNError,
    ParameterError,
    StorageError,
)


@dataclass(frozen=True)
class File:
    """A file or directory: its local path, or its URL with options that no text shows."""

    path: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __str__(self) -> str:
        return self.path

    def __fspath__(self) -> str:
        return self.path

    @property
    def is_remote(self) -> bool:
        """Whether `path` is a URL."""
        return "://" in self.path

    @property
    def name(self) -> str:
        """The last part of the path; without the query of a URL."""
        path = self.path.partition("?")[0] if self.is_remote else self.path
        return path.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The last suffix of the name in small letters, for a packed file the last two."""
        suffixes = PurePath(self.name.lower()).suffixes
        return "".join(suffixes[-2:] if suffixes[-1:] in ([".gz"], [".zst"]) else suffixes[-1:])

    def is_directory(self) -> bool:
        """Return whether the path is a directory, or a prefix in an object store."""
        return bool(self.info()["type"] == "directory")

    def info(self) -> dict[str, Any]:
        """Return what fsspec knows of the file: its type, its size or None, and more."""
        with self.reached() as (fs, path):
            return dict(fs.info(path))

    def entries(self) -> list["File"]:
        """Return the entries of a directory, in the order of names."""
        with self.reached() as (fs, path):
            listed = {name.rstrip("/") for name in fs.ls(path, detail=False)}
        # Some stores list the directory itself, as an object without bytes.
        names = sorted(name.rpartition("/")[2] for name in listed - {path.rstrip("/")})
        return [replace(self, path=f"{self.path.rstrip('/')}/{name}") for name in names]

    def matches(self) -> list["File"]:
        """Return the files that match a path with *, in the order of names; none without a *."""
        if "*" not in self.path:
            return []
        with self.reached() as (fs, path):
            found = map(fs.unstrip_protocol, sorted(fs.glob(path)))
        files = (replace(self, path=name.removeprefix("file://")) for name in found)
        return [file for file in files if not file.name.startswith(".")]

    def open(self) -> IO[bytes]:
        """Open the file to read bytes in any order."""
        with self.reached() as (fs, path):
            return fs.open(path, "rb")

    def local(self, owner: object) -> str:
        """Return the path of a local file, or of a copy of a URL that lives as long as `owner`."""
        if not self.is_remote:
            return self.path
        copy = os.path.join(scratch_of(owner), "copy")
        with self.reached() as (fs, path):
            fs.get_file(path, copy)
        return copy

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the fsspec file system, which must see what other processes write."""
        return {"use_listings_cache": False, **self.storage_options}

    def file_system(self) -> tuple[Any, str]:
        """Return the fsspec file system, for synchronous use, and the path in it."""
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(self.path, **self.options)
        except ImportError as error:
            raise ParameterError(
                f"{self} needs a package that is not installed ({error}).",
                "Install dask-nrbfn[s3] for s3://, dask-nrbfn[gcs] for gs:// or dask-nrbfn[http] "
                "for http://.",
            ) from error
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"{self} cannot be opened ({error}).",
                "Check the protocol, and the arguments of its fsspec file system in the "
                "environment variables or storage options.",
            ) from error
        return fs, path

    @contextmanager
    def reached(self) -> Iterator[tuple[Any, str]]:
        """Yield `file_system`; raise MissingDataError or StorageError in place of its errors."""
        try:
            yield self.file_system()
        except NRBFNError:
            raise
        except Exception as error:
            # Every file system has its own errors. For web addresses, fsspec raises
            # FileNotFoundError also if the server refuses or fails.
            reason = (error.__cause__ or error) if isinstance(error, FileNotFoundError) else error
            if isinstance(reason, FileNotFoundError) or getattr(reason, "status", None) == 404:
                raise MissingDataError(
                    f"{self} does not exist or is not served.", "Check the path or URL."
                ) from error
            text = f"{type(reason).__name__}: {reason}".rstrip(".: ")
            raise StorageError(
                f"{self} cannot be read ({text}).",
                "Check the address, the credentials and the settings of the store, and try again.",
            ) from error


def scratch_of(owner: object) -> str:
    """Return a temporary directory that is removed together with an object."""
    directory = mkdtemp(prefix=f"dask-nrbfn-{os.getpid()}-")
    weakref.finalize(owner, shutil.rmtree, directory, ignore_errors=True)
    return directory


def data_files(directory: File) -> list[File]:
    """Return the files of a directory and of its directories key=value, in order."""
    # Files whose names begin with an underscore are metadata of other programs, such as _SUCCESS.
    entries = [entry for entry in directory.entries() if not entry.name.startswith((".", "_"))]
    remedy = "Give a directory with files of one suffix, also in directories key=value."
    files: list[File] = []
    for entry in entries:
        if not entry.is_directory():
            files.append(entry)
        elif "=" in entry.name:
            files += data_files(entry)
        else:
            raise DataError(f"{directory} has a subdirectory, {entry.name}.", remedy)
    suffixes = sorted({file.suffix for file in files})
    if len(suffixes) != 1:
        problem = f"files of several suffixes: {', '.join(suffixes)}" if files else "no files"
        raise DataError(f"{directory} has {problem}.", remedy)
    return files


@contextmanager
def damage_named(
    place: object,
    what: str,
    remedy: str = "Check the path, or write the data again.",
    raised: type[NRBFNError] = DamagedDataError,
) -> Iterator[None]:
    """Raise one error in place of any error of a library that cannot read `what`."""
    try:
        yield
    except (NRBFNError, PermissionError, MemoryError):
        raise
    # The libraries have no common error for bytes that they cannot read.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines()[:3]]
        # DuckDB announces tables and lists with a colon.
        told = " ".join(line for line in lines if line and not line.endswith(":"))
        raise raised(f"{place} cannot be read as {what}: {told.rstrip('.')}.", remedy) from error


def optional_package(module: str, extra: str) -> Any:
    """Return a module of a package that an extra of this package installs."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ParameterError(
            f"a required package is not installed ({error}).", f"Install dask-nrbfn[{extra}]."
        ) from error
