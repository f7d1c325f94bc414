import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_nrbfn.numeric import trials
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling
from dask_nrbfn.numeric.small_fit import SmallNetwork, SmallTable, losses_of, target_scales
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets
from dask_nrbfn.numeric.threads import task_threads
from dask_nrbfn.numeric.trials import (
    figures_of,
    judged_rows,
    trial_bytes,
    try_network,
    try_networks,
)
from tests.reference import reference_ridge
from tests.tables import spirals, surfaces

LOGARITHMS = {
    "gaussian": lambda t: -(t**2) / 2,
    "laplacian": lambda t: -t,
    "laplace-l1": lambda t: -t,
    "matern52": lambda t: np.log(1 + np.sqrt(5) * t + 5 * t**2 / 3) - np.sqrt(5) * t,
}
ALPHAS = (1e-1, 1e-2, 1e-3, 1e-4)
FOLD = 0


def ridges_of(alphas=ALPHAS, **options):
    return tuple(Ridge(**({"penalty": "weights"} | options), alpha=alpha) for alpha in alphas)


NETWORK = SmallNetwork("gaussian", 0.4, True, ridges_of())


def table_of(X, y, *, n_basis=40, n_folds=4, seed=5):
    """Return rows of random weights, of which every tenth is in the basis, in drawn folds."""
    rng = np.random.default_rng(seed)
    folds = rng.permutation(np.arange(len(X)) % n_folds)
    basis = rng.permutation(len(X))[:n_basis]
    weights = rng.random(len(X)) + 0.5
    targets = ClassTargets(int(y.max()) + 1) if y.ndim == 1 else NumberTargets(np.median(y, axis=0))
    # A basis point that is not a row.
    of_basis = np.where(np.arange(n_basis) == 1, -1, folds[basis])
    return SmallTable(X, y, targets, weights, folds, X[basis], of_basis, 64)


def scaling_of(X, *, centred=True):
    return Scaling.from_statistics("standard", ColumnStatistics.from_block(X), centred=centred)


def tables():
    rng = np.random.default_rng(3)
    X, y = spirals(240)
    flipped = np.where(rng.random(240) < 0.2, rng.integers(3, size=240), y)
    Z, T = surfaces(240)
    noisy = T.reshape(240, -1) * [[1.0, 50.0]] + rng.normal(size=(240, 2)) * [[0.1, 5.0]] + 7.0
    return {"classes": table_of(X, flipped), "numbers": table_of(Z, noisy)}


TABLES = tables()


