"""What the nights did: nights.jsonl in the output directory, one line each, kept by a refresh."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from incoming import DONE, IncomingFile
from settings import Settings

from dask_nrbfn import Run
from dask_nrbfn.storage.run import ADD


def read_nights(settings: Settings) -> list[dict[str, Any]]:
    """Return the lines of the nights before; a full disk may have cut one off."""
    files, path = url_to_fs(f"{settings.directory}/nights.jsonl")
    lines = files.cat(path).splitlines() if files.exists(path) else []
    return [json.loads(line) for line in lines if line.endswith(b"}")]


def write_night(settings: Settings, figures: dict[str, Any]) -> None:
    """Append a line with the time and the figures of a night."""
    files, path = url_to_fs(f"{settings.directory}/nights.jsonl")
    night = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **figures}
    is_cut = files.exists(path) and not files.cat(path).endswith(b"\n")
    start = "\n" if is_cut else ""
    with files.open(path, "ab") as record:
        record.write(f"{start}{json.dumps(night)}\n".encode())


def learned_files(settings: Settings) -> list[dict[str, Any]]:
    """Return the files that are done since the last line, with 0 rows if the run had held them.

    They are compared with the run, since a night that was killed leaves no line.
    """
    run = Run.open(settings.location("run"))
    known = {each["file"] for night in read_nights(settings) for each in night["learned"]}
    fitted = {"action": ADD, "members": run.attributes["members"], "new_error": None}
    added = {
        Path(member["dataset"]).stem: {"n_rows": member["n_rows"], "new_error": each["new_error"]}
        for each in (fitted, *run.versions)
        for member in each["members"]
        if each["action"] == ADD
    }
    held = {"n_rows": 0, "new_error": None}
    done = (IncomingFile(path) for path in sorted((settings.night.directory / DONE).glob("*")))
    return [
        {"file": file.path.name, **added.get(file.stem, held)}
        for file in done
        if file.path.name not in known
    ]
