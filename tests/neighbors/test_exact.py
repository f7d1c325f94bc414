import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dask_nrbfn.neighbors import exact
from dask_nrbfn.neighbors.exact import exact_neighbors, find_repeats, nearest_rows
from dask_nrbfn.neighbors.lists import MISSING
from dask_nrbfn.numeric.threads import task_threads
from tests.neighbors.naive import assert_valid, blobs, naive_distances, naive_neighbors


def assert_nearest(found, queries, rows, *, rtol):
    """Assert that the distances are the k smallest ones, whatever order equal ones come in."""
    distances = naive_distances(rows)[queries]
    k = found.shape[1]
    expected = np.sort(distances, axis=1)[:, :k]
    reached = np.sort(np.take_along_axis(distances, found, axis=1), axis=1)
    np.testing.assert_allclose(reached, expected, rtol=rtol, atol=rtol)


@given(
    n_rows=st.integers(2, 40),
    n_features=st.integers(1, 5),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=60)
def test_exact_neighbors__equals_naive(n_rows, n_features, seed, data):
    k = data.draw(st.integers(1, n_rows - 1))
    rows = blobs(n_rows, n_features, seed=seed)
    found = exact_neighbors(rows, np.arange(n_rows), n_neighbors=k)
    assert_valid(found.indices, np.arange(n_rows), n_rows=n_rows, n_neighbors=k)
    np.testing.assert_array_equal(found.indices, naive_neighbors(rows, k))
    expected = np.sort(naive_distances(rows), axis=1)[:, :k]
    np.testing.assert_allclose(found.distances, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("dtype", "n_copies", "k"), [("f4", 2, 10), ("f4", 100, 1), ("f8", 100, 10)]
)
def test_exact_neighbors__duplicates(dtype, n_copies, k):
    # Among more copies than k + 1 the row itself is mostly not in the list at all.
    rows = np.repeat(np.rint(4 * blobs(8, 3)), n_copies, axis=0).astype(dtype)
    queries = np.arange(len(rows))
    found = exact_neighbors(rows, queries, n_neighbors=k).indices
    assert_valid(found, queries, n_rows=len(rows), n_neighbors=k)
    assert_nearest(found, queries, rows, rtol=1e-12)


def test_exact_neighbors__equal_distances_with_any_number_of_threads():
    rows = np.random.default_rng(0).integers(4, size=(1500, 6)).astype(float)
    found = []
    for threads in (1, 2, 3):
        with task_threads(threads):
            found.append(exact_neighbors(rows, np.arange(1500), n_neighbors=5).indices)
    np.testing.assert_array_equal(found[1:], found[:1] * 2)


def test_nearest_rows__no_targets():
    rows = blobs(50, 3)
    found = nearest_rows(rows, rows[:0], count=4)
    assert found.indices.shape == found.distances.shape == (0, 4)
    assert (found.indices.dtype, found.distances.dtype) == (np.int64, np.float64)


