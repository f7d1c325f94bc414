"""The run of an estimator: where it is, on what it is computed, and whose it is afterwards."""

import hashlib
import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from distributed import default_client
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import embed_dataset, fit_dataset, tune_dataset
from dask_nrbfn.commands.update import branch_run, merge_runs, update_run
from dask_nrbfn.engine import Engine, InlineEngine, connect
from dask_nrbfn.errors import ParameterError, RunMismatchError
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.refine import is_refined
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import Location, in_memory, join, normalize
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import version_name, versions_of

# What is as long as the rows, and was copied where it is an attribute.
_NOT_FOR_UPDATES = ("neighbors", "confidence", "search")


class Settings(NamedTuple):
    """What an estimator fits: parameters, and what is tried to find better ones."""

    params: FitParams
    tuning: TuneParams | None = None


@contextmanager
def workplace(store: Location | None, X: Any) -> Iterator[Location]:
    """Give the directory or URL under which rows and runs are put: `store`, or a temporary one.

    For a dataset in memory it is a store in memory.
    """
    if isinstance(X, Dataset) and in_memory(X.location):
        yield MemoryStore()
    elif store is not None:
        yield normalize(store)
    else:
        with tempfile.TemporaryDirectory(prefix="dask-nrbfn-") as directory:
            yield directory


def finished_run(dataset: Dataset, place: Location, settings: Settings, **options: Any) -> Run:
    """Return the run of these rows and parameters under `place`, with its model.

    `options` are those that `fit_dataset` and `tune_dataset` have.
    """
    params, tuning = settings
    location = _run_location(dataset, place, settings, "run")
    with _active_engine(dataset) as engine:
        if tuning is None:
            return fit_dataset(dataset, location, params, engine, **options)
        return tune_dataset(dataset, location, params, tuning, engine, **options)


def finished_embedding(dataset: Dataset, place: Location, params: FitParams, **options: Any) -> Run:
    """Return the embedding of these rows and parameters; `options` are those of `embed_dataset`."""
    location = _run_location(dataset, place, Settings(params), "embedding")
    with _active_engine(dataset) as engine:
        return embed_dataset(dataset, location, params, engine, **options)


def _run_location(dataset: Dataset, place: Location, settings: Settings, kind: str) -> Location:
    """Return where under `place` the run of these rows and parameters is, and no other."""
    if in_memory(dataset.location):
        return place
    given = [None if values is None else values.to_dict() for values in settings]
    identity = json.dumps([dataset.fingerprint, *given])
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    return join(place, f"{kind}-{digest}")


@contextmanager
def _active_engine(dataset: Dataset) -> Iterator[Engine]:
    """Give the active client's workers; without one, and for rows in memory, this process."""
    try:
        client = default_client()
    except ValueError:
        client = None
    if client is None or in_memory(dataset.location):
        yield InlineEngine()
        return
    with connect(client=client) as engine:
        yield engine


class KeptRun(NamedTuple):
    """A run that outlives its fit, and with it the sums over the rows.

    Attributes
    ----------
    location : Location
    version : int
        The version that the network has seen last.
    shared : bool
        Other fits of the same rows and parameters find it too, so that no network may change it.
    """

    location: Location
    version: int
    shared: bool

    @classmethod
    def of_fit(cls, run: Run, store: Location | None) -> Self | None:
        """Return the run of a fit if it is in this process's memory or in a store."""
        if isinstance(run.location, MemoryStore):
            if is_refined(run.chosen_params):
                return None
            for stage in _NOT_FOR_UPDATES:
                run.drop(stage)
            return cls(run.location, 0, shared=False)
        return None if store is None else cls(run.location, 0, shared=True)

    def update(self, dataset: Dataset, *, forget: bool) -> Self:
        """Add rows, or take them away, and return the run with its new version."""
        in_memory = isinstance(self.location, MemoryStore)
        with _active_engine(dataset) as engine:
            update_run(self.location, dataset, engine, forget=forget, again=in_memory)
        if in_memory:
            # Nobody else reads it.
            for place in ("moments", version_name(self.version)):
                Run.open(self.location).drop(place)
        return self._replace(version=self.version + 1)


def own_run(kept: KeptRun | None, store: Location | None) -> KeptRun:
    """Return a run that one network alone adds rows to: that of its fit, or a copy in `store`."""
    if kept is not None and not kept.shared:
        if len(versions_of(Run.open(kept.location).attributes)) != kept.version:
            raise RunMismatchError(
                f"a copy of this network has changed {kept.location} since.", "Fit it again."
            )
        return kept
    if kept is None or store is None:
        raise ParameterError("the sums over the rows were not kept.", "Fit with a `store`.")
    location = join(store, f"updated-{uuid.uuid4().hex}")
    branch_run(kept.location, location)
    merge_runs(location, kept.location, InlineEngine(), of_fit=True)
    return KeptRun(location, 1, shared=False)
