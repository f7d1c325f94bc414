"""Errors travel whole, and respell the parameters that they name and nothing that a user wrote."""

import pickle

import pytest

from dask_nrbfn import errors
from dask_nrbfn.errors import Advice, DamagedResultError, DataError, NRBFNError
from tests.opened import open_source

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NRBFNError)
]


def spelled(text):
    return Advice(text).spelled(lambda name: f"--{name}")


@pytest.mark.parametrize(
    "text",
    [
        "Column '`drop`' has no value.",
        "Column 'the `drop` one' has no value.",
        'Column "it\'s `drop` two" has no value.',
        "/data/`drop`/rows.csv does not exist.",
        "/data/`drop`.csv has no rows.",
    ],
)
def test_spelled__backticks_of_a_user_stay(text):
    assert spelled(text) == str(Advice(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`drop` is 'x `id` y'.", "--drop is 'x `id` y'."),
        ("`drop`=a (`id`), `date`.", "--drop=a (--id), --date."),
        ("Say `drop`='my `id`'.", "Say --drop 'my `id`'."),
        (
            'Say `sql`="FROM \'d\' WHERE \\"a, $b\\" > 0".',
            'Say --sql "FROM \'d\' WHERE \\"a, \\$b\\" > 0".',
        ),
        ("the users' `drop` is the rows' `id`.", "the users' --drop is the rows' --id."),
        ("`delimiter` is '`'. Give \" or '.", "--delimiter is '`'. Give \" or '."),
    ],
)
def test_spelled__parameters_beside_the_texts_of_a_user(text, expected):
    assert spelled(text) == expected


def test_spelled__a_value_of_an_option_of_another_command_has_no_equals_sign():
    advice = Advice("Pass `missing`='drop'.").spelled(lambda name: f"ingest --{name}")
    assert advice == "Pass ingest --missing drop."


def test_error__names_a_column_as_it_is(tmp_path):
    path = tmp_path / "`label`.csv"
    path.write_text("a,`drop`\n1,2\n")
    with pytest.raises(DataError) as caught:
        open_source(path, label="`id`")
    assert str(caught.value) == (
        f"{path} has no column '`id`'; it has 'a', '`drop`'. Name an existing column with label."
    )


def make(kind):
    """Return an error of a kind, with all it can carry."""
    more = {DamagedResultError: ("moments", (3, 4))}
    return kind("X is bad.", "Mend it.", *more.get(kind, ()))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error__pickles_and_is_a_builtin_too(kind):
    error, made = pickle.loads(pickle.dumps(make(kind))), make(kind)
    assert type(error) is kind
    assert vars(error) == vars(made)
    assert (error.problem, error.remedy) == ("X is bad.", "Mend it.")
    assert str(error) == "X is bad. Mend it."
    ours = {base for base in kind.__mro__ if issubclass(base, NRBFNError)}
    bases = set(kind.__mro__) - ours - {Exception, BaseException, object}
    assert bool(bases) == (kind is not NRBFNError)
    assert all(base.__module__ == "builtins" for base in bases)
