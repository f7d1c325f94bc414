"""Every missing, truncated or changed byte is found, or changes nothing."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr

from dask_nrbfn.errors import (
    DamagedDataError,
    FormatVersionError,
    MissingDataError,
    NRBFNError,
)
from dask_nrbfn.params import FitParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage.array import get_array, read_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import FORMAT_VERSION, open_group
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.storage.written import (
    bytes_restored,
    chunk_files,
    flips,
    make_model,
    table,
    text,
    write_dataset,
)


@pytest.fixture
def run(tmp_path):
    dataset = write_dataset(tmp_path / "data", table(7), np.array([3, 1, 3, 1, 2, 2, 1]))
    run = Run.start(tmp_path / "run", dataset, Spec.of(FitParams(n_parts=2)), {})
    run.require_row_array("neighbors/distances", np.float64, 2)
    for start, stop in run.layout.spans:
        run.write_rows("neighbors/distances", start, table(stop - start, 2, seed=start))
    run.write_part("moments", 0, {"seconds": 1.0}, {"gram": table(3), "counts": np.arange(3)})
    return run


def dataset_values(location):
    dataset = Dataset.open(location)
    blocks = list(dataset.blocks(0, dataset.n_rows, 3))
    codes = np.concatenate([block.targets for block in blocks])
    return (
        np.concatenate([block.X for block in blocks]).tolist(),
        dataset.classes[codes].tolist(),
        dataset.class_counts.tolist(),
    )


def run_values(location):
    run = Run.open(location)
    part = [run.read_part("moments", 0, name).tolist() for name in ("gram", "counts")]
    return run.read("neighbors/distances").tolist(), part, run.finished_parts("moments")


def stored_name(location, name):
    """Return the name of an array where that of a part has the name of its attempt in it."""
    part, _, array = name.rpartition("/")
    if "/parts/" not in part:
        return name
    (attempt,) = (path for path in Path(location, part).iterdir() if path.is_dir())
    return f"{part}/{attempt.name}/{array}"


def model_values(location):
    model = Model.load(location)
    return (
        model.basis.tolist(),
        model.weights.tolist(),
        model.classes.tolist(),
        model.scaling.shift.tolist(),
        model.scaling.scale.tolist(),
    )


@pytest.fixture
def stored(request, tmp_path):
    """Give the place of a dataset, a run or a model, and the function that reads all of it."""
    if request.param == "model":
        make_model(["ä", "", "bc"], n_basis=2, n_features=1).save(tmp_path / "model")
        return tmp_path / "model", model_values
    if request.param == "run":
        return Path(request.getfixturevalue("run").location), run_values
    # Seven rows in chunks of four, so that the last chunk is ragged.
    write_dataset(tmp_path / "dataset", table(7), text(["ä", "", "b", "b", "ä", "", ""]))
    return tmp_path / "dataset", dataset_values


def assert_found_or_same(read, path, *, good, values):
    """Assert that no flipped bit of a chunk file changes what is read without an error."""
    assert read() == values
    n_flipped = n_found = 0
    for bit, bad in flips(good):
        n_flipped += 1
        path.write_bytes(bad)
        try:
            same = read() == values
        except DamagedDataError:
            n_found += 1
        else:
            assert same, f"bit {bit} of {path} changed the values silently"
    # Zstandard frames have a few bits without meaning.
    assert n_found >= n_flipped - 3


def assert_found_at_any_length(read, path, *, good):
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(DamagedDataError):
            read()
    path.write_bytes(good + b"\0")
    with pytest.raises(DamagedDataError):
        read()


ARRAYS = [
    *(("dataset", "X"), ("dataset", "y"), ("model", "basis"), ("model", "classes")),
    *(("run", "neighbors/distances"), ("run", "moments/parts/0/counts")),
]


@pytest.mark.parametrize(("stored", "member"), ARRAYS, indirect=["stored"])
def test_chunk__any_flipped_bit_any_length_and_no_file(stored, member):
    (place, read_all), kind = stored, stored[0].name
    array = get_array(open_group(place, kind=kind), stored_name(place, member))
    path = chunk_files(place / array.path)[-1]

    def read():
        return read_rows(array).tolist()

    with bytes_restored(path) as good:
        assert_found_or_same(read, path, good=good, values=read())
        assert_found_at_any_length(read, path, good=good)
        path.unlink()
        with pytest.raises(NRBFNError, match=f"{path.relative_to(place)}.* missing"):
            read_all(place)


GARBAGE = {
    "zeros": bytes(200),
    "no JSON": b"{'zarr_format': 3",
    "only the node": b'{"zarr_format": 3, "node_type": "array"}',
    "zarr 9": b'{"zarr_format": 9, "node_type": "group", "attributes": {}}',
    "attributes are a list": b'{"zarr_format": 3, "node_type": "group", "attributes": [1]}',
    "cut": None,
}


@pytest.mark.fast_cases(24)
@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize(
    ("stored", "member"),
    [*((kind, "") for kind in ("dataset", "run", "model")), *ARRAYS],
    indirect=["stored"],
)
def test_metadata__garbage(stored, member, garbage):
    place, read = stored
    path = place / stored_name(place, member) / "zarr.json"
    good, bad = path.read_bytes(), GARBAGE[garbage]
    path.write_bytes(good[: len(good) // 2] if bad is None else bad)
    with pytest.raises((DamagedDataError, MissingDataError), match=place.name):
        read(place)


def raw_errors(read, path):
    """Flip one bit of every second byte and return the errors that are not the package's."""
    found = {}
    with bytes_restored(path) as good:
        for position in range(0, len(good), 2):
            bad = bytearray(good)
            bad[position] ^= 1 << position // 2 % 7
            path.write_bytes(bad)
            try:
                read()
            except NRBFNError:
                pass
            except Exception as error:
                found.setdefault(type(error).__name__, (position, str(error)[:100]))
    return found


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("stored", ["dataset", "run", "model"], indirect=True)
def test_metadata__flipped_bits_end_in_no_raw_traceback(stored):
    place, read = stored
    assert raw_errors(partial(read, place), place / "zarr.json") == {}


@pytest.mark.parametrize("stored", ["dataset", "run", "model"], indirect=True)
@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, str(FORMAT_VERSION), None])
def test_metadata__another_format(stored, version):
    place, read = stored
    zarr.open_group(str(place), mode="r+").attrs["format_version"] = version
    with pytest.raises(FormatVersionError, match=f"version {version}, but .* {FORMAT_VERSION}"):
        read(place)
