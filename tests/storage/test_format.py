"""Parameters that earlier formats named otherwise."""

import numpy as np
import zarr
from zarr.storage import MemoryStore

from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.strict import checksum
from tests.storage.written import make_model, table, write_dataset

PARAMS = FitParams(alpha=1e-3, random_state=7)


def store_seed(place):
    """Give the stored parameters the names of format 3."""
    group = zarr.open_group(place, mode="r+")
    attributes = group.attrs.asdict()
    del attributes["checksum"]
    params = attributes["params"]
    params["seed"] = params.pop("random_state")
    group.attrs.put({**attributes, "checksum": checksum(attributes)})


def test_format__seed_of_a_run():
    place, dataset = MemoryStore(), write_dataset(MemoryStore(), table(10), np.arange(10) % 3)
    run_id = Run.start(place, dataset, PARAMS, {}, tuning=TuneParams(folds=3)).run_id
    store_seed(place)
    assert Run.open(place).params == PARAMS
    assert Run.start(place, dataset, PARAMS, {}, tuning=TuneParams(folds=3)).run_id == run_id


def test_format__seed_of_a_model():
    place = MemoryStore()
    make_model(params=PARAMS).save(place)
    store_seed(place)
    assert Model.load(place).params == PARAMS.resolve_auto(numbers=False)
