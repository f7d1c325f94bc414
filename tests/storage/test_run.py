import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.errors import DamagedDataError, DamagedResultError, MissingDataError
from dask_nrbfn.params import FitParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage.layout import PartLayout, block_rows, gpu_block_rows, narrow_block_rows
from dask_nrbfn.storage.run import VERSIONS, Run
from tests.storage.written import table, write_dataset


@pytest.fixture(scope="module")
def dataset():
    return write_dataset(MemoryStore(), table(10), np.arange(10) % 3)


@pytest.fixture(params=["path", "fsspec"])
def place(request, tmp_path):
    name = request.node.name.replace("[", "-").replace("]", "")
    return {
        "path": tmp_path / "run",
        "fsspec": f"memory://test-run-{name}/run",
    }[request.param]


def test_start__records_and_opens_again(place, dataset):
    params = FitParams(alpha=1e-9, random_state=np.int64(7))
    run = Run.start(place, dataset, Spec.of(params), {"threads": 2})
    for again in (Run.open(place), Run.start(place, dataset, Spec.of(params), {"threads": 3})):
        for field in dataclasses.fields(Run):
            assert getattr(again, field.name) == getattr(run, field.name)
    assert run.chosen_params == params
    assert run.fingerprint == dataset.fingerprint
    assert (run.n_rows, run.layout.n_parts) == (10, 1)
    assert run.attributes["environment"] == {"threads": 2}
    assert run.attributes["n_classes"] == 3
    assert run.stages == {}


def test_start__the_same_rows_elsewhere_are_the_same_dataset(tmp_path, dataset):
    place = MemoryStore()
    run_id = Run.start(place, dataset, Spec.of(FitParams()), {}).run_id
    copy = write_dataset(tmp_path / "copy", table(10), np.arange(10) % 3)
    assert Run.start(place, copy, Spec.of(FitParams()), {}).run_id == run_id


def test_start__something_else_is_there(tmp_path, dataset):
    write_dataset(tmp_path / "data", table(5))
    with pytest.raises(DamagedDataError, match=r"is a dask_nrbfn\.dataset, not a dask_nrbfn\.run"):
        Run.start(tmp_path / "data", dataset, Spec.of(FitParams()), {})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("mine")
    with pytest.raises((DamagedDataError, MissingDataError), match="notes"):
        Run.start(tmp_path / "notes", dataset, Spec.of(FitParams()), {})
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["one.txt"]


@given(n_rows=st.integers(1, 10_000), n_parts=st.integers(1, 12_000))
@settings(max_examples=60)
def test_spans__cover_all_rows_once(n_rows, n_parts):
    layout = PartLayout.of(n_rows, n_parts)
    spans = layout.spans
    assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
    assert spans[-1][1] == n_rows
    lengths = [b - a for a, b in spans]
    assert set(lengths[:-1]) <= {layout.part_rows}
    assert 1 <= lengths[-1] <= layout.part_rows
    assert len(spans) <= n_parts


