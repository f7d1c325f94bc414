"""What the definition of a parameter is good for."""

import numpy as np
import pytest

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitLimits, FitParams, Option, TuneParams
from dask_nrbfn.sources.options import IngestOptions

NUMBER = Option(0.5, float, "", least=0.001, most=1)
COUNT = Option(None, int, "", least=2, none="all")
WORD = Option("a", str, "", choices=("a", "b"), prefix="x:")
LIST = Option((1.0, 2.0), float, "", least=-1, several=True)
FLAG = Option(False, bool, "")
NAMES = Option(None, str, "", metavar="COLUMNS", several=True, none="")

CHOICES = "Give one of a, b."
BAD = [
    (NUMBER, 0, "p is 0. Give a number from 0.001 to 1."),
    (NUMBER, np.nan, "p is nan. Give a number from 0.001 to 1."),
    (NUMBER, True, "p is True. Give a number from 0.001 to 1."),
    (NUMBER, None, "p is None. Give a number from 0.001 to 1."),
    (COUNT, 1, "p is 1. Give an integer of at least 2, or leave p out."),
    (COUNT, 2.0, "p is 2.0. Give an integer of at least 2, or leave p out."),
    (WORD, "c", f"p is 'c'. {CHOICES}"),
    (WORD, None, f"p is None. {CHOICES}"),
    (WORD, np.ones((9, 9)), f"p is a ndarray. {CHOICES}"),
    (LIST, (), "p is (). Give a few values, each a number of at least -1."),
    (LIST, (0, -2), "p is -2. Give a few values, each a number of at least -1."),
    (LIST, None, "p is None. Give a few values, each a number of at least -1."),
    (FLAG, 1, "p is 1. Give True or False."),
    (NAMES, ("a", 3), "p is 3. Give text with commas, or a sequence, or leave p out."),
]


@pytest.mark.parametrize(("option", "value", "message"), BAD)
def test_option__bad_values(option, value, message):
    with pytest.raises(ParameterError) as caught:
        option.check("p", value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (NUMBER, (1, 0.001, np.float32(0.5))),
        (COUNT, (2, None, np.int8(3))),
        (WORD, ("a", "b", "x:anything")),
        (LIST, ((-1,), (np.float64(3.0), 4))),
        (FLAG, (True, False)),
        (NAMES, (("a", "b"), None)),
    ],
)
def test_option__good_values(option, values):
    for value in values:
        option.check("p", value)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (NUMBER, "0.5"),
        (COUNT, "all"),
        (WORD, "a"),
        (LIST, "1,2"),
        (Option(tuple(range(9)), int, "", several=True), "0,1,...,8"),
    ],
)
def test_option__default_in_words(option, text):
    assert option.default_text == text


@pytest.mark.parametrize("kind", [FitParams, FitLimits, TuneParams, IngestOptions])
def test_params__are_all_defined(kind):
    for name, option in kind.options().items():
        option.check(name, option.default)
        assert option.help.endswith((".", "?,-"))
        assert "\n" not in option.help
        assert getattr(kind(), name) == option.default


@pytest.mark.parametrize(
    ("given", "mixed", "scale"),
    [("auto", True, "standard"), ("auto", False, "none"), ("unit", True, "unit")],
)
def test_resolve_auto__scales_features_of_several_kinds(given, mixed, scale):
    assert FitParams(scale=given).resolve_auto(numbers=False, mixed=mixed).scale == scale


def test_params__what_a_user_enters_is_checked_and_several_are_a_tuple():
    assert TuneParams(alphas=[0.1]).alphas == TuneParams(alphas=0.1).alphas == (0.1,)
    for bad in ({"n_neighbors": True}, {"alpha": 2}, {"kernel": "x"}):
        with pytest.raises(ParameterError):
            FitParams(**bad)
    assert FitParams.options() is FitParams.options()


@pytest.mark.parametrize("kind", [FitParams, TuneParams])
def test_params__docstrings_have_every_option(kind):
    for name, option in kind.options().items():
        assert f"\n{name} : {option.allowed}, default=" in kind.__doc__
