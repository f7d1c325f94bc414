import pickle

import pytest

from dask_nrbfn import errors
from dask_nrbfn.errors import NRBFNError

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NRBFNError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error__pickles(kind):
    error = pickle.loads(pickle.dumps(kind("X is bad.", "Mend it.")))
    assert type(error) is kind
    assert (error.problem, error.remedy) == ("X is bad.", "Mend it.")
    assert str(error) == "X is bad. Mend it."


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error__is_a_builtin_too(kind):
    bases = set(kind.__mro__) - {kind, NRBFNError, Exception, BaseException, object}
    assert bool(bases) == (kind is not NRBFNError)
    assert all(base.__module__ == "builtins" for base in bases)