@pytest.mark.parametrize(
    ("n_rows", "n_parts"),
    [(1, 1), (16_383, 1), (16_384, 2), (60_000, 2), (73_728, 3), (1_600_000, 64)],
)
def test_layout__number_of_parts_from_the_rows(n_rows, n_parts):
    assert PartLayout.of(n_rows).n_parts == n_parts
    assert PartLayout.of(n_rows, gpu=True).n_parts == max(n_rows // 786_432, 1)


def finished(run, stage):
    return {parts.start: record for parts, record in run.finished_parts(stage).items()}


def test_part__complete_or_absent(place, dataset):
    run = Run.start(place, dataset, Spec.of(FitParams(n_parts=3)), {})
    assert finished(run, "moments") == {}
    values = table(4)
    run.write_part("moments", 2, {"seconds": 1.5}, {"gram": values, "counts": np.arange(3)})
    run.write_part("moments", 0, {"seconds": 0.5})
    assert finished(run, "moments") == {0: {"seconds": 0.5}, 2: {"seconds": 1.5}}
    assert run.read_part("moments", 2, "gram").tobytes() == values.tobytes()
    assert finished(run, "width") == {}
    # Other readers of Zarr see the groups that hold parts.
    assert "moments" in run.stored.group_keys()


def test_require_row_array__keeps_what_is_written(place, dataset):
    run = Run.start(place, dataset, Spec.of(FitParams(n_parts=3)), {})
    expected = np.arange(20).reshape(10, 2)
    run.require_row_array("neighbors/indices", np.int64, 2)
    for start, stop in run.layout.spans[:2]:
        run.write_rows("neighbors/indices", start, expected[start:stop])
    run.require_row_array("neighbors/indices", np.int64, 2)
    np.testing.assert_array_equal(run.read("neighbors/indices", 0, 8), expected[:8])
    run.write_rows("neighbors/indices", 8, expected[8:])
    np.testing.assert_array_equal(run.read("neighbors/indices"), expected)
    np.testing.assert_array_equal(run.read("neighbors/indices", 3, 9), expected[3:9])


def test_require_row_array__of_an_unwritten_part_is_missing(place, dataset):
    run = Run.start(place, dataset, Spec.of(FitParams(n_parts=2)), {})
    run.require_row_array("confidence/values", np.float64)
    run.write_rows("confidence/values", 0, np.ones(5))
    with pytest.raises(DamagedResultError, match="confidence/values/c/1"):
        run.read("confidence/values")


def test_decide__the_first_decision_stays(place, dataset):
    run = Run.start(place, dataset, Spec.of(FitParams()), {})
    assert run.decisions == {}
    assert run.decide("neighbors", {"method": "exact"}) == {"method": "exact"}
    assert run.decide("neighbors", {"method": "approximate"}) == {"method": "exact"}
    assert run.decide("basis", {"cap": 3}) == {"cap": 3}
    assert Run.open(place).decisions == {"neighbors": {"method": "exact"}, "basis": {"cap": 3}}


def test_forget__a_part_and_the_stage(place, dataset):
    run = Run.start(place, dataset, Spec.of(FitParams(n_parts=3)), {})
    for index in range(3):
        run.write_part("neighbors", index, {"index": index})
    for stage in ("columns", "neighbors"):
        run.record(stages=run.stages | {stage: {}})
    run.forget("neighbors", (1,))
    assert set(finished(run, "neighbors")) == {0, 2}
    assert set(Run.open(place).stages) == {"columns"}
    run.forget("neighbors", (1,))
    run.forget("neighbors", ())
    assert not run.has("neighbors")
    assert finished(run, "neighbors") == {}
    run.write_part("neighbors", 0, {"index": 0})
    assert set(finished(run, "neighbors")) == {0}


def test_forget__a_part_and_the_sums_that_hold_it(place, dataset):
    run = Run.start(place, dataset, Spec.of(FitParams(n_parts=3)), {})
    for parts in (range(4), range(4, 5), range(5, 6), range(12, 16)):
        run.write_part("moments", parts, {}, {"gram": table(2)})
    assert set(run.finished_parts("moments")) == {
        *(range(4), range(4, 5), range(5, 6), range(12, 16))
    }
    np.testing.assert_array_equal(run.read_part("moments", range(12, 16), "gram"), table(2))
    run.forget("moments", (2, 5, 13))
    assert set(run.finished_parts("moments")) == {range(4, 5)}
    with pytest.raises(DamagedResultError, match="part 12-15 of moments is missing") as caught:
        run.read_part("moments", range(12, 16), "gram")
    assert caught.value.parts == (12, 13, 14, 15)


def test_part__two_attempts_at_the_same_time(place, dataset):
    # The record that is written last names the arrays that belong to it.
    run = Run.start(place, dataset, Spec.of(FitParams()), {})
    run.write_part("moments", 0, {"of": 1}, {"gram": table(3), "cross": table(2)})
    run.write_part("moments", 0, {"of": 2}, {"gram": table(4, seed=1)})
    assert run.part_record("moments", 0) == {"of": 2}
    np.testing.assert_array_equal(run.read_part("moments", 0, "gram"), table(4, seed=1))
    with pytest.raises(DamagedResultError):
        run.read_part("moments", 0, "cross")


def test_members__are_held_as_often_as_they_joined_and_did_not_leave(place, dataset):
    run = Run.start(place, dataset, Spec.of(FitParams()), {})
    (first,), other = run.members_held.values(), {"content": "other", "n_rows": 3}
    assert (first["times"], first["n_rows"]) == (1, 10)
    run.finish_version({"action": "add", "members": [first, other | {"times": 2}]}, needs=[])
    assert [each["times"] for each in run.members_held.values()] == [2, 2]
    assert run.n_rows_held == 2 * 10 + 2 * 3
    left = run.members_after({"action": "forget", "members": [other, other | {"content": "part"}]})
    assert [each["times"] for each in left.values()] == [2, 1, -1]


def test_finish_version__is_on_the_disk_before_it_is_recorded(tmp_path, dataset, monkeypatch):
    run = Run.start(tmp_path / "run", dataset, Spec.of(FitParams()), {})
    for name in ("sums-1", f"{VERSIONS}/1"):
        run.write_part(name, 0, {}, {"gram": table(3)})
    flushed = set()

    def flush(descriptor):
        if not Run.open(run.location).versions:
            flushed.add(Path(f"/proc/self/fd/{descriptor}").resolve())

    monkeypatch.setattr(os, "fsync", flush)
    run.finish_version({"version": 1}, needs=["sums-1"])
    written = {
        path for name in ("sums-1", VERSIONS) for path in Path(run.location).rglob(f"{name}/**/*")
    }
    assert len(written) > 10
    assert written <= flushed
    assert Run.open(run.location).versions == [{"version": 1}]


def test_part__record_damaged_anywhere(tmp_path, dataset, caplog):
    run = Run.start(tmp_path / "run", dataset, Spec.of(FitParams(n_parts=3)), {})
    run.write_part("width", 0, {"seconds": 0.5}, {"numbers": table(2)})
    path = tmp_path / "run/width/parts/0/zarr.json"
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        caplog.clear()
        record = run.part_record("width", 0)
        assert record == {"seconds": 0.5} or (record is None and "again" in caplog.text), damaged


@pytest.mark.parametrize(("n_rows", "width"), [(0, 3), (6, 0), (13, 3)])
def test_part__read_in_slices(place, dataset, n_rows, width):
    run = Run.start(place, dataset, Spec.of(FitParams()), {})
    values = table(n_rows, width)
    run.write_part("candidates", 0, {}, {"rows": values}, slice_rows=5)
    for start in range(n_rows + 1):
        for stop in range(start, n_rows + 1):
            found = run.read_part("candidates", 0, "rows", start, stop)
            np.testing.assert_array_equal(found, values[start:stop])


def test_block_rows__as_many_as_fit_and_at_least_one():
    sizes = (1, 2**14, 2**14 + 1, 2**30)
    assert [block_rows(size) for size in sizes] == [2048, 1024, 1023, 1]
    assert [narrow_block_rows(size) for size in (0.01, *sizes)] == [2**14, 2**14, 256, 255, 1]
    assert [gpu_block_rows(size, 1) for size in (1, 2**16, 2**30)] == [8192, 4096, 1]
    assert [gpu_block_rows(1, size) for size in (1, 2**13, 2**30)] == [8192, 4096, 1]


@pytest.mark.parametrize(("n_workers", "n_parts"), [(1, 64), (64, 64), (100, 100), (1000, 407)])
def test_layout__as_many_parts_as_workers_if_they_get_enough_rows(n_workers, n_parts):
    layout = PartLayout.of(10_000_000, n_workers=n_workers)
    assert layout.n_parts == pytest.approx(n_parts, rel=0.02)
    assert PartLayout.of(10_000_000, 5, n_workers=n_workers) == PartLayout.of(10_000_000, 5)
