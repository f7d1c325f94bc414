import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from dask_nrbfn.numeric.held_out import class_figures

NAMES = ["a", "b", "c", "d"]


def draw(own, given, n_rows=200, seed=0):
    """Draw true labels among `own` and predicted ones among `given`."""
    rng = np.random.default_rng(seed)
    return rng.choice(own, n_rows), rng.choice(given, n_rows), rng.integers(1, 9, n_rows) / 4


def confusion_of(true, predicted, weights, names):
    return [
        [weights[(true == own) & (predicted == given)].sum() for given in NAMES] for own in names
    ]


# All occur; one is never predicted; one has no rows; one neither; some labels are unknown.
@pytest.mark.parametrize(
    ("own", "given"),
    [("abcd", "abcd"), ("abcd", "abc"), ("abc", "abcd"), ("abc", "abc"), ("abcz", "abd")],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_class_figures__as_scikit_learns(own, given, weighted):
    true, predicted, weights = draw(list(own), list(given))
    weights = weights if weighted else np.ones(len(true), dtype=int)
    names = [*NAMES, "z"] if "z" in own else NAMES
    found = class_figures(NAMES, confusion_of(true, predicted, weights, names))
    expected = precision_recall_fscore_support(
        true, predicted, labels=NAMES, sample_weight=weights, zero_division=np.nan
    )
    assert [of_class["class"] for of_class in found] == NAMES
    for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
        values = [None if np.isnan(value) else pytest.approx(value) for value in values]
        assert [of_class[name] for of_class in found] == values
    assert [of_class["support"] for of_class in found] == [
        weights[true == name].sum() for name in NAMES
    ]


def test_class_figures__recall_on_average_is_the_share_that_is_right():
    true, predicted, weights = draw(NAMES, NAMES, seed=1)
    found = class_figures(NAMES, confusion_of(true, predicted, weights, NAMES))
    right = sum(of_class["recall"] * of_class["support"] for of_class in found)
    assert right == pytest.approx(weights[true == predicted].sum())
