"""The run: one Zarr group that holds every artefact of one fit.

Stages are recorded in the run's attributes by the one process that drives the fit. Parts are
written by tasks, each under its own name, and count only once they are marked complete.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import zarr
from numpy.typing import DTypeLike, NDArray

from dask_nrbfn.errors import RunMismatchError
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import (
    Array,
    Location,
    attributes_of,
    create_array,
    create_group,
    exists,
    get_array,
    normalize,
    open_group,
    read_rows,
    update_record,
    write_array,
)

# A part is the work that a crash can cost, and its r x r sums are written once: with 16,384 rows
# that is a twentieth of the time in which they are summed. Beyond 64 parts the parts grow.
_DEFAULT_PART_ROWS = 16_384
_DEFAULT_MAX_PARTS = 64


@dataclass(frozen=True, eq=False)
class Run:
    """An open run.

    Attributes
    ----------
    location : Location
    run_id : str
        Unique to this run, also among later runs at the same location.
    params : FitParams
    fingerprint : str
        Of the dataset it was started from.
    n_rows, n_parts : int
    """

    location: Location
    run_id: str
    params: FitParams
    fingerprint: str
    n_rows: int
    n_parts: int

    @classmethod
    def start(
        cls,
        location: Location,
        dataset: Dataset,
        params: FitParams,
        environment: Mapping[str, Any],
    ) -> Self:
        """Open the run at `location`, or begin it.

        Parameters
        ----------
        location : Location
        dataset : Dataset
        params : FitParams
        environment : mapping
            What a new run records of the machine: versions, threads, workers.

        Raises
        ------
        RunMismatchError
            If it was begun with other parameters or from another dataset.
        DamagedDataError
            If something else is there.
        """
        location = normalize(location)
        if exists(location):
            run = cls.open(location)
            run._check_same(dataset, params)
            return run
        n_parts = params.n_parts or dataset.n_rows // _DEFAULT_PART_ROWS
        create_group(
            location,
            kind="run",
            attributes={
                "run_id": uuid.uuid4().hex,
                "params": params.to_dict(),
                "dataset": str(dataset.location),
                "fingerprint": dataset.fingerprint,
                "n_rows": dataset.n_rows,
                "n_features": dataset.n_features,
                "n_classes": dataset.n_classes,
                "n_parts": min(max(n_parts, 1), params.n_parts or _DEFAULT_MAX_PARTS),
                "environment": dict(environment),
                "stages": {},
            },
        )
        return cls.open(location)

    @classmethod
    def open(cls, location: Location) -> Self:
        """Open an existing run.

        Raises
        ------
        MissingDataError, DamagedDataError
            If there is none.
        """
        location = normalize(location)
        attributes = attributes_of(open_group(location, kind="run"))
        return cls(
            location,
            attributes["run_id"],
            FitParams(**attributes["params"]),
            attributes["fingerprint"],
            attributes["n_rows"],
            attributes["n_parts"],
        )

    def _check_same(self, dataset: Dataset, params: FitParams) -> None:
        if dataset.fingerprint != self.fingerprint:
            raise RunMismatchError(
                f"the run {self.location} was begun from another dataset than {dataset.location}.",
                "Give that dataset, or another path for a new run.",
            )
        old, new = self.params.to_dict(), params.to_dict()
        if new["n_parts"] is None or new["n_parts"] == self.n_parts:
            new["n_parts"] = old["n_parts"]
        changed = [
            f"{name}={old[name]} (now {new[name]})" for name in old if old[name] != new[name]
        ]
        if changed:
            raise RunMismatchError(
                f"the run {self.location} was begun with {', '.join(changed)}.",
                "Give the same parameters to finish it, or another path for a new run.",
            )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and last-plus-one row of every part; they depend on n and the parts alone."""
        size = self.part_rows
        return [(a, min(a + size, self.n_rows)) for a in range(0, self.n_rows, size)]

    @property
    def part_rows(self) -> int:
        """Rows of every part but the last."""
        return -(-self.n_rows // self.n_parts)

    @cached_property
    def _stored(self) -> zarr.Group:
        return open_group(self.location, kind="run")

    @cached_property
    def _writable(self) -> zarr.Group:
        return open_group(self.location, kind="run", writable=True)

    def group(self, stage: str) -> zarr.Group:
        """Return the writable group of a stage."""
        return self._writable.require_group(stage)

    def array(self, name: str) -> Array:
        """Return a stored array for reading, such as "neighbors/indices"."""
        return get_array(self._stored, name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return rows of a stored array."""
        return read_rows(self.array(name), start, stop)

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything recorded of the run."""
        return attributes_of(open_group(self.location, kind="run"))

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """Records of the finished stages by name."""
        records: dict[str, dict[str, Any]] = self.attributes["stages"]
        return records

    def finish_stage(self, stage: str, record: Mapping[str, Any]) -> None:
        """Record a stage as finished; only the process that drives the run calls this."""
        group = open_group(self.location, kind="run", writable=True)
        update_record(group, {"stages": {**attributes_of(group)["stages"], stage: dict(record)}})

    def require_row_array(self, name: str, dtype: DTypeLike, width: int | None = None) -> None:
        """Lay out an array with one row, or one value, per row of X; a part writes one chunk."""
        if name not in self._writable:
            columns = () if width is None else (width,)
            create_array(
                self._writable,
                name,
                shape=(self.n_rows, *columns),
                dtype=dtype,
                chunks=(self.part_rows, *columns),
                dimensions=("row", "neighbor")[: 1 + len(columns)],
            )

    def write_rows(self, name: str, start: int, values: NDArray[Any]) -> None:
        """Write the rows of one part into an array laid out by `require_row_array`."""
        get_array(self._writable, name)[start : start + len(values)] = values

    def finished_parts(self, stage: str) -> dict[int, dict[str, Any]]:
        """Return the records of the parts of a stage that are complete, by number."""
        parts = self._stored.get(f"{stage}/parts")
        if not isinstance(parts, zarr.Group):
            return {}
        return {
            int(name): attributes_of(part)["record"]
            for name, part in parts.groups()
            if "record" in part.attrs
        }

    def part_record(self, stage: str, index: int) -> dict[str, Any] | None:
        """Return the record of one part, None if it is not complete."""
        part = self._stored.get(f"{stage}/parts/{index}")
        if not isinstance(part, zarr.Group):
            return None
        record: dict[str, Any] | None = attributes_of(part).get("record")
        return record

    def write_part(
        self,
        stage: str,
        index: int,
        record: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Store the arrays of a part, then mark it complete with its record."""
        part = self.group(f"{stage}/parts/{index}")
        for name, values in (arrays or {}).items():
            write_array(part, name, values, *(f"{name}_{axis}" for axis in range(values.ndim)))
        part.update_attributes({"record": dict(record)})

    def read_part(self, stage: str, index: int, name: str) -> NDArray[Any]:
        """Return one array of a finished part."""
        return self.read(f"{stage}/parts/{index}/{name}")

    def drop_parts(self, stage: str) -> None:
        """Delete the parts of a stage whose result is stored."""
        if f"{stage}/parts" in self._writable:
            del self._writable[f"{stage}/parts"]

    def basis_size(self) -> int:
        """Return the number of basis rows r, once they are chosen."""
        return int(self.array("basis/rows").shape[0])