def naive_fold(table, scaling, network, fold, *, n_components=0):
    """Return the scores (A, m, q) of the rows of a fold, and the weights (A, q, r) without it."""
    order = 1 if network.kernel == "laplace-l1" else 2

    def apart(rows, others):
        return np.linalg.norm(rows[:, None] - others, ord=order, axis=2)

    basis = scaling.apply(table.basis)[table.basis_folds != fold]
    to_basis = apart(scaling.apply(table.X), basis)
    some = slice(None, None, -(-len(table.X) // trials._WIDTH_ROWS))
    mean = np.average(to_basis[some], axis=0, weights=table.weights[some]).mean()
    width = network.width_factor * mean
    held_out = table.folds == fold

    def activations(rows):
        logarithms = LOGARITHMS[network.kernel](apart(scaling.apply(rows), basis) / width)
        if not network.normalized:
            return np.exp(logarithms)
        Phi = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
        return Phi / Phi.sum(axis=1, keepdims=True)

    Phi, weights = activations(table.X[~held_out]), table.weights[~held_out]
    if table.targets.centred:
        T = table.y[~held_out]
        mean = np.average(T, axis=0, weights=weights)
    else:
        T, mean = np.eye(table.targets.n_targets)[table.y[~held_out]], 0.0
    middle = 0.0
    if table.targets.centred and not network.normalized:
        middle = np.average(Phi, axis=0, weights=weights)
    K = np.exp(LOGARITHMS[network.kernel](apart(basis, basis) / width))
    clusters = np.bincount(to_basis.argmin(axis=1), table.weights, len(basis))
    penalties = {"weights": None, "kernel": K}
    if clusters.all():
        penalties["clusters"] = np.diag(clusters.sum() / clusters)
    scores, solved = [], []
    for ridge in network.ridges:
        B = np.eye(len(basis))
        if ridge.components is not None:
            d = K.sum(axis=1)
            values, vectors = np.linalg.eig(K / d[:, None])
            first = np.argsort(-values.real)[: ridge.components]
            # Within their span the weights have the smallest norm.
            B = np.linalg.qr(vectors.real[:, first])[0]
        if ridge.components is None:
            P = penalties[ridge.penalty]
            W, intercept = reference_ridge(
                Phi, T, ridge.alpha, P=P, weights=weights, middle=middle, mean=mean
            )
        else:
            A, own = Phi - middle, weights[:, None]
            gram = A.T @ (own * A)
            penalized = B.T @ gram @ B + ridge.alpha * np.trace(gram) * np.eye(B.shape[1])
            W = B @ np.linalg.solve(penalized, B.T @ (A.T @ (own * (T - mean))))
            intercept = mean - middle * np.ones(len(W)) @ W
        scores.append(activations(table.X[held_out]) @ W + intercept)
        solved.append(W.T)
    return np.array(scores), np.array(solved)


def naive_losses(table, scaling, network, folds=(FOLD,), **options):
    """Return the loss of every ridge and row (A, n), the shown figures, and the last weights."""
    found = [naive_fold(table, scaling, network, fold, **options) for fold in folds]
    scores = np.concatenate([scores for scores, _ in found], axis=1)
    rows = np.concatenate([np.flatnonzero(table.folds == fold) for fold in folds])
    y, weights = table.y[rows], table.weights[rows]
    if table.targets.centred:
        variance = np.average((y - np.average(y, axis=0, weights=weights)) ** 2, 0, weights)
        squared = (scores - y) ** 2 / variance
        losses = squared.mean(axis=2)
        shown = [1 - np.average(each, axis=0, weights=weights) for each in squared]
    else:
        losses = ((scores - np.eye(scores.shape[2])[y]) ** 2).sum(axis=2)
        shown = [np.average(each.argmax(axis=1) != y, weights=weights) for each in scores]
    return losses, shown, found[-1][1]


def agrees(trial, table, scaling, network, folds=(FOLD,), *, tolerance=2e-3, **options):
    losses, shown, solved = naive_losses(table, scaling, network, folds, **options)
    means = np.average(losses, axis=1, weights=table.weights[judged_rows(table, folds)])
    best = int(means.argmin())
    assert Ridge.of(trial.entry) == network.ridges[best]
    loss, figure = figures_of(of_numbers=table.targets.centred)
    assert trial.entry[loss] == trial.loss == pytest.approx(means[best], rel=tolerance)
    assert trial.entry[figure] == pytest.approx(shown[best], abs=tolerance)
    np.testing.assert_allclose(
        trial.losses, losses[best], rtol=tolerance, atol=tolerance * losses.max()
    )
    if folds == (FOLD,):
        largest = np.abs(solved[best]).max()
        np.testing.assert_allclose(trial.weights, solved[best], atol=50 * tolerance * largest)


def test_losses_of__every_row():
    """Squared errors of all classes, and wrong labels; residuals in units of the deviations."""
    rng, scales = np.random.default_rng(4), np.array([0.5, 2.0, 4.0])
    scores, codes, numbers = rng.normal(size=(9, 2, 3)), np.arange(9) % 3, rng.normal(size=(9, 3))
    losses, wrong = losses_of(ClassTargets(3), scores, codes, np.ones(3))
    relative, squared = losses_of(NumberTargets(numbers[0]), scores, numbers, scales)
    for row, code in enumerate(codes):
        for model in range(2):
            own = scores[row, model]
            naive = sum((own[k] - (k == code)) ** 2 for k in range(3))
            assert losses[row, model] == pytest.approx(naive, rel=1e-12)
            assert wrong[row, model].tolist() == [float(max(own) != own[code])]
            # Scores are less the origin, as numbers are.
            naive = ((own - (numbers[row] - numbers[0])) / scales) ** 2
            np.testing.assert_allclose(squared[row, model], naive, rtol=1e-12)
            assert relative[row, model] == pytest.approx(naive.mean(), rel=1e-12)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("kernel", LOGARITHMS)
@pytest.mark.parametrize("kind", TABLES)
def test_try_networks__are_those_of_a_naive_network(kind, kernel, normalized):
    table = TABLES[kind]
    scaling = scaling_of(table.X)
    widths = [
        replace(NETWORK, kernel=kernel, normalized=normalized, width_factor=factor)
        for factor in (0.3, 0.8)
    ]
    for trial, network in zip(try_networks(table, scaling, widths), widths, strict=True):
        assert trial.network == network
        agrees(trial, table, scaling, network)


@pytest.mark.parametrize("kind", TABLES)
def test_try_networks__several_folds_are_joined(kind):
    table, folds = TABLES[kind], (2, 0, 3)
    scaling = scaling_of(table.X)
    network = replace(NETWORK, normalized=False)
    (trial,) = try_networks(table, scaling, [network], folds=folds)
    agrees(trial, table, scaling, network, folds)


@pytest.mark.parametrize("kind", TABLES)
def test_try_networks__more_rows_than_a_block(kind):
    X, y = (spirals if kind == "classes" else surfaces)(4300)
    table = table_of(X, y, n_basis=20, n_folds=2)
    agrees(try_network(table, scaling_of(X), NETWORK), table, scaling_of(X), NETWORK)


@pytest.mark.parametrize("single", [True, False])
def test_try_networks__nothing_of_a_fold_is_seen(single):
    """Neither its basis rows nor its targets change the weights."""
    table = TABLES["classes"]
    alphas = ALPHAS[1:2] if single else (1e-8,)
    scaling, network = scaling_of(table.X), replace(NETWORK, ridges=ridges_of(alphas))
    out, of_fold = table.folds == FOLD, table.basis_folds == FOLD
    assert of_fold.any()
    moved = np.where(of_fold[:, None], table.basis + 10.0, table.basis)
    other = replace(table, basis=moved, y=np.where(out, (table.y + 1) % 3, table.y))
    found, wanted = (try_network(each, scaling, network) for each in (other, table))
    np.testing.assert_array_equal(found.weights, wanted.weights)
    assert found.weights.shape[1] == np.count_nonzero(~of_fold)
    assert found.loss != wanted.loss


def test_try_networks__of_equal_losses_the_largest_alpha():
    """Constant numbers have a loss of 0 at any alpha."""
    table = TABLES["numbers"]
    table = replace(table, y=np.tile(table.targets.origin, (240, 1)))
    for alphas in (ALPHAS, ALPHAS[::-1]):
        network = replace(NETWORK, ridges=ridges_of(alphas))
        trial = try_network(table, scaling_of(table.X), network)
        assert (trial.entry["alpha"], trial.loss) == (max(ALPHAS), 0.0)


def test_target_scales__of_constants_whose_mean_is_rounded():
    """A deviation of 1e-16 multiplied the squared residuals of the constant by 1e32."""
    table = TABLES["numbers"]
    table = replace(table, y=table.y * [[1.0, 0.0]] + [[0.0, 0.3]])
    scales = target_scales(table, np.flatnonzero(table.folds == FOLD))
    assert scales[0] > 0.01
    assert scales[1] == 1.0


def smooth_table():
    """Return numbers without noise, for which the smallest alpha is the best."""
    X = np.linspace(0, 1, 160)[:, None]
    return table_of(X, np.sin(9 * X))


def test_try_networks__smaller_alphas_in_float64():
    table = smooth_table()
    scaling = scaling_of(table.X)
    network = replace(NETWORK, ridges=ridges_of((1e-6, 1e-7, 1e-8)))
    (trial,) = try_networks(table, scaling, [network])
    assert trial.entry["alpha"] == 1e-8
    assert trial.network.ridges == ridges_of((1e-8,))
    agrees(trial, table, scaling, replace(network, ridges=trial.network.ridges), tolerance=1e-6)


@pytest.mark.parametrize("kernel", ["laplacian", "laplace-l1"])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_try_networks__wide_kernels_need_small_alphas_but_no_float64(kernel, kind, monkeypatch):
    """The rows of wide plain features hardly differ, so even a small penalty leaves little."""
    monkeypatch.setattr(trials, "_Double", None)
    X, y = (spirals if kind == "classes" else surfaces)(900)
    table, alphas = table_of(X, y), (1e-5, 1e-6, 1e-7, 1e-8)
    if kind == "classes":
        alphas = (*alphas, 1e-9, 1e-10)
    network = SmallNetwork(kernel, 12.8, False, ridges_of(alphas))
    (trial,) = try_networks(table, scaling_of(X), [network], exact=False)
    assert trial.entry["alpha"] < 1e-7
    agrees(trial, table, scaling_of(X), network)


def test_trial_bytes__count_the_weights_of_every_network_of_many_classes(monkeypatch):
    monkeypatch.setattr(trials, "_BLOCK_ROWS", 100)
    rng, n_classes, n_basis = np.random.default_rng(0), 700, 500
    y = np.arange(1500) % n_classes
    table = table_of(rng.normal(size=(1500, 3)), y, n_basis=n_basis, n_folds=2)
    networks = [replace(NETWORK, width_factor=factor) for factor in (0.2, 0.3, 0.4, 0.6, 0.8, 1.0)]
    n_ridges = len(NETWORK.ridges)
    planned = trial_bytes(n_basis, n_classes, n_networks=6, n_ridges=n_ridges)
    tracemalloc.start()
    try_networks(table, scaling_of(table.X), networks, exact=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= planned < 4 * peak


def test_try_networks__smaller_alphas_only_if_the_loss_falls():
    """If the loss does not clearly fall to the least alpha of float32, 1e-9 is not tried."""
    rng, alphas, n_found = np.random.default_rng(1), (1e-1, 1e-2, 1e-9), {True: 0, False: 0}
    network = replace(NETWORK, normalized=False, ridges=ridges_of(alphas))
    for seed in range(40):
        X = rng.normal(size=(60, 2))
        y = np.sin(X[:, :1]) + rng.normal(size=(60, 1)) * 0.05
        table = table_of(X, y, n_basis=30, n_folds=12, seed=seed)
        losses, *_ = naive_losses(table, scaling_of(X), network)
        shares = table.weights[table.folds == FOLD]
        shares = shares / shares.sum()
        less, means = losses[0] - losses[1], losses @ shares
        gain = less @ shares
        in_errors = gain / np.sqrt(shares**2 @ (less - gain) ** 2)
        if abs(in_errors - 1) > 0.2 and means.argmin() == 2:
            (trial,) = try_networks(table, scaling_of(X), [network])
            best = 2 if in_errors > 1 else means[:2].argmin()
            assert trial.entry["alpha"] == alphas[best]
            n_found[in_errors > 1] += 1
    assert min(n_found.values()), n_found


def singular_table():
    """Return rows of numbers with pairs of equal basis rows."""
    table = TABLES["numbers"]
    basis = table.basis[table.basis_folds != FOLD][:20]
    return replace(table, basis=np.repeat(basis, 2, axis=0), basis_folds=np.full(40, -1))


def test_try_networks__singular_in_float32_is_tried_in_float64():
    """All activations are below 1e-80, so that all their products are 0 in float32."""
    rng = np.random.default_rng(2)
    X, angles = rng.uniform(-0.05, 0.05, (200, 2)), np.linspace(0, 6, 10)
    y = (X[:, 0] > 0.01).astype(int)
    table = replace(
        table_of(X, y, n_basis=10),
        basis=np.stack([np.cos(angles), np.sin(angles)], axis=1),
        basis_folds=np.full(10, -1),
    )
    scaling = Scaling.from_statistics("none", ColumnStatistics.from_block(X))
    network = replace(NETWORK, width_factor=0.05, normalized=False)
    (trial,) = try_networks(table, scaling, [network])
    agrees(trial, table, scaling, network, tolerance=1e-6)


def test_try_networks__none_only_if_all_systems_are_singular():
    table = singular_table()
    scaling = scaling_of(table.X)
    networks = [
        replace(NETWORK, ridges=ridges_of(alphas)) for alphas in ((1e-18,), (1e-18, 1e-3), (1e-3,))
    ]
    singular, one_left, regular = try_networks(table, scaling, networks)
    assert singular is None
    assert one_left.entry["alpha"] == regular.entry["alpha"] == 1e-3
    assert one_left.loss == pytest.approx(regular.loss, rel=1e-3)


@pytest.mark.parametrize("factor", [1e18, 1e30, 1e-25])
@pytest.mark.parametrize("normalized", [False, True])
def test_try_networks__squares_overflow_or_underflow_float32(factor, normalized):
    table = TABLES["classes"]
    scaling = Scaling.from_statistics("none", ColumnStatistics.from_block(table.X))
    network = replace(NETWORK, normalized=normalized)
    large = replace(table, X=factor * table.X, basis=factor * table.basis)
    agrees(try_network(large, scaling, network), table, scaling, network)


@pytest.mark.parametrize("normalized", [False, True])
def test_try_networks__a_row_far_from_all_others(monkeypatch, normalized):
    """Float32 cannot tell which basis row is nearest to a row at 1e4; squares of 1e25 overflow."""
    # Every second row decides the width.
    monkeypatch.setattr(trials, "_WIDTH_ROWS", 120)
    table, numbers = TABLES["classes"], np.arange(240)
    in_basis = (table.X[:, None] == table.basis).all(axis=2).any(axis=1)
    rows = [
        np.flatnonzero((table.folds == fold) & ~in_basis & (numbers % 2 == 1))[0]
        for fold in (FOLD, FOLD + 1)
    ]
    scaling = Scaling.from_statistics("none", ColumnStatistics.from_block(table.X))
    network, losses = replace(NETWORK, normalized=normalized), []
    for distance in (1e4, 1e25):
        X = table.X.copy()
        X[rows, 0] = distance
        trial = try_network(replace(table, X=X), scaling, network)
        losses.append(trial.losses)
        if distance == 1e4:
            agrees(trial, replace(table, X=X), scaling, network)
    np.testing.assert_allclose(*losses, rtol=1e-3)


@pytest.mark.parametrize("factor", [1e-60, 1e60])
@pytest.mark.parametrize("kind", ["plain", "normalized"])
def test_try_networks__units_of_the_targets_and_weights_change_nothing(factor, kind):
    """Products of such numbers with activations underflow or overflow float32."""
    table = TABLES["numbers"]
    scaling, network = scaling_of(table.X), replace(NETWORK, normalized=kind == "normalized")
    wanted = try_network(table, scaling, network)
    of_targets = replace(
        table, y=factor * table.y, targets=NumberTargets(factor * table.targets.origin)
    )
    of_weights = replace(table, weights=factor * table.weights)
    for own, unit in ((of_targets, factor), (of_weights, 1.0)):
        found = try_network(own, scaling, network)
        assert found.entry["alpha"] == wanted.entry["alpha"]
        np.testing.assert_allclose(found.losses, wanted.losses, rtol=1e-3, atol=1e-4)
        largest = np.abs(wanted.weights).max()
        np.testing.assert_allclose(found.weights / unit, wanted.weights, atol=1e-3 * largest)


@pytest.mark.parametrize("normalized", [False, True])
def test_try_networks__csr_rows(normalized):
    table = TABLES["classes"]
    scaling = scaling_of(table.X, centred=False)
    network = replace(NETWORK, normalized=normalized)
    own = {name: csr_array(getattr(table, name)) for name in ("X", "basis")}
    agrees(try_network(replace(table, **own), scaling, network), table, scaling, network)


@pytest.mark.parametrize(
    "ridges",
    [
        ridges_of(penalty="kernel"),
        ridges_of(penalty="clusters"),
        (*ridges_of(ALPHAS[:2]), *ridges_of(ALPHAS[:2], penalty="kernel")),
    ],
    ids=["kernel", "clusters", "two penalties"],
)
@pytest.mark.parametrize("kind", TABLES)
def test_try_networks__other_penalties_in_float64(kind, ridges):
    table = TABLES[kind]
    scaling = scaling_of(table.X)
    network = replace(NETWORK, normalized=False, ridges=ridges)
    agrees(try_network(table, scaling, network), table, scaling, network, tolerance=1e-6)


def test_try_networks__components_in_float64():
    table = TABLES["classes"]
    scaling = scaling_of(table.X)
    ridges = tuple(each for size in (4, 9) for each in ridges_of(ALPHAS[:2], components=size))
    network = replace(NETWORK, ridges=ridges)
    (trial,) = try_networks(table, scaling, [network], n_components=9)
    agrees(trial, table, scaling, network, tolerance=1e-6, n_components=9)


@pytest.mark.parametrize("kind", TABLES)
def test_try_networks__equal_bits_with_any_number_of_threads(kind):
    X, y = (spirals if kind == "classes" else surfaces)(2600)
    table, scaling = table_of(X, y, n_basis=300, n_folds=2), scaling_of(X)
    networks = [
        replace(NETWORK, normalized=False),
        replace(NETWORK, ridges=ridges_of((1e-3, 1e-9))),
        replace(NETWORK, normalized=False, ridges=ridges_of((1e-3,), penalty="kernel")),
    ]
    found = []
    for threads in (1, 2, 3):
        with task_threads(threads):
            found.append(try_networks(table, scaling, networks, folds=(0, 1)))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one.entry == other.entry
            np.testing.assert_array_equal(one.losses, other.losses)
            np.testing.assert_array_equal(one.weights, other.weights)


def test_try_networks__widths_together_are_those_alone():
    """Networks that share distances have the bits of each alone."""
    table = TABLES["numbers"]
    scaling = scaling_of(table.X)
    networks = [
        replace(NETWORK, width_factor=width, normalized=width > 0.5, kernel=kernel)
        for width in (0.3, 0.9)
        for kernel in ("gaussian", "matern52")
    ]
    for network, together in zip(networks, try_networks(table, scaling, networks), strict=True):
        alone = try_network(table, scaling, network)
        np.testing.assert_array_equal(alone.losses, together.losses)


def test_try_networks__plain_activations_of_a_wide_kernel():
    """Activations are 1 up to 1e-3; without a shift their differences are lost in float32."""
    table = TABLES["numbers"]
    network = replace(NETWORK, width_factor=30.0, normalized=False)
    agrees(try_network(table, scaling_of(table.X), network), table, scaling_of(table.X), network)
