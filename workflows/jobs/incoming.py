"""The files of a night: each waits until its rows are in the run, and then moves to ``done``.

One that cannot be used moves to ``rejected``, with the reason next to it, and the night goes on
with the others. Both are inside the directory in which files wait.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from settings import Settings, spelled

from dask_nrbfn import NRBFNError
from dask_nrbfn.errors import DataError, MissingDataError
from dask_nrbfn.sources.formats import SUFFIXES
from dask_nrbfn.storage.group import remove_group, replace_path

logger = logging.getLogger("dask_nrbfn.jobs.incoming")

DONE, REJECTED = "done", "rejected"


@dataclass(frozen=True)
class IncomingFile:
    """A file, or a directory of files, that waits."""

    path: Path

    @property
    def name(self) -> str:
        """Its name with a digest of sizes and times, by which rsync too knows a file again.

        So a file that is there again under an old name is a new one.
        """
        digest = hashlib.blake2b(digest_size=4)
        for path in [self.path, *sorted(self.path.rglob("*"))]:
            status = path.stat() if path.exists() else path.lstat()
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns} ".encode())
        return f"{self.stem}-{digest.hexdigest()}"

    @property
    def stem(self) -> str:
        """Its name without the suffix of its format."""
        return self.path.name.removesuffix(self._suffix)

    @property
    def dataset(self) -> str:
        """The name of its dataset among those of the settings."""
        return f"datasets/{self.name}"

    @property
    def _suffix(self) -> str:
        return next((suffix for suffix in SUFFIXES if self.path.name.endswith(suffix)), "")

    def finish(self) -> None:
        """Move it to those that are done."""
        self._move(DONE)

    def reject(self, error: NRBFNError, settings: Settings) -> None:
        """Move it to those that cannot be used, say why, and drop its dataset."""
        remove_group(settings.location(self.dataset))
        target = self._move(REJECTED)
        problem, remedy = error.spelled(spelled)
        target.with_name(f"{target.name}.reason").write_text(f"{problem}\n{remedy}\n")
        logger.error("%s cannot be used: %s", self.path, problem)

    def _move(self, place: str) -> Path:
        target = self.path.parent / place / f"{self.name}{self._suffix}"
        target.parent.mkdir(exist_ok=True)
        replace_path(self.path, target)
        return target


def waiting_files(settings: Settings) -> list[IncomingFile]:
    """Return what waits, in the order of its names.

    Names that begin with a point or an underscore are left alone: files are written under such a
    name and renamed when they are complete.
    """
    directory = settings.night.directory
    if not directory.is_dir():
        raise MissingDataError(f"{directory} is no directory.", "Make it; files wait there.")
    return [
        IncomingFile(directory / name)
        for name in sorted(os.listdir(directory))
        if not name.startswith((".", "_")) and name not in (DONE, REJECTED)
    ]


def for_each_file(
    settings: Settings,
    step: Callable[[IncomingFile], None],
    *,
    bad: tuple[type[NRBFNError], ...] = (DataError,),
) -> None:
    """Take a step with every file that waits; reject the bad ones."""
    for file in waiting_files(settings):
        try:
            step(file)
        except bad as error:
            file.reject(error, settings)


def rejected_files(settings: Settings) -> set[str]:
    """Return the names of all rejected files. A file that is there again has another name."""
    return {path.stem for path in (settings.night.directory / REJECTED).glob("*.reason")}
