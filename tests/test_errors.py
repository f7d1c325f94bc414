"""Errors respell the parameters that they name, and nothing that a user wrote."""

import pytest

from dask_nrbfn.errors import Advice, DataError
from dask_nrbfn.sources import open_source


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
        ("the users' `drop` is the rows' `id`.", "the users' --drop is the rows' --id."),
        ("`quote` is '`'. Give \" or '.", "--quote is '`'. Give \" or '."),
    ],
)
def test_spelled__parameters_beside_the_texts_of_a_user(text, expected):
    assert spelled(text) == expected


def test_error__names_a_column_as_it_is(tmp_path):
    path = tmp_path / "`label`.csv"
    path.write_text("a,`drop`\n1,2\n")
    with pytest.raises(DataError) as caught:
        open_source(path, label="`id`")
    assert str(caught.value) == (
        f"{path} has no column '`id`'; it has 'a', '`drop`'. Name one of its columns with label."
    )