@pytest.mark.parametrize("place", ["rows", "targets"])
def test_nearest_rows__refuses_what_has_no_distance(place):
    both = {"rows": blobs(50, 3).copy(), "targets": blobs(5, 3).copy()}
    both[place][1, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        nearest_rows(**both, count=4)
    with pytest.raises(ValueError, match="dimension"):
        nearest_rows(**{**both, place: blobs(5, 4)}, count=4)


@given(
    n_rows=st.integers(60, 200), count=st.integers(1, 60), seed=st.integers(0, 99), data=st.data()
)
@settings(max_examples=10, deadline=None)
def test_nearest_rows__any_blocks(n_rows, count, seed, data):
    # Whole numbers: many rows are equally far.
    rows, targets = np.rint(blobs(n_rows, 3, seed=seed)), np.rint(blobs(90, 3, seed=seed + 1))
    with pytest.MonkeyPatch.context() as patch:
        for name, most in [("_BLOCK_ROWS", 300), ("_BLOCK_ELEMENTS", 900), ("_STRIP_TARGETS", 100)]:
            patch.setattr(exact, name, data.draw(st.integers(1, most), label=name))
        patch.setattr(exact, "_ROOM", data.draw(st.integers(2, 4)))
        within = np.full(90, data.draw(st.sampled_from([np.inf, 2.0, 1.0, 0.0]), label="within"))
        with task_threads(2):
            found = nearest_rows(rows, targets, count=count, within=within)
    differences = np.linalg.norm(targets[:, None] - rows, axis=2)
    expected = np.argsort(differences, axis=1, kind="stable")[:, :count]
    distances = np.take_along_axis(differences, expected, axis=1)
    wanted = distances <= within[:, None]
    # Equally far rows are listed by their numbers.
    np.testing.assert_array_equal(found.indices[wanted], expected[wanted])
    np.testing.assert_array_equal(found.distances[wanted], distances[wanted])
    missing = found.indices == MISSING
    assert np.array_equal(missing, np.isinf(found.distances))
    assert not (missing & wanted).any()


@pytest.mark.parametrize(
    ("scale", "offset", "order"),
    [
        (1.0, 1e5, "far first"),
        (1e-3, 1e4, "near first"),
        (1e-22, 0.0, "drawn"),
        (1e-40, 0.0, "far first"),
        (1e100, 0.0, "drawn"),
    ],
)
def test_nearest_rows__what_single_precision_cannot_tell(scale, offset, order):
    rows = offset + scale * blobs(3000, 5)
    rows = rows[np.argsort(rows[:, 0])] if order != "drawn" else rows
    targets = rows[::30] if order == "drawn" else rows[-100:]
    rows = rows[::-1] if order == "near first" else rows
    found = nearest_rows(rows, targets, count=7)
    differences = np.linalg.norm((targets[:, None] - rows) / scale, axis=2)
    expected = np.sort(differences, axis=1)[:, :7]
    np.testing.assert_allclose(found.distances / scale, expected, rtol=1e-9, atol=1e-9)
    limited = nearest_rows(rows, targets, count=7, within=found.distances[:, -1])
    np.testing.assert_array_equal(limited.distances, found.distances)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize("offset", [0.0, 30.0, 1e4])
def test_nearest_rows__limits_keep_the_rows_at_the_limit(form, offset):
    # Distances of rows in single precision are rounded.
    rows = form((offset + blobs(3000, 5)).astype(np.float32))
    found = nearest_rows(rows, rows[:200], count=7)
    for k in (0, 3, 6):
        limited = nearest_rows(rows, rows[:200], count=7, within=found.distances[:, k])
        same = found.distances <= found.distances[:, [k]]
        np.testing.assert_array_equal(limited.indices[same], found.indices[same])
        np.testing.assert_array_equal(limited.distances[same], found.distances[same])
    alone = nearest_rows(rows[200:], rows[:200], count=2, within=np.zeros(200))
    assert (alone.indices == MISSING).all()


def test_nearest_rows__one_row_far_away_does_not_matter():
    rows = np.vstack([blobs(2000, 5), np.full((1, 5), 1e15)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_PRECISIONS", (np.float32,))
        found = exact_neighbors(rows, np.arange(2000), n_neighbors=7)
    np.testing.assert_array_equal(found.indices, naive_neighbors(rows[:2000], 7))


@pytest.mark.parametrize(
    ("form", "distance"), [(np.asarray, 1e3), (np.asarray, 1e12), (csr_array, 1e8)]
)
def test_exact_neighbors__clusters_far_apart(distance, form):
    rows = np.vstack([blobs(150, 3, n_blobs=1), distance + blobs(150, 3, n_blobs=1, seed=1)])
    rows -= rows.mean(axis=0)
    with task_threads(1):
        found = exact_neighbors(form(rows), np.arange(300), n_neighbors=10)
    expected = np.sort(naive_distances(rows), axis=1)[:, :10]
    np.testing.assert_allclose(found.distances, expected, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nearest_rows__some_squares_are_beyond_single_precision(dtype):
    near = 1e18 * np.linspace(0.9, 1.1, 20)
    rows = np.concatenate([near, np.zeros(19), [4e19, 4.004e19]])[:, None].astype(dtype)
    found = nearest_rows(rows, rows[[39]], count=5)
    assert found.indices.tolist() == [[39, 40, 19, 18, 17]]


def test_nearest_rows__refuses_distances_that_are_not_finite():
    rows = np.array([[1.2e154], [-1.2e154], [1.1e154], [-1.1e154]])
    with pytest.raises(ValueError, match="not finite"):
        nearest_rows(rows, rows, count=3)


# With large norms all targets are searched again in double precision.
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize(("n_rows", "n_features"), [(1200, 2), (100, 20_000)])
def test_nearest_rows__buffers_are_as_said(n_rows, n_features, offset, monkeypatch):
    # Strips of as many targets as allowed.
    monkeypatch.setattr(exact, "_STRIPS", 1)
    rows = np.random.default_rng(0).normal(offset, size=(n_rows, n_features)).astype(np.float32)
    nearest_rows(rows[:50], rows[:1], count=4)
    tracemalloc.start()
    with task_threads(1):
        nearest_rows(rows, rows[:1024], count=21)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.1 < peak / exact.buffer_bytes(n_features, 20, threads=1) < 1


@given(
    values=st.lists(st.integers(0, 4), max_size=40),
    n_neighbors=st.integers(1, 12),
    seed=st.integers(0, 5),
)
@settings(max_examples=60)
def test_find_repeats__every_row_with_k_copies(values, n_neighbors, seed):
    rows = np.array(values, dtype=np.float64)[:, None] * [1.0, 0.5]
    repeats = find_repeats(rows, n_neighbors=n_neighbors, seed=seed)
    copies = {value: values.count(value) for value in values}
    expected = [i for i, value in enumerate(values) if copies[value] > n_neighbors]
    assert sorted(repeats.rows.tolist()) == expected
    assert repeats.indices.shape == (len(expected), n_neighbors)
    for row, others in zip(repeats.rows.tolist(), repeats.indices.tolist(), strict=True):
        assert len(set(others) - {row}) == n_neighbors
        assert {values[i] for i in others} == {values[row]}
    assert repeats.searched.dtype == bool
    assert repeats.searched.shape == (len(values),)
    for value, count in copies.items():
        kept = sum(
            searched for v, searched in zip(values, repeats.searched, strict=True) if v == value
        )
        assert kept == min(count, n_neighbors + 1)


@pytest.mark.parametrize(("dtype", "n_rows"), [("f4", 0), ("f8", 1), ("u1", 21)])
def test_find_repeats__few_rows(dtype, n_rows):
    repeats = find_repeats(np.ones((n_rows, 3), dtype), n_neighbors=20, seed=0)
    assert len(repeats.rows) == (21 if n_rows == 21 else 0)
    assert repeats.searched.tolist() == [True] * n_rows


def test_find_repeats__zeros_of_either_sign_are_equal():
    rows = np.array([[0.0], [-0.0], [1.0]])
    assert sorted(find_repeats(rows, n_neighbors=1, seed=0).rows.tolist()) == [0, 1]


def test_find_repeats__the_order_of_the_rows_does_not_matter():
    # Sorted by class, as tables often are: a copy's neighbours must be of both classes, and so
    # must the copies that stand for all of them.
    y = np.repeat([0, 1], 2000)
    repeats = find_repeats(np.ones((4000, 2)), n_neighbors=20, seed=0)
    agree = y[repeats.indices] == y[repeats.rows, None]
    assert abs(agree.mean() - 0.5) < 0.02
    assert agree.mean(axis=1).std() < 0.2
    many = find_repeats(np.ones((4000, 2)), n_neighbors=499, seed=0)
    assert abs(y[many.searched].mean() - 0.5) < 0.1
