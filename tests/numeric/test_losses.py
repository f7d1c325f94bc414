"""Losses by margin, and their sums over rows."""

import numpy as np
import pytest
from scipy.special import expit

from dask_nrbfn.choices import LOSSES
from dask_nrbfn.numeric.descent import LossSums
from dask_nrbfn.numeric.losses import loss_named

MARGINS = np.linspace(-4, 4, 401) + 0.003


def naive_loss(name, m):
    """Return the loss of one margin."""
    if name == "squared":
        return (1 - m) ** 2
    if name == "squared-hinge":
        return (1 - m) ** 2 if m < 1 else 0.0
    if name == "logistic":
        return float(np.log1p(np.exp(-m)))
    if abs(1 - m) < 0.1:
        return (1 - m + 0.1) ** 2 / 0.4
    return max(0.0, 1 - m)


def naive_sums(Phi, codes, W, name, row_weights):
    """Return the losses of every class, one row after another."""
    total = np.zeros(len(W))
    for phi, code, weight in zip(Phi, codes, row_weights, strict=True):
        for k, own in enumerate(W):
            total[k] += weight * naive_loss(name, (1 if k == code else -1) * (own @ phi))
    return total


def rows(n_rows=23, n_basis=5, n_classes=3):
    rng = np.random.default_rng(n_rows)
    Phi = rng.normal(size=(n_rows, n_basis))
    codes, weights = rng.integers(0, n_classes, n_rows), rng.uniform(0.1, 3, n_rows)
    return Phi, codes, rng.normal(size=(n_classes, n_basis)), weights


@pytest.mark.parametrize("name", LOSSES)
def test_loss__is_the_formula(name):
    expected = [naive_loss(name, m) for m in MARGINS]
    np.testing.assert_allclose(loss_named(name).value(MARGINS), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", LOSSES)
def test_slope__is_that_of_the_value_and_never_falls(name):
    loss, h = loss_named(name), 1e-6
    differences = (loss.value(MARGINS + h) - loss.value(MARGINS - h)) / (2 * h)
    slopes = loss.slope(MARGINS)
    np.testing.assert_allclose(slopes, differences, atol=1e-8)
    assert (np.diff(slopes) >= 0).all()
    if name != "hinge":
        assert (np.diff(slopes) <= (1 + 1e-9) * loss.curvature * np.diff(MARGINS)).all()


@pytest.mark.parametrize("name", LOSSES)
def test_loss__of_margins_far_out(name):
    loss, far = loss_named(name), np.array([-1e100, -1e4, 1e4])
    with np.errstate(all="raise", under="ignore"):
        values, slopes = loss.value(far), loss.slope(far)
        probabilities = loss.probability(far)
    np.testing.assert_allclose(values[:2], [naive_far(name, m) for m in far[:2]])
    assert np.isfinite(slopes).all()
    assert probabilities.tolist() == [0.0, 0.0, 1.0]
    if name != "squared":
        assert (values[2], slopes[2]) == (0.0, 0.0)


def naive_far(name, m):
    return (1 - m) ** 2 if "squared" in name else -m if name == "logistic" else 1 - m


def test_logistic__scores_are_log_odds():
    found = loss_named("logistic").probability(MARGINS)
    np.testing.assert_allclose(found, expit(MARGINS), rtol=1e-14)


@pytest.mark.parametrize("name", ["logistic", "squared-hinge"])
def test_probability__is_that_of_which_the_loss_is_least(name):
    loss = loss_named(name)
    for share in (0.1, 0.5, 0.8):
        expected_loss = share * loss.value(MARGINS) + (1 - share) * loss.value(-MARGINS)
        best = MARGINS[expected_loss.argmin()]
        assert loss.probability(best) == pytest.approx(share, abs=0.02)


def sums_of(Phi, codes, W, loss, row_weights=None):
    """Return the sums of one model."""
    own = None if row_weights is None else row_weights[:, None]
    return LossSums.from_block(Phi, (Phi @ W.T)[:, None], codes, loss, row_weights=own)


@pytest.mark.parametrize("name", LOSSES)
def test_sums__are_those_of_the_rows_and_their_gradient(name):
    Phi, codes, W, row_weights = rows()
    sums = sums_of(Phi, codes, W, loss_named(name), row_weights)
    np.testing.assert_allclose(
        sums.loss[0], naive_sums(Phi, codes, W, name, row_weights), rtol=1e-12
    )
    for k, j in np.ndindex(W.shape):
        step = np.zeros(W.shape)
        step[k, j] = 1e-6
        above, below = (
            naive_sums(Phi, codes, W + sign * step, name, row_weights).sum() for sign in (1, -1)
        )
        slope = (above - below) / 2e-6
        assert sums.gradient[0, k, j] == pytest.approx(slope, abs=1e-8 * max(1, above))


@pytest.mark.parametrize("name", LOSSES)
def test_sums__of_several_models_are_those_of_each(name):
    Phi, codes, W, weights = rows()
    loss, models = loss_named(name), np.stack([W, -2 * W, W**2])
    own = weights[:, None] * np.array([1.0, 0.0, 2.0])
    scores = np.einsum("ij,akj->iak", Phi, models)
    sums = LossSums.from_block(Phi, scores, codes, loss, row_weights=own)
    for model, row_weights in enumerate(own.T):
        alone = sums_of(Phi, codes, models[model], loss, row_weights)
        np.testing.assert_allclose(sums.loss[model], alone.loss[0], rtol=1e-12)
        np.testing.assert_allclose(sums.gradient[model], alone.gradient[0], rtol=1e-12, atol=1e-12)
