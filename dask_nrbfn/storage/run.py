"""The run: one Zarr group with all results of one fit.

The process that drives the fit records finished stages in the attributes of the run. Tasks write
parts, each under its own name. A part counts once it is marked complete.
"""

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import DTypeLike, NDArray
from zarr.abc.buffer import Buffer

from dask_nrbfn.errors import (
    DamagedDataError,
    DamagedResultError,
    MissingDataError,
    RunMismatchError,
)
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.params import FitParams
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage import group as groups
from dask_nrbfn.storage.array import (
    Stored,
    create_array,
    get_array,
    get_stored,
    read_rows,
    write_array,
    write_values,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import RESTORE, check_sealed, metadata_named, values_named
from dask_nrbfn.storage.layout import PartLayout, part_name, parts_in
from dask_nrbfn.storage.location import Location, hidden_sibling, local_path, normalize, remote

logger = logging.getLogger(__name__)

_PART_NAME = re.compile(r"\d+(-\d+)?")

ADD, FORGET, MERGE = "add", "forget", "merge"

# The group of the versions in a run.
VERSIONS = "versions"

REFRESH = "refresh"
"""Suffix of the hidden name of a run that will replace another; see `finish_refresh`."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """An open run.

    Attributes
    ----------
    location : Location
    run_id : str
        Unique, also among later runs at the same location.
    begun : Spec
        What the run was begun to do; see `spec`.
    fingerprint, n_rows : str, int
        Fingerprint and number of rows of the dataset of the fit.
    layout : PartLayout
        How the rows are cut into parts.
    attributes, stored : dict, zarr.Group
        The attributes when the run was opened, with the changes by this object; the stored group.
    """

    location: Location
    run_id: str
    begun: Spec
    fingerprint: str
    n_rows: int
    layout: PartLayout
    attributes: dict[str, Any]
    stored: zarr.Group

    def __repr__(self) -> str:
        return f"<dask_nrbfn.Run at {self.location}>"

    @classmethod
    def start(
        cls,
        location: Location,
        dataset: Dataset,
        spec: Spec,
        environment: Mapping[str, Any],
        *,
        n_workers: int = 1,
        gpu: bool = False,
    ) -> Self:
        """Open the run at `location`, or begin it; an old run must be of the same fit."""
        location = normalize(location)
        if groups.exists(location):
            run = cls.open(location)
            run._check_same(dataset, spec)
            return run
        where: dict[str, Any] = {"n_workers": n_workers, "gpu": gpu}
        layout = PartLayout.of(dataset.n_rows, spec.params.n_parts, **where)
        labelled = PartLayout.of(dataset.of_labelled().n_rows, spec.params.n_parts, **where)
        attributes = {
            "run_id": uuid.uuid4().hex,
            "spec": spec.to_dict(),
            "dataset": str(dataset.location),
            "fingerprint": dataset.fingerprint,
            "members": [member_of(dataset)],
            "basis_n_rows": dataset.n_rows,
            "n_features": dataset.n_features,
            "n_classes": dataset.n_classes,
            "target_names": dataset.target_names,
            "schema": None if dataset.schema is None else dataset.schema.to_dict(),
            **asdict(layout),
            "environment": dict(environment),
            **{"decisions": {}, "stages": {}, "versions": []},
            "labelled": asdict(labelled) if dataset.n_unlabelled else None,
        }
        with groups.replacing_group(location, kind="run", overwrite=False) as group:
            groups.mark_complete(group, kind="run", attributes=attributes)
        return cls.open(location)

    @classmethod
    def open(cls, location: Location) -> Self:
        """Open an existing run.

        Raises
        ------
        MissingDataError, DamagedDataError
            If `location` is not a run, or the run is damaged.
        """
        location = normalize(location)
        stored = groups.open_group(location, kind="run")
        attributes = groups.attributes_of(stored)
        sizes = ("n_rows", "part_rows", "chunk_rows")
        return cls(
            location,
            begun=Spec.from_dict(attributes["spec"]),
            layout=PartLayout(*(attributes[name] for name in sizes)),
            attributes=attributes,
            stored=stored,
            **{name: attributes[name] for name in ("run_id", "fingerprint", "n_rows")},
        )

    def _check_same(self, dataset: Dataset, spec: Spec) -> None:
        if (dataset.fingerprint, dataset.n_rows) != (self.fingerprint, self.n_rows):
            raise RunMismatchError(
                f"the run {self.location} was begun from another dataset than {dataset.location}.",
                "Give the dataset that the run was begun from, or another path for a new run.",
            )
        if spec.mode != self.begun.mode:
            raise RunMismatchError(
                f"the run {self.location} was begun by {self.begun_by}.",
                f"Finish the run with {self.begun_by}, or give another path for a new run.",
            )
        if changed := self.begun.changes(spec):
            raise RunMismatchError(
                f"the run {self.location} was begun with {', '.join(changed)}.",
                "Give the same parameters to finish the run, or another path for a new run.",
            )

    def of_labelled(self) -> Self:
        """Return the run for stages that use only the rows with labels."""
        layout = self.attributes["labelled"]
        if layout is None:
            return self
        labelled = PartLayout(**layout)
        return replace(self, n_rows=labelled.n_rows, layout=labelled)

    @property
    def of_numbers(self) -> bool:
        """Whether the targets are numbers, not classes."""
        return self.attributes["target_names"] is not None

    @property
    def embeds(self) -> bool:
        """Whether the run is an embedding, which projects rows and learns no targets."""
        return self.begun.mode == "embed"

    @property
    def begun_by(self) -> str:
        """The command that began the run."""
        return self.begun.mode

    @cached_property
    def spec(self) -> Spec:
        """What the fit is after its finished stages, without what these have chosen."""
        return reduce(Spec.narrowed, self.stages.values(), self.begun)

    @property
    def chosen_params(self) -> FitParams:
        """The parameters, with the values that finished stages have chosen."""
        return self.spec.params

    @property
    def versions(self) -> list[dict[str, Any]]:
        """Records of the versions after the fit."""
        return list(self.attributes["versions"])

    @property
    def latest_place(self) -> str:
        """The group of the latest version; "" for the fit."""
        return latest_place(self.attributes)

    @property
    def members_held(self) -> dict[str, dict[str, Any]]:
        """Each set of rows that was ever added or removed, by its content.

        "times" is how often the run has the rows; -1 if they were removed as a part of others.
        """
        return self.members_after()

    def members_after(self, *changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the `members_held` after further changes."""
        held: dict[str, dict[str, Any]] = {}
        fit = {"action": ADD, "members": self.attributes["members"]}
        for record in [fit, *self.versions, *changes]:
            sign = -1 if record["action"] == FORGET else 1
            for member in record["members"]:
                before = held.get(member["content"], {"times": 0})
                times = before["times"] + sign * member.get("times", 1)
                held[member["content"]] = {**before, **member, "times": times}
        return held

    @property
    def n_rows_held(self) -> int:
        """Number of rows behind the latest model."""
        return sum(each["times"] * each["n_rows"] for each in self.members_held.values())

    @cached_property
    def _writable(self) -> zarr.Group:
        return groups.open_group(self.location, kind="run", writable=True)

    def group(self, stage: str) -> zarr.Group:
        """Return the writable group of a stage."""
        with self._result_named(stage), metadata_named(f"{self.location}/{stage}"):
            return self._writable.require_group(stage)

    def has(self, name: str) -> bool:
        """Return whether a group or array of a name is stored."""
        with self._result_named(name), metadata_named(f"{self.location}/{name}"):
            return name in self.stored

    def array(self, name: str) -> Stored:
        """Return a stored array for reading, such as "neighbors/indices", or rows in CSR."""
        with self._result_named(name):
            return get_stored(self.stored, name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Rows:
        """Return rows of a stored array, in CSR if they are stored so."""
        with self._result_named(name):
            return read_rows(get_stored(self.stored, name), start, stop)

    def take(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Return some rows, ascending, of an array with one row per row of X."""
        with self._result_named(name), values_named(f"rows of {self.location}/{name}", RESTORE):
            return np.asarray(get_array(self.stored, name).oindex[rows])

    @contextmanager
    def _result_named(self, name: str) -> Iterator[None]:
        """Turn errors of reading into a DamagedResultError with the stage and the part."""
        try:
            yield
        except (MissingDataError, DamagedDataError) as error:
            stage, *inner = name.split("/")
            parts = parts_in(inner[1]) if inner[1:] and inner[0] == "parts" else ()
            raise DamagedResultError(error.problem, error.remedy, stage, tuple(parts)) from error

    @property
    def stages(self) -> dict[str, Any]:
        """Records of the finished stages by name."""
        stages: dict[str, Any] = self.attributes["stages"]
        return stages

    @property
    def decisions(self) -> dict[str, Any]:
        """Choices that were made for "auto", by stage; they also hold on other workers."""
        decided: dict[str, Any] = self.attributes["decisions"]
        return decided

    def decide(self, stage: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recorded decision of a stage; if there is none, record `choice`."""
        decided = {stage: dict(choice), **self.decisions}
        self.record(decisions=decided)
        return dict(decided[stage])

    def record(self, **changed: Any) -> None:
        """Change attributes of the run; only the process that drives the run calls this."""
        group = groups.open_group(self.location, kind="run", writable=True)
        groups.update_record(group, changed)
        self.attributes.update(changed)
        # Another stage may have chosen.
        vars(self).pop("spec", None)

    def copy_fit(self, location: Location, stages: Iterable[str]) -> None:
        """Begin a run with the model and some stages of this fit, without later versions."""
        with groups.replacing_group(location, kind="run", overwrite=False) as group:
            for name in ("model", *stages):
                groups.copy_member(self.stored, group, name)
            groups.mark_complete(group, kind="run", attributes={**self.attributes, "versions": []})

    def finish_version(self, record: Mapping[str, Any], *, needs: Iterable[str]) -> None:
        """Record a version as the latest one, flushed first because it cannot be computed again."""
        for name in (*needs, VERSIONS):
            groups.flush_member(self.location, name)
        self.record(versions=[*self.versions, dict(record)])

    def require_row_array(self, name: str, dtype: DTypeLike, width: int | None = None) -> None:
        """Create an array with one row, or one value, per row of X, unless it exists."""
        inner = () if width is None else (width,)
        if not self.has(name):
            create_array(
                self._writable,
                name,
                shape=(self.n_rows, *inner),
                dtype=dtype,
                chunks=(self.layout.chunk_rows, *inner),
                dimensions=("row", "neighbor")[: 1 + len(inner)],
            )

    def write_rows(self, name: str, start: int, values: NDArray[Any]) -> None:
        """Write whole chunks of an array laid out by `require_row_array`, from row `start` on."""
        get_array(self._writable, name)[start : start + len(values)] = values

    def finished_parts(self, stage: str) -> dict[range, dict[str, Any]]:
        """Return the records of the complete parts of a stage, and of sums of parts.

        What a killed job has left is deleted: incomplete parts, and parts that a sum contains.
        """
        stored = self._stored_parts(stage)
        written = zip(stored, self._attempts(stage, *stored), strict=True)
        complete = {parts: attempt["record"] for parts, attempt in written if attempt}
        finished: dict[range, dict[str, Any]] = {}
        end = 0
        # Sums are nested or disjoint, so here a sum comes before the parts that it contains.
        for parts in sorted(complete, key=lambda parts: (parts.start, -parts.stop)):
            if parts.stop > end:
                finished[parts], end = complete[parts], parts.stop
        self.drop_part(stage, *(parts for parts in stored if parts not in finished))
        return finished

    def _stored_parts(self, stage: str) -> list[range]:
        names = groups.member_names(self.stored, f"{stage}/parts")
        return [parts_in(name) for name in names if _PART_NAME.fullmatch(name)]

    def part_record(self, stage: str, part: int | range) -> dict[str, Any] | None:
        """Return the record of one part, None if it is incomplete or damaged."""
        (attempt,) = self._attempts(stage, part)
        return None if attempt is None else attempt["record"]

    def _attempts(self, stage: str, *parts: int | range) -> list[dict[str, Any] | None]:
        """Return what was written last of each part; None if it is incomplete or damaged."""
        names = [part_place(stage, part) for part in parts]

        async def read() -> list[Buffer | None]:
            places = (self.stored.store_path / name / "zarr.json" for name in names)
            return await asyncio.gather(*(place.get() for place in places))

        return list(map(self._attempt, names, run_in_zarr(read())))

    def _attempt(self, name: str, content: Buffer | None) -> dict[str, Any] | None:
        try:
            with metadata_named(f"{self.location}/{name}"):
                attributes = {} if content is None else json.loads(content.to_bytes())["attributes"]
                if attributes:
                    check_sealed(attributes, name)
        except DamagedDataError as error:
            logger.warning("%s The part is computed again.", error.problem)
            return None
        # A task of an earlier run at this location may have written the part.
        return attributes if attributes.get("run_id") == self.run_id else None

    def write_part(
        self,
        stage: str,
        part: int | range,
        record: Mapping[str, Any],
        arrays: Mapping[str, Rows] | None = None,
        *,
        slice_rows: int | None = None,
    ) -> None:
        """Store the arrays of a part, then mark it complete with its record.

        dask may run a task twice at the same time. So every attempt writes its own arrays, and the
        record names the attempt. The arrays will be read in slices of `slice_rows` rows, if given.
        """
        attempt, place = uuid.uuid4().hex, self._writable.store_path / part_place(stage, part)
        written = {"record": dict(record), "attempt": attempt, "run_id": self.run_id}

        async def write() -> None:
            await groups.make_groups(place / attempt)
            for name, values in (arrays or {}).items():
                dimensions = [f"{name}_{axis}" for axis in range(values.ndim)]
                await write_values(place / attempt / name, values, dimensions, slice_rows)
            await groups.write_group(place, written)

        run_in_zarr(write())

    def read_part(
        self, stage: str, part: int | range, name: str, start: int = 0, stop: int | None = None
    ) -> Rows:
        """Return rows of one array of a finished part."""
        (found,) = self.part_arrays(stage, part, [name])
        return self.read(found, start, stop)

    def part_arrays(self, stage: str, part: int | range, names: Iterable[str]) -> list[str]:
        """Return the names under which `read` finds arrays of a finished part."""
        (attempt,), place = self._attempts(stage, part), part_place(stage, part)
        if attempt is None:
            raise DamagedResultError(
                f"part {part_name(part)} of {stage} is missing.",
                "Start the fit again.",
                stage,
                tuple(parts_in(part_name(part))),
            )
        return [f"{place}/{attempt['attempt']}/{name}" for name in names]

    def drop_part(self, stage: str, *parts: range) -> None:
        """Delete parts that are not needed; a part that a task still writes stays."""
        with suppress(OSError):
            self.drop(*(part_place(stage, part) for part in parts))

    def drop(self, *names: str) -> None:
        """Delete groups with all their arrays and parts; they need not be readable, nor exist."""
        for name in names:
            run_in_zarr(groups.delete_all(self._writable.store_path / name))

    def forget(self, stage: str, parts: tuple[int, ...]) -> None:
        """Delete results of a stage, and the sums that contain them, so they are computed again.

        The parts of a stage may have a group of their own, such as "cells/networks".
        """
        if not parts:
            self.drop(stage)
        damaged = [each for each in self._stored_parts(stage) if not set(each).isdisjoint(parts)]
        self.drop(*(part_place(stage, each) for each in damaged))
        recorded = stage.split("/", maxsplit=1)[0]
        if recorded in self.stages:
            others = {name: each for name, each in self.stages.items() if name != recorded}
            self.record(stages=others)

    def drop_groups(self, prefix: str) -> None:
        """Delete everything at the top of the run whose name begins with `prefix`."""
        self.drop(*self.group_names(prefix))

    def member_names(self, group: str = "") -> list[str]:
        """Return the names in a group of the run, readable or not; none without the group."""
        return groups.member_names(self.stored, group)

    def group_names(self, prefix: str) -> list[str]:
        """Return the names at the top of the run that begin with `prefix`."""
        return [name for name in self.member_names() if name.startswith(prefix)]


@dataclass(frozen=True)
class RunArray:
    """An array of a run.

    name: that of a group, mostly of the stage that stores the array, and its own: "basis/values".
    axes: the names of its axes.
    content: what its values are, for readers who open the run with zarr.
    verified: whether the end of a fit reads it again, and computes it again if it is damaged.
    """

    name: str
    axes: tuple[str, ...]
    content: str
    verified: bool = True

    def write(self, run: Run, values: Rows) -> None:
        """Store the values."""
        group, _, name = self.name.rpartition("/")
        write_array(run.group(group), name, values, *self.axes)

    def read(self, run: Run, start: int = 0, stop: int | None = None) -> Any:
        """Return the values, or those from one place of the first axis to another."""
        return run.read(self.name, start, stop)

    def is_in(self, run: Run) -> bool:
        """Return whether the run has the array."""
        return run.has(self.name)


@dataclass(frozen=True)
class RunArrays:
    """Arrays that several groups of a run have: the axes and the content of each by its name.

    prefix: begins the names of the arrays in a group.
    """

    arrays: Mapping[str, tuple[tuple[str, ...], str]]
    prefix: str = ""

    def in_group(self, group: str, suffix: str = "") -> dict[str, RunArray]:
        """Return the arrays of a group by name; `suffix` ends their names in the group."""
        return {
            name: RunArray(f"{group}/{self.prefix}{name}{suffix}", axes, content)
            for name, (axes, content) in self.arrays.items()
        }

    def write(
        self, run: Run, group: str, values: Mapping[str, Rows | None], suffix: str = ""
    ) -> None:
        """Store the values by name that are not None."""
        for name, array in self.in_group(group, suffix).items():
            if (own := values[name]) is not None:
                array.write(run, own)

    def read(self, run: Run, group: str, suffix: str = "") -> dict[str, Any]:
        """Return the values of all arrays of a group by name."""
        return {name: array.read(run) for name, array in self.in_group(group, suffix).items()}


def finish_refresh(location: Location) -> None:
    """Put a refreshed run in its place if a job was killed after it moved the old run away."""
    if (local_path(location) is None and remote(location) is None) or groups.exists(location):
        return
    building = hidden_sibling(location, REFRESH)
    with suppress(MissingDataError):
        refreshed = Run.open(building)
        with groups.locked_group(location):
            if REFRESH in refreshed.attributes and not groups.exists(location):
                groups.replace_group(building, location)


def part_place(stage: str, part: int | range) -> str:
    """Return the name of the group of a part, or of the sum of consecutive parts, in a run."""
    return f"{stage}/parts/{part_name(part)}"


# Versions of a run: its models after rows were added or removed
#
# Version 0 is the fit. Each later version has its own group. It becomes the latest version when it
# is recorded in the attributes of the run, which are replaced as a whole.


def version_name(version: int) -> str:
    """Return the name of the group with all attempts at a version after the fit."""
    return f"{VERSIONS}/{version}"


def latest_place(attributes: Mapping[str, Any]) -> str:
    """Return the group of the latest version; "" for the fit."""
    records = attributes["versions"]
    return str(records[-1]["place"]) if records else ""


def model_name(place: str) -> str:
    """Return the name of the group of a version's model."""
    return f"{place}/model" if place else "model"


def member_of(dataset: Dataset) -> dict[str, Any]:
    """Return the record of a dataset in a run: its location, content digest and row counts."""
    return {
        "dataset": str(dataset.location),
        "content": dataset.content,
        "n_rows": dataset.n_rows,
        **({"n_unlabelled": dataset.n_unlabelled} if dataset.n_unlabelled else {}),
    }
