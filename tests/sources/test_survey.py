from collections import Counter
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.sources import survey
from dask_nrbfn.sources.survey import ColumnSurvey, Roles, TableOptions, decide
from tests.numeric.chunkings import row_chunkings, split

N = 300


def surveyed(array, kind):
    found = ColumnSurvey(kind)
    found.add(array if isinstance(array, pa.Array) else pa.array(array))
    return found


def decided(columns, **options):
    kinds = {name: kind for name, (kind, _) in columns.items()}
    surveys = {name: surveyed(array, kinds[name]) for name, (_, array) in columns.items()}
    return decide(surveys, Roles("y"), TableOptions(**options))


def figures(found):
    return (
        *(found.n_rows, found.n_missing, found.n_different, found.are_whole, found.texts),
        *(found.looks_like_id, found.median if found.kind == "number" else None),
    )


@given(lengths=row_chunkings(N))
@pytest.mark.parametrize("kind", ["number", "category"])
def test_survey__any_division(kind, lengths):
    rng = np.random.default_rng(0)
    values = rng.integers(-40, 40, N).astype(np.float64)
    values[rng.random(N) < 0.1] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "_MOST_HASHES", 16)
        parts = [surveyed(pa.array(part), kind) for part in split(values, lengths)]
        one = ColumnSurvey(kind)
        for part in split(values, lengths):
            one.add(pa.array(part))
        whole = surveyed(pa.array(values), kind)
        found = [reduce(add, parts), reduce(add, parts[::-1]), one]
        assert [*map(figures, found)] == [figures(whole)] * 3


def test_survey__texts_are_counted():
    texts = [" a", "b", None, "a", "", "1.0"]
    found = surveyed(pa.array(texts).dictionary_encode(), "category")
    assert (found.n_rows, found.n_missing) == (6, 2)
    assert found.texts == Counter(a=2, b=1) | Counter({"1": 1})


def test_survey__too_many_texts(monkeypatch):
    monkeypatch.setattr(survey, "_MOST_TEXTS", 10)
    parts = [surveyed([f"{i}" for i in range(start, start + 8)], "category") for start in (0, 4)]
    assert parts[0].texts is not None
    both = parts[0] + parts[1]
    assert (both.texts, both.n_different, both.looks_like_id) == (None, 11, True)
    with pytest.raises(DataError, match="'a' has more than 10 values"):
        decide({"a": both}, Roles(), TableOptions(categorical=("a",)))


def test_survey__distinct_numbers_of_many_are_estimated():
    rng = np.random.default_rng(0)
    found = surveyed(rng.integers(0, 50_000, 200_000).astype(float), "number")
    assert found.n_different == pytest.approx(50_000 * (1 - np.exp(-4)), rel=0.06)


def test_decide__kinds_and_features():
    schema, lines = decided(
        {
            "n": ("number", [1.5, 2.5, 2.5]),
            "t": ("boolean", [True, False, True]),
            "c": ("category", ["b", "a", "b"]),
            "d": ("date", pa.array([1, 2, 3], pa.date32())),
        }
    )
    assert [column.kind for column in schema.columns] == ["number", "boolean", "category", "date"]
    assert schema.columns[2].categories == ("a", "b")
    assert (schema.label, schema.missing, lines) == ("y", "error", ())


def test_decide__most_frequent_categories_have_a_feature():
    texts = ["d"] * 3 + ["c", "b"] * 2 + ["a", "e"]
    schema, (line,) = decided({"c": ("category", texts)}, max_categories=2)
    assert (schema.columns[0].categories, schema.columns[0].others) == (("b", "d"), True)
    assert "c has 5 categories: the 2 most frequent" in line


@pytest.mark.parametrize(
    ("kind", "values", "taken", "words"),
    [
        ("category", [f"c{i}" for i in range(60)], False, "look like an id or free text"),
        ("category", [f"c{i % 50}" for i in range(60)], True, None),
        ("category", [f"c{i}" for i in range(40)], True, None),
        ("number", np.arange(60.0), True, "looks like an id: 60 different whole numbers"),
        ("number", np.arange(60.0) + 0.5, True, None),
        ("number", np.arange(60.0) // 2, True, None),
        ("number", [None] * 60, False, "has no value in any row"),
    ],
)
def test_decide__ids_are_not_taken_without_a_word(kind, values, taken, words):
    columns = {"n": ("number", [0.5] * 60), "x": (kind, pa.array(values, from_pandas=True))}
    schema, lines = decided(columns)
    assert [column.name for column in schema.columns] == ["n", "x"][: 1 + taken]
    assert schema.ignored == (() if taken else ("x",))
    assert (words in lines[0]) if words else not lines
    said = {"categorical": ("x",)} if kind == "category" else {"numeric": ("x",)}
    if words and "id" in words:
        schema, lines = decided(columns, **said)
        assert len(schema.columns) == 2
        assert not lines


@pytest.mark.parametrize("n_rows", [20, 70])
def test_decide__numbers_with_a_text_among_them_are_said(n_rows):
    texts = [*(f"{i / 8}" for i in range(n_rows - 1)), "tall"]
    columns = {"n": ("number", [0.5] * n_rows), "x": ("category", texts)}
    _, lines = decided(columns)
    expected = f"{n_rows - 1} of {n_rows} values are numbers, but 'tall' is none"
    assert expected in lines[-1]
    assert not any("tall" in line for line in decided(columns, categorical=("x",))[1])


def test_decide__gaps():
    columns = {"n": ("number", [1.0, None, 3.0, 8.0]), "c": ("category", ["a", "a", None, "b"])}
    schema, _ = decided(columns, missing="impute")
    number, category = schema.columns
    assert (number.fill, number.missing, category.missing) == (3.0, 0.25, 0.25)
    with pytest.raises(
        DataError, match=r"Column 'n' has no value in 1 of its rows\. Say missing: impute"
    ):
        decided(columns)
    schema, _ = decided(columns, missing="drop")
    assert [column.missing for column in schema.columns] == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "fill"}, "missing is 'fill'"),
        ({"max_categories": 0}, "max_categories is 0"),
        ({"drop": ("a",), "columns": ("a",)}, "columns and drop both name 'a'"),
        ({"date": ("a",), "numeric": ("a",)}, "numeric and date both name 'a'"),
        ({"drop": ("a",), "numeric": ("a",)}, "drop and numeric both name 'a'"),
    ],
)
def test_options__that_contradict(options, message):
    with pytest.raises(ParameterError, match=message):
        TableOptions(**options)


@pytest.mark.parametrize(
    ("types", "kind"),
    [
        ([pa.int64(), pa.float32()], "number"),
        ([pa.int64(), pa.bool_()], "number"),
        ([pa.null(), pa.bool_()], "boolean"),
        ([pa.string(), pa.float64()], "category"),
        ([pa.null()], "category"),
        ([pa.list_(pa.int8()), pa.int8()], None),
    ],
)
def test_options__kind_of_the_files_of_a_table(types, kind):
    assert TableOptions().kind("a", types) == kind
    assert TableOptions(date=("a",)).kind("a", types) == "date"
