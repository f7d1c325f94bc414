import pickle

import pytest

from dask_nrbfn import errors
from dask_nrbfn.errors import DamagedResultError, NRBFNError

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NRBFNError)
]


def make(kind):
    """Return an error of a kind, with all it can carry."""
    more = {DamagedResultError: ("moments", (3, 4))}
    return kind("X is bad.", "Mend it.", *more.get(kind, ()))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error__pickles(kind):
    error, made = pickle.loads(pickle.dumps(make(kind))), make(kind)
    assert type(error) is kind
    assert vars(error) == vars(made)
    assert (error.problem, error.remedy) == ("X is bad.", "Mend it.")
    assert str(error) == "X is bad. Mend it."


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error__is_a_builtin_too(kind):
    ours = {base for base in kind.__mro__ if issubclass(base, NRBFNError)}
    bases = set(kind.__mro__) - ours - {Exception, BaseException, object}
    assert bool(bases) == (kind is not NRBFNError)
    assert all(base.__module__ == "builtins" for base in bases)
