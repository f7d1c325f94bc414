import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_info, threadpool_limits

from dask_nrbfn.neighbors.partition import MAX_IMBALANCE, Partitions, cluster_means
from tests.neighbors.naive import blobs
from tests.numeric.chunkings import row_chunkings, split


def uniform(n_rows, n_features=4):
    return np.random.default_rng(0).uniform(size=(n_rows, n_features))


def nested(n_rows, n_features=4):
    """Draw rows of fifty scales about one point."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(n_rows, n_features)) * 10 ** rng.uniform(-4, 2, (n_rows, 1))


def mostly_tight(n_rows, n_features=4):
    """Draw nine rows out of ten from a ball a thousandth as wide as the others."""
    rng = np.random.default_rng(2)
    tight = rng.uniform(size=(n_rows, 1)) < 0.9
    return rng.normal(size=(n_rows, n_features)) * np.where(tight, 1e-3, 1.0) + 10 * tight


ROWS = {
    "uniform": uniform,
    "nested scales": nested,
    "one tight cluster": mostly_tight,
    "one column": lambda n: uniform(n, 1) ** 4,
    "half of them equal": lambda n: np.where(uniform(n, 1) < 0.02, 0.5, uniform(n)),
    "single precision": lambda n: blobs(n, 6).astype(np.float32),
    "whole numbers": lambda n: np.rint(20 * uniform(n, 8)).astype(np.uint8),
}


def counted(partitions, rows, overlap):
    routed = partitions.route(rows, overlap=overlap)
    return np.bincount(routed[routed >= 0], minlength=len(partitions.offsets))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", ROWS)
def test_balanced__no_partition_is_much_larger_than_the_mean(name):
    # An overlap of 2 has tests of its own below.
    rows, overlap = ROWS[name](4000), 3
    partitions = Partitions.balanced(rows, 12, overlap=overlap, seed=0)
    counts = counted(partitions, rows, overlap)
    assert len(counts) == 12
    # Rows that are as near to a border as others may all be left out.
    assert (0.6 if name == "half of them equal" else 0.97) * overlap * len(rows) <= counts.sum()
    assert counts.sum() <= overlap * len(rows)
    # On a line a partition has two borders at most, which leaves little to shift.
    slack = 0.35 if name == "one column" else 0.05
    assert counts.max() <= (MAX_IMBALANCE + slack) * overlap * len(rows) / 12
    assert counts.min() >= 1


@pytest.mark.slow
def test_balanced__scales_beyond_float64_are_split_too():
    rows = uniform(4000) * 10.0 ** np.linspace(-14, 2, 4000)[:, None]
    counts = counted(Partitions.balanced(rows, 12, overlap=2, seed=0), rows, 2)
    assert counts.max() <= 2 * counts.mean()


def test_balanced__holds_for_rows_that_are_not_in_the_sample():
    rows = mostly_tight(20_000)
    drawn = np.random.default_rng(0).permutation(len(rows))
    partitions = Partitions.balanced(rows[drawn[:5000]], 10, overlap=2, seed=0)
    counts = counted(partitions, rows[drawn[5000:]], 2)
    # A count of a thousand is known to 3 %.
    assert counts.max() <= 1.35 * counts.mean()


def test_balanced__partitions_are_places():
    # Balance alone is worth nothing: random partitions are balanced too.
    rows = blobs(4000, 3)
    partitions = Partitions.balanced(rows, 10, overlap=2, seed=0)
    home = partitions.route(rows, overlap=2)[:, 0]
    inside = sum(((rows[home == i] - rows[home == i].mean(axis=0)) ** 2).sum() for i in range(10))
    assert inside < 0.3 * ((rows - rows.mean(axis=0)) ** 2).sum()


@pytest.mark.parametrize(
    ("rows", "n_made"),
    [
        (np.ones((500, 3)), 1),
        (np.repeat(uniform(5), 100, axis=0), 5),
        (np.array([[0.0], [-0.0]] * 50), 1),
        (np.array([[1.0]]), 1),
        (np.linspace(0, 1, 8)[:, None], 8),
    ],
)
def test_balanced__no_more_partitions_than_distinct_rows(rows, n_made):
    overlap = 2
    partitions = Partitions.balanced(rows, 8, overlap=overlap, seed=0)
    assert len(partitions.offsets) == len(partitions.centroids) == n_made
    routed = partitions.route(rows, overlap=overlap)
    assert routed.shape == (len(rows), min(overlap + 1, n_made))
    # Equal rows stay together. Of two partitions in the same place either may be the nearer one:
    # the last bits of a product may depend on where its row and column stand.
    distinct = len(np.unique(rows, axis=0))
    assert len(np.unique(np.hstack([rows, np.sort(routed)]), axis=0)) == distinct


@pytest.mark.parametrize(("n_partitions", "overlap"), [(1, 2), (2, 2), (2, 5)])
def test_balanced__no_more_partitions_than_overlap(n_partitions, overlap):
    rows = uniform(100)
    partitions = Partitions.balanced(rows, n_partitions, overlap=overlap, seed=0)
    routed = partitions.route(rows, overlap=overlap)
    np.testing.assert_array_equal(np.sort(routed, axis=1), [range(n_partitions)] * 100)


def test_balanced__same_bits_every_time():
    rows = mostly_tight(3000)
    first, second = (Partitions.balanced(rows.copy(), 9, overlap=2, seed=5) for _ in range(2))
    assert first.centroids.tobytes() == second.centroids.tobytes()
    assert first.offsets.tobytes() == second.offsets.tobytes()
    other = Partitions.balanced(rows, 9, overlap=2, seed=6)
    assert other.centroids.tobytes() != first.centroids.tobytes()


def naive_route(partitions, rows, overlap):
    """Return the nearest, and of the next ones those whose border is within reach."""
    centroids, offsets = partitions.centroids, partitions.offsets
    routed = []
    for row in rows:
        squared = ((row - centroids) ** 2).sum(axis=1) + offsets
        home, *others = np.argsort(squared, kind="stable")[: overlap + 1].tolist()
        members = [home]
        for other in others:
            # From the row to where both are as near, along the line of the centroids.
            way = centroids[other] - centroids[home]
            to_border = (squared[other] - squared[home]) / (2 * np.linalg.norm(way))
            members.append(other if to_border < partitions.reaches[home] else -1)
        routed.append(members)
    return np.array(routed)


@given(
    lengths=row_chunkings(),
    overlap=st.integers(1, 7),
    n_partitions=st.integers(1, 6),
    seed=st.integers(0, 9),
)
@settings(max_examples=40)
def test_route__any_split_equals_naive(lengths, overlap, n_partitions, seed):
    rng = np.random.default_rng(seed)
    partitions = Partitions(
        rng.normal(size=(n_partitions, 3)),
        rng.normal(size=n_partitions),
        rng.uniform(0, 2, n_partitions),
    )
    rows = rng.normal(size=(sum(lengths), 3))
    whole = partitions.route(rows, overlap=overlap)
    parts = [partitions.route(part, overlap=overlap) for part in split(rows, lengths)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(whole, naive_route(partitions, rows, overlap))


def test_cluster_means__use_one_thread(monkeypatch):
    numbers = []

    def fit(self, rows):
        numbers.extend(pool["num_threads"] for pool in threadpool_info())
        self.cluster_centers_ = rows[: self.n_clusters]
        return self

    monkeypatch.setattr(KMeans, "fit", fit)
    with threadpool_limits(2):
        cluster_means(blobs(20, 2), 3, seed=0)
    assert set(numbers) == {1}
