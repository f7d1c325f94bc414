import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.metrics import (
    mean_absolute_error,
    mean_squared_error,
    precision_recall_fscore_support,
    r2_score,
)

from dask_nrbfn.numeric.held_out import (
    INVERSE_TEMPERATURES,
    FoldSums,
    HeldOutSums,
    ResidualSums,
    calibrate_temperature,
    class_figures,
    softmax,
)
from tests.numeric.chunkings import row_chunkings, split
from tests.numeric.frozen import read_only

N_MODELS, N_CLASSES = 3, 4  # the last class never has rows


@read_only
def draw(n_rows, seed=0):
    """Draw scores (b, A, K) and codes (b,)."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, N_CLASSES - 1, n_rows)
    scores = 0.5 * rng.normal(size=(n_rows, N_MODELS, N_CLASSES))
    scores[np.arange(n_rows), :, codes] += np.arange(N_MODELS) / 2
    return scores, codes


def naive_log_loss(scores, codes, inverse, weights=None):
    """Return the summed log loss of scores (b, K), written out row by row."""
    total = 0.0
    for row, (values, code) in enumerate(zip(scores, codes, strict=True)):
        exponents = [inverse * (value - max(values)) for value in values]
        normalizer = sum(np.exp(exponent) for exponent in exponents)
        weight = 1.0 if weights is None else weights[row]
        total -= weight * (exponents[code] - np.log(normalizer))
    return total


@pytest.mark.parametrize(("n_rows", "weighted"), [(0, False), (1, True), (30, True)])
def test_held_out__naive(n_rows, weighted):
    scores, codes = draw(n_rows)
    weights = np.random.default_rng(1).uniform(0.1, 3.0, n_rows) if weighted else None
    sums = HeldOutSums.from_block(scores, codes, weights)
    confusion = np.zeros((N_MODELS, N_CLASSES, N_CLASSES))
    for row, code in enumerate(codes):
        for model in range(N_MODELS):
            label = max(range(N_CLASSES), key=lambda k: scores[row, model, k])
            confusion[model, code, label] += 1.0 if weights is None else weights[row]
    np.testing.assert_allclose(sums.confusion, confusion, rtol=1e-13)
    expected = [
        [naive_log_loss(scores[:, model], codes, inverse, weights) for inverse in [0.25, 1, 1024]]
        for model in range(N_MODELS)
    ]
    places = [INVERSE_TEMPERATURES.tolist().index(inverse) for inverse in (0.25, 1.0, 1024.0)]
    np.testing.assert_allclose(sums.log_losses[:, places], expected, rtol=1e-11, atol=1e-300)


# Signal over noise from one at which hardly anything is known to one that is nearly certain.
@pytest.mark.parametrize("signal", [0.6, 1.5, 3.0])
def test_temperature__minimizes_the_log_loss(signal):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 400)
    scores = rng.normal(size=(400, 3))
    scores[np.arange(400), codes] += signal
    scores *= 0.2
    weights = rng.uniform(0.2, 3.0, 400)

    def log_loss(logarithm):
        chosen = softmax(scores * np.exp(logarithm), scores)[np.arange(400), codes]
        return -(weights @ np.log(chosen)) / weights.sum()

    best = minimize_scalar(log_loss, bounds=np.log([0.25, 1024.0]), method="bounded")
    assert np.log(0.3) < best.x < np.log(1000)  # not at the border
    sums = HeldOutSums.from_block(scores[:, None], codes, weights)
    found = calibrate_temperature(sums.log_losses[0], total_weight=weights.sum())
    # Steps are 0.35 in the logarithm, half of which the best grid point may be off.
    assert np.log(found.temperature) == pytest.approx(-best.x, abs=0.01)
    at_temperature = log_loss(-np.log(found.temperature))
    assert found.log_loss == pytest.approx(at_temperature, rel=3e-4)
    assert best.fun <= at_temperature <= best.fun * (1 + 1e-5)


def draw_numbers(n_rows, seed=0):
    """Draw predicted (b, A, q) and true numbers (b, q), and weights (b,)."""
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=(n_rows, 2))
    predicted = targets[:, None] + rng.normal(size=(n_rows, N_MODELS, 2))
    return predicted, targets, rng.uniform(0.1, 3.0, n_rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_residuals__as_scikit_learn_has_them(weighted):
    predicted, targets, weights = draw_numbers(40)
    weights = weights if weighted else None
    sums = ResidualSums.from_block(predicted, targets, weights)
    for model in range(N_MODELS):
        figures = sums.figures(model)
        options = {"sample_weight": weights, "multioutput": "raw_values"}
        scored = (targets, predicted[:, model])
        np.testing.assert_allclose(figures["r2"], r2_score(*scored, **options))
        np.testing.assert_allclose(figures["mae"], mean_absolute_error(*scored, **options))
        squared = mean_squared_error(*scored, **options)
        np.testing.assert_allclose(figures["rmse"], np.sqrt(squared))
        assert figures["relative_error"] == pytest.approx(1 - np.mean(figures["r2"]))


@given(lengths=row_chunkings(), seed=st.integers(0, 99))
def test_residuals__any_split_sums_to_one_block(lengths, seed):
    predicted, targets, weights = draw_numbers(sum(lengths), seed)
    whole = ResidualSums.from_block(predicted, targets, weights)
    added = ResidualSums.zeros(N_MODELS, 2)
    blocks = (split(array, lengths) for array in (predicted, targets, weights))
    for block in zip(*blocks, strict=True):
        added = added + ResidualSums.from_block(*block)
    for name, values in whole.arrays().items():
        np.testing.assert_allclose(added.arrays()[name], values, rtol=1e-12, atol=1e-12)


def test_residuals__of_what_does_not_vary_and_of_no_model():
    targets = np.array([[1.0, 2.0], [1.0, 4.0]])
    met = np.array([[1.0, 2.0], [1.0, 4.0]])
    missed = met + np.array([[0.5, 0.0], [0.0, 0.0]])
    predicted = np.stack([met, missed, np.full((2, 2), np.nan)], axis=1)
    sums = ResidualSums.from_block(predicted, targets)
    assert sums.figures(0)["r2"] == [1.0, 1.0]
    assert sums.figures(1)["r2"] == [0.0, 1.0]
    assert set(sums.figures(2).values()) == {None}


CLASSES = ["a", "b", "c", "d"]


def draw_labels(own, given, n_rows=200, seed=0):
    """Draw true labels among `own` and predicted ones among `given`."""
    rng = np.random.default_rng(seed)
    return rng.choice(own, n_rows), rng.choice(given, n_rows), rng.integers(1, 9, n_rows) / 4


def confusion_of(true, predicted, weights, names):
    return [
        [weights[(true == own) & (predicted == given)].sum() for given in CLASSES] for own in names
    ]


def test_softmax__the_largest_is_where_the_first_largest_score_is():
    scores = np.array([[1.0, 1.0 + 1e-15, 0.0], [0.0, 0.0, -1.0], [0.0, 0.5, 2.0]])
    shares = softmax(np.array([[1.0, 1.0, 0.0], [0.0, 1e-9, -1.0], [0.0, 0.5, 2.0]]), scores)
    np.testing.assert_array_equal(shares.argmax(axis=1), [1, 0, 2])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-15)
    # Four units in the last place of float32.
    np.testing.assert_allclose(shares[0, 1] / shares[0, 0] - 1, 2.0**-21, rtol=1e-6)


# All occur; one is never predicted; one has no rows; one neither; some labels are unknown.
@pytest.mark.parametrize(
    ("own", "given"),
    [("abcd", "abcd"), ("abcd", "abc"), ("abc", "abcd"), ("abc", "abc"), ("abcz", "abd")],
)
def test_class_figures__as_scikit_learns(own, given):
    true, predicted, weights = draw_labels(list(own), list(given))
    names = [*CLASSES, "z"] if "z" in own else CLASSES
    found = class_figures(CLASSES, confusion_of(true, predicted, weights, names))
    expected = precision_recall_fscore_support(
        true, predicted, labels=CLASSES, sample_weight=weights, zero_division=np.nan
    )
    assert [of_class["class"] for of_class in found] == CLASSES
    for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
        values = [None if np.isnan(value) else pytest.approx(value) for value in values]
        assert [of_class[name] for of_class in found] == values
    assert [of_class["support"] for of_class in found] == [
        weights[true == name].sum() for name in CLASSES
    ]


def test_fold_deviation__a_constant_fold_and_one_without_rows():
    Y = np.concatenate([np.full(40, 3.3), [1.0, 2.0, 4.0, 5.0]])[:, None]
    scores = (Y + 0.1)[:, None]
    folds = [ResidualSums.from_block(scores[rows], Y[rows]) for rows in (slice(40), slice(40, 44))]
    sums = [each.fold_sums for each in (*folds, ResidualSums.zeros(1, 1))]
    errors, totals = (np.stack(each) for each in zip(*sums, strict=True))
    # Each fold has the same squared error.
    assert FoldSums(errors, totals, 3).deviation(0) == pytest.approx(0, abs=1e-12)
    assert FoldSums(errors[1:], totals[1:], 2).deviation(0) is None
