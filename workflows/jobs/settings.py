"""The settings of a night, read from one TOML file that all its jobs share."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any

from dask_nrbfn import EngineOptions, ingest_file
from dask_nrbfn.errors import MissingDataError, ParameterError
from dask_nrbfn.params import FitLimits, FitParams, Params, number
from dask_nrbfn.stages.refine import check_updatable

TABLES = ("train", "test")
DATA_KEYS = {**dict.fromkeys(TABLES, dict), "chunk_rows": int}
# What is said of a file is what `ingest_file` takes, but for what a job decides; names of columns
# have commas between them.
SOURCE_KEYS = {
    name: type(parameter.default) if isinstance(parameter.default, int) else str
    for name, parameter in signature(ingest_file).parameters.items()
    if name not in ("location", "chunk_rows", "overwrite")
}
# The parameters check their values themselves.
FIT_KEYS = dict.fromkeys([*FitParams.options(), *FitLimits.options()], object)
ENGINE_KEYS = {**dict.fromkeys(EngineOptions.options(), object), "bar": bool}
NIGHT_KEYS = {
    "incoming": dict,
    "max_error_rate": object,
    "tolerance": object,
    "max_new_error": object,
    "refresh": bool,
}
KEYS = {
    "data": DATA_KEYS,
    "fit": FIT_KEYS,
    "engine": ENGINE_KEYS,
    "night": NIGHT_KEYS,
    "output": {"directory": str},
}
REQUIRED = {
    "data": TABLES,
    "night": ("incoming", "max_error_rate", "tolerance"),
    "output": ("directory",),
}
TYPE_NAMES = {dict: "a table", int: "a whole number", str: "text", bool: "true or false"}


@dataclass(frozen=True, kw_only=True)
class NightSettings(Params):
    """The keys of [night]; night.toml describes each."""

    incoming: Mapping[str, Any]
    max_error_rate: float = number(0.0, "", least=0)
    tolerance: float = number(0.0, "", least=0)
    max_new_error: float | None = number(None, "", most=inf, least=0, none="no limit")
    refresh: bool = True

    @property
    def directory(self) -> Path:
        """The directory in which files wait."""
        return Path(self.incoming["source"])


@dataclass(frozen=True)
class Settings:
    """What the jobs of one training need; `sources` are "train" and "test", as read from [data]."""

    sources: Mapping[str, Mapping[str, Any]]
    chunk_rows: int | None
    fit: FitParams
    limits: FitLimits
    engine: EngineOptions
    night: NightSettings
    directory: str

    def location(self, name: str) -> str:
        """Return where a dataset, the run or the model is, such as "train"."""
        return f"{self.directory.rstrip('/')}/{name}.zarr"


def spelled(name: str) -> str:
    """Return how the settings write a parameter that an error names: table and key."""
    return next((f"[{table}] {name}" for table, keys in KEYS.items() if name in keys), name)


def read_settings(path: Path) -> Settings:
    """Return the settings in a TOML file; its relative paths are relative to the file."""
    tables = _read_tables(path)
    _check("the settings file", tables, dict.fromkeys(KEYS, dict), required=REQUIRED)
    data, fit, engine, night, output = (tables.get(name, {}) for name in KEYS)
    for name, keys in KEYS.items():
        _check(f"[{name}]", tables.get(name, {}), keys, required=REQUIRED.get(name, ()))
    base = path.absolute().parent
    if "scheduler_file" in engine:
        engine["scheduler_file"] = _resolve(base, engine["scheduler_file"])
    directory = _resolve(base, output["directory"])
    sources = {part: _read_source(f"{part} in [data]", data[part], base) for part in TABLES}
    incoming = _read_source("incoming in [night]", night["incoming"], base)
    limits = {name: fit.pop(name) for name in FitLimits.options() if name in fit}
    params = FitParams(**fit)
    check_updatable(params.loss, "Give `loss`=squared.")
    _check_apart(directory, [source["source"] for source in (*sources.values(), incoming)])
    return Settings(
        sources=sources,
        chunk_rows=data.get("chunk_rows"),
        fit=params,
        limits=FitLimits(**limits),
        engine=EngineOptions(**engine),
        night=NightSettings(**{**night, "incoming": incoming}),
        directory=directory,
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


def _check(
    place: str, table: Mapping[str, Any], keys: Mapping[str, type], *, required: Iterable[str] = ()
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
