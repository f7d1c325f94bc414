"""Local files and files behind URLs, read in the same way."""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any

from dask_nrbfn.errors import (
    DamagedDataError,
    MissingDataError,
    NRBFNError,
    ParameterError,
    StorageError,
)

# Bytes of one request for rows that are read in order. The default sizes of file systems go up to
# 50 MiB, and two blocks of this size are held.
REQUEST_BYTES = 8 << 20


@dataclass(frozen=True)
class File:
    """A file or directory: its local path, or its URL with options of fsspec.

    storage_options: never shown in a text.
    """

    path: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __str__(self) -> str:
        return self.path

    @property
    def is_remote(self) -> bool:
        """Whether `path` is a URL."""
        return "://" in self.path

    @property
    def name(self) -> str:
        """The last part of the path; without the query of a web address."""
        path = self.path.partition("?")[0] if self._is_web else self.path
        return path.rstrip("/").rpartition("/")[2] if self.is_remote else os.path.basename(path)

    @property
    def _is_web(self) -> bool:
        return self.path.startswith(("http://", "https://"))

    def is_directory(self) -> bool:
        """Return whether the path is a directory, or a prefix in an object store."""
        if self.is_remote:
            return bool(self._info()["type"] == "directory")
        if not os.path.exists(self):
            raise MissingDataError(f"{self} does not exist.", "Check the path.")
        return os.path.isdir(self)

    def n_bytes(self) -> int | None:
        """Return the size of the file; None if the server does not send it."""
        return self._info()["size"] if self.is_remote else os.path.getsize(self)

    def stamps(self) -> dict[str, str]:
        """Return size and time (or entity tag) of each file by its path in the directory.

        Empty for web servers, which do not list files.
        """
        if self._is_web:
            return {}
        with _explained(self):
            fs, path = self.file_system()
            found = fs.find(path, detail=True)
            tags = ("ETag", "etag", "mtime", "updated", "LastModified", "created")
            return {
                name.removeprefix(path.rstrip("/")).lstrip("/"): (
                    f"{info['size']} {next((info[tag] for tag in tags if info.get(tag)), None)}"
                )
                for name, info in found.items()
            }

    def __fspath__(self) -> str:
        return self.path

    def entries(self) -> list["File"]:
        """Return the entries of a directory, in the order of names."""
        if not self.is_remote:
            return [File(os.path.join(self.path, name)) for name in sorted(os.listdir(self))]
        with _explained(self):
            fs, path = self.file_system()
            names = sorted(name.rstrip("/") for name in fs.ls(path, detail=False))
            # Some stores list the directory itself, as an object without bytes.
            inside = [name for name in names if name != path.rstrip("/")]
            return [replace(self, path=fs.unstrip_protocol(name)) for name in inside]

    def open(self, *, jumps: bool = False, ahead: bool = True) -> IO[bytes]:
        """Open the file to read bytes.

        jumps: whether bytes are read out of order.
        ahead: whether to fetch more bytes than are asked for.
        """
        if not self.is_remote:
            return open(self, "rb")
        with _explained(self):
            fs, path = self.file_system()
            how: dict[str, Any] = {"block_size": REQUEST_BYTES}
            how["cache_type"] = "readahead" if ahead else "none"
            if self._is_web and not _sends_parts(fs, path):
                if jumps:
                    raise StorageError(
                        f"the server of {self} does not support range requests.",
                        "Download the file and read the copy.",
                    )
                how = {"block_size": 0}
            return io.BufferedReader(_RemoteFile(fs.open(path, "rb", **how), self))

    def file_system(self) -> tuple[Any, str]:
        """Return the fsspec file system, and the path in it."""
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(self.path, use_listings_cache=False, **self.storage_options)
        except ImportError as error:
            raise ParameterError(
                f"{self} needs a package that is not installed ({error}).",
                "Install dask-nrbfn[s3] for s3://, dask-nrbfn[gcs] for gs:// or "
                "dask-nrbfn[http] for http://.",
            ) from error
        except (TypeError, ValueError) as error:
            raise ParameterError(
                f"{self} cannot be opened with these storage options ({error}).",
                "Check the URL's protocol and the arguments of its fsspec file system.",
            ) from error
        return fs, path

    def _info(self) -> dict[str, Any]:
        with _explained(self):
            fs, path = self.file_system()
            return dict(fs.info(path))


class _RemoteFile(io.RawIOBase):
    """An fsspec file whose errors name the URL."""

    def __init__(self, file: Any, origin: File) -> None:
        self._file = file
        self._origin = origin

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _explained(self._origin):
            self._file.seek(offset, whence)
            return self.tell()

    def readinto(self, buffer: Any) -> int:
        with _explained(self._origin):
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _sends_parts(fs: Any, path: str) -> bool:
    with fs.open(path, "rb", block_size=1, cache_type="none") as file:
        if not file.size:
            return False
        file.seek(min(1, file.size - 1))
        try:
            file.read(1)
        except ValueError:
            return False
    return True


@contextmanager
def damage_named(problem: str, remedy: str, *causes: type[Exception]) -> Iterator[None]:
    """Raise DamagedDataError instead of a library's error about bytes that it cannot read.

    problem, remedy: texts of the error; the text of the library's error is added to `problem`.
    *causes: errors of the library, except PermissionError and MemoryError.
    """
    try:
        yield
    except (NRBFNError, PermissionError, MemoryError):
        raise
    except causes as error:
        raise DamagedDataError(f"{problem}: {error}.", remedy) from error


@contextmanager
def _explained(file: File) -> Iterator[None]:
    try:
        yield
    except NRBFNError:
        raise
    except FileNotFoundError as error:
        # For web addresses, fsspec raises this error also if the server refuses or fails.
        reason = error.__cause__ or error
        absent = isinstance(reason, FileNotFoundError) or getattr(reason, "status", None) == 404
        if file._is_web and not absent:
            raise _unreadable(file, reason) from error
        raise MissingDataError(f"{file} does not exist or is not served.", "Check the URL.") from (
            error
        )
    except Exception as error:
        # Every file system has its own errors.
        raise _unreadable(file, error) from error


def _unreadable(file: File, error: BaseException) -> StorageError:
    reason = f"{type(error).__name__}: {error}".rstrip(".: ")
    return StorageError(
        f"{file} cannot be read ({reason}).",
        "Check the address, the credentials and the storage options, and try again.",
    )
