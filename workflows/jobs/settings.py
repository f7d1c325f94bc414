"""The settings of a training, read from one TOML file that all its jobs share."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from dask_nrbfn import EngineOptions, ingest_file
from dask_nrbfn.errors import MissingDataError, ParameterError
from dask_nrbfn.params import FitLimits, FitParams
from dask_nrbfn.stages.refine import check_updatable
from dask_nrbfn.storage.location import RemoteLocation, join, locate

SECTIONS = ("data", "fit", "engine", "night", "output", "storage")
TABLES = ("train", "test")
DATA_KEYS = {**dict.fromkeys(TABLES, dict), "chunk_rows": int}
# What is said of a file is what `ingest_file` takes, but for what a job decides; names of columns
# have commas between them.
SOURCE_KEYS = {
    name: type(parameter.default) if isinstance(parameter.default, int) else str
    for name, parameter in signature(ingest_file).parameters.items()
    if name not in ("location", "chunk_rows", "write_schema", "overwrite")
}
# The parameters check their values themselves.
FIT_KEYS = dict.fromkeys([*FitParams.options(), *FitLimits.options()], object)
ENGINE_KEYS = {
    "scheduler": str,
    "scheduler_file": str,
    "workers": int,
    "threads": int,
    "memory": str,
    "bar": bool,
}
NIGHT_KEYS = {
    "incoming": dict,
    "max_error_rate": float,
    "tolerance": float,
    "max_new_error": float,
    "refresh": bool,
}
OUTPUT_KEYS = {"directory": str}
TYPE_NAMES = {
    dict: "a table",
    int: "a whole number",
    float: "a number with a point",
    str: "text",
    bool: "true or false",
}


@dataclass(frozen=True)
class NightSettings:
    """What is asked of a night.

    Attributes
    ----------
    incoming : mapping
        The directory in which files wait, and how to read them, as `dask_nrbfn.ingest_file` takes
        them.
    max_error_rate : float
        Of a model on the test rows; a worse one is not published.
    tolerance : float
        By how much a model may be worse than the published one.
    max_new_error : float or None
        Of the model on the rows of a file before it has learned them; a worse file is rejected.
    refresh : bool
        Whether to fit anew when the basis no longer suits the rows.

    Raises
    ------
    ParameterError
        If a rate is not from 0 to 1, or the error below 0.
    """

    incoming: Mapping[str, Any]
    max_error_rate: float
    tolerance: float
    max_new_error: float | None = None
    refresh: bool = True

    def __post_init__(self) -> None:
        if self.max_new_error is not None and not self.max_new_error >= 0:
            raise ParameterError(
                f"`max_new_error` is {self.max_new_error}.", "Give a number of at least 0."
            )
        for name in ("max_error_rate", "tolerance"):
            if not 0 <= (rate := getattr(self, name)) <= 1:
                raise ParameterError(f"`{name}` is {rate}.", "Give a number from 0.0 to 1.0.")

    @property
    def directory(self) -> Path:
        """The directory in which files wait."""
        return Path(self.incoming["source"])


@dataclass(frozen=True)
class Settings:
    """What the jobs of one training need.

    Attributes
    ----------
    sources : mapping
        Of "train", and perhaps "test": the file with these rows and how to read it, as
        `dask_nrbfn.ingest_file` takes them.
    chunk_rows : int or None
    fit : FitParams
    limits : FitLimits
    engine : EngineOptions
    nightly : NightSettings or None
    directory : str or RemoteLocation
        Where train.zarr, test.zarr and run.zarr are: a directory or URL.
    """

    sources: Mapping[str, Mapping[str, Any]]
    chunk_rows: int | None
    fit: FitParams
    limits: FitLimits
    engine: EngineOptions
    nightly: NightSettings | None
    directory: str | RemoteLocation

    def source(self, part: str) -> Mapping[str, Any]:
        """Return the source of "train" or "test".

        Raises
        ------
        ParameterError
            If the settings have none.
        """
        if part not in self.sources:
            raise ParameterError(
                f"[data] has no {part}.",
                f'Add a line such as {part} = {{ source = "{part}.csv" }}.',
            )
        return self.sources[part]

    @property
    def night(self) -> NightSettings:
        """What is asked of a night.

        Raises
        ------
        ParameterError
            If the settings do not say.
        """
        if self.nightly is None:
            raise ParameterError("the settings have no [night].", "Add it; night.toml shows how.")
        return self.nightly

    def location(self, name: str) -> str | RemoteLocation:
        """Return where a dataset, the run or the model is, such as "train"."""
        return join(self.directory, f"{name}.zarr")


def spelled(name: str) -> str:
    """Return how the settings write a parameter that an error names: table and key."""
    tables = {
        "data": DATA_KEYS,
        "fit": FIT_KEYS,
        "engine": ENGINE_KEYS,
        "night": NIGHT_KEYS,
        "output": OUTPUT_KEYS,
    }
    for table, keys in tables.items():
        if name in keys:
            return f"[{table}] {name}"
    return name


def read_settings(path: Path) -> Settings:
    """Return the settings in a TOML file; its relative paths are relative to the file.

    Raises
    ------
    MissingDataError
        If there is no such file.
    ParameterError
        If it is no TOML, or has an unknown or missing key or a value that is not allowed.
    """
    tables = _read_tables(path)
    _check("the settings", tables, dict.fromkeys(SECTIONS, dict), required=("data", "output"))
    data, output = tables["data"], tables["output"]
    fit, engine = dict(tables.get("fit", {})), dict(tables.get("engine", {}))
    storage = tables.get("storage", {})
    _check("[data]", data, DATA_KEYS, required=("train",))
    _check("[fit]", fit, FIT_KEYS)
    _check("[engine]", engine, ENGINE_KEYS)
    _check("[output]", output, OUTPUT_KEYS, required=("directory",))
    base = path.absolute().parent
    if "scheduler_file" in engine:
        engine["scheduler_file"] = _resolve(base, engine["scheduler_file"])
    directory = _resolve(base, output["directory"])
    if storage and "://" not in directory:
        raise ParameterError(
            "[storage] is given, but [output] has no URL.", "Remove it, or give a URL."
        )
    sources = {
        part: _read_source(f"{part} in [data]", data[part], base) for part in TABLES if part in data
    }
    nightly = _read_night(tables["night"], base) if "night" in tables else None
    read = [*sources.values(), *([] if nightly is None else [nightly.incoming])]
    limits = {name: fit.pop(name) for name in FitLimits.options() if name in fit}
    params = FitParams(**fit)
    if nightly is not None:
        check_updatable(params.loss, "Give no [night], or `loss`=squared.")
    _check_apart(directory, [source["source"] for source in read])
    return Settings(
        sources=sources,
        chunk_rows=data.get("chunk_rows"),
        fit=params,
        limits=FitLimits(**limits),
        engine=EngineOptions(**engine),
        nightly=nightly,
        directory=locate(directory, storage),
    )


def _check_apart(output: str, sources: Iterable[str]) -> None:
    """Raise ParameterError if what is written would replace what is read."""
    read = {os.path.realpath(source): source for source in sources}
    if (place := os.path.realpath(output)) in read:
        raise ParameterError(
            f"[output] would replace the rows in {read[place]}.", "Give another place there."
        )


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise MissingDataError(
            f"{path} does not exist.", "Give the path of a TOML file."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} is no TOML: {error}.", "Correct it.") from error


def _read_source(place: str, source: dict[str, Any], base: Path) -> dict[str, Any]:
    _check(place, source, SOURCE_KEYS, required=("source",))
    paths = {"source", "schema"}
    # The labels of an .npy file are in other files, those of an .npz file in members.
    if source["source"].endswith(".npy"):
        paths |= {"y", "target", "weights"}
    return {key: _resolve(base, value) if key in paths else value for key, value in source.items()}


def _read_night(night: dict[str, Any], base: Path) -> NightSettings:
    _check("[night]", night, NIGHT_KEYS, required=("incoming", "max_error_rate", "tolerance"))
    incoming = _read_source("incoming in [night]", night["incoming"], base)
    return NightSettings(**{**night, "incoming": incoming})


def _check(
    place: str,
    table: Mapping[str, Any],
    keys: Mapping[str, type],
    *,
    required: tuple[str, ...] = (),
) -> None:
    for key, value in table.items():
        if key not in keys:
            raise ParameterError(
                f"unknown key {key!r} in {place}.", f"Known keys are {', '.join(keys)}."
            )
        # bool is an int to isinstance.
        if keys[key] is not object and type(value) is not keys[key]:
            raise ParameterError(
                f"{key} in {place} is {value!r}.", f"Give {TYPE_NAMES[keys[key]]}."
            )
    for key in required:
        if key not in table:
            raise ParameterError(f"{place} has no {key}.", "Add it; night.toml shows how.")


def _resolve(base: Path, location: str) -> str:
    return location if "://" in location else str(base / Path(location).expanduser())
