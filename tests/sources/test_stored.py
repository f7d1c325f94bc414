"""What is stored of tables in memory: names of their columns, types of none, and what is said."""

import numpy as np
import pandas as pd
import pytest

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.tables import schema_of, stored_rows

N = 120


def test_schema_of__array_with_a_column_without_values():
    X = np.column_stack([np.arange(6.0), np.full(6, np.nan), np.arange(6.0) ** 2])
    schema = schema_of(X, "impute")
    assert [column.name for column in schema.columns] == ["x0", "x2"]
    # Its rows, and those of its columns that are used.
    for rows in (X, X[:, [0, 2]], X.tolist()):
        np.testing.assert_array_equal(stored_rows(rows, schema), X[:, [0, 2]])


OBJECTS = np.array([[1, "a"], [2, 5]], dtype=object)
REFUSED = {
    "names alike as text": (pd.DataFrame([["a", 1.0]], columns=[1, "1"]), "several columns '1'"),
    "array of objects": (OBJECTS, "Column 'x1' of X has values of several types"),
    "complex array": (np.ones((2, 1), dtype=complex), "Column 'x0' of X .* of an unknown type"),
    "huge integers": (pd.DataFrame({"a": [10**30, 1], "b": "x"}), "Column 'a' of X has values"),
    "no text of Unicode": (
        pd.DataFrame({"a": ["\ud800", "x"]}, dtype=object),
        "'a' of X has values",
    ),
    "no value anywhere": (pd.DataFrame({"a": [None, ""]}), "X has no feature: a is left out"),
    "no column that is taken": (
        pd.DataFrame({"a": [f"n{row}" for row in range(N)]}),
        "X has no feature: a is left out: 120 different texts in 120 rows look like",
    ),
}


@pytest.mark.parametrize(("X", "message"), REFUSED.values(), ids=REFUSED)
def test_schema_of__what_is_refused(X, message):
    with pytest.raises(DataError, match=message):
        schema_of(X, "impute")


def test_schema_of__choices_are_logged(caplog):
    key = np.arange(N)
    X = pd.DataFrame({"name": [f"n{row}" for row in key], "key": key})
    X["town"] = [f"t{row % 104}" for row in key]
    X["size"] = np.where(key == 7, "big", np.where(key % 2, "1.5", "2.5"))
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        schema = schema_of(X)
    said = ("name is left out", "town has 104 categories", "but also 'big'")
    assert all(words in caplog.text for words in said)
    with pytest.raises(DataError, match="'key' of X has 'many' in row 0"):
        stored_rows(X.assign(key="many"), schema)
