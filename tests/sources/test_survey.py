from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from dask_nrbfn.errors import Advice, DataError, ParameterError
from dask_nrbfn.sources import survey
from dask_nrbfn.sources.decide import decide
from dask_nrbfn.sources.survey import ColumnSurvey, Roles, TableOptions
from tests.numeric.chunkings import row_chunkings, split

N = 300


def surveyed(array, kind):
    found = ColumnSurvey(kind)
    found.add(array if isinstance(array, pa.Array) else pa.array(array))
    return found


def decided(columns, **options):
    kinds = {name: kind for name, (kind, _) in columns.items()}
    surveys = {name: surveyed(array, kinds[name]) for name, (_, array) in columns.items()}
    schema, lines, _ = decide(surveys, Roles("y"), TableOptions(**options))
    return schema, tuple(str(Advice(line)) for line in lines)


def figures(found):
    return (
        *(found.n_rows, found.n_missing, found.n_different, found.are_whole, found.are_days),
        *(found.texts, found.overflows),
        *(found.looks_like_id, found.median if found.kind == "number" else None),
    )


@settings(max_examples=30)
@given(lengths=row_chunkings(N))
@pytest.mark.parametrize(
    ("kind", "first", "most_texts"),
    [
        ("number", -40, 2**16),
        # Whole numbers that are days.
        ("number", 20_200_101, 2**16),
        ("category", -40, 40),
        ("text", -40, 40),
        ("text", -40, 2**16),
    ],
)
def test_survey__any_division(kind, first, most_texts, lengths):
    rng = np.random.default_rng(0)
    values = rng.integers(first, first + 80, N).astype(np.float64)
    values[rng.random(N) < 0.1] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "_MOST_HASHES", 16)
        patch.setattr(survey, "MOST_TEXTS", most_texts)
        parts = [surveyed(pa.array(part), kind) for part in split(values, lengths)]
        one = ColumnSurvey(kind)
        for part in split(values, lengths):
            one.add(pa.array(part))
        whole = surveyed(pa.array(values), kind)
        found = [reduce(add, parts), reduce(add, parts[::-1]), one]
        assert [*map(figures, found)] == [figures(whole)] * 3


def test_survey__too_many_texts(monkeypatch):
    monkeypatch.setattr(survey, "MOST_TEXTS", 10)
    monkeypatch.setattr(survey, "_MOST_HASHES", 5)
    parts = [surveyed([f"{i}" for i in range(start, start + 8)], "category") for start in (0, 4)]
    assert not parts[0].overflows
    both = parts[0] + parts[1]
    assert (both.overflows, both.n_different, both.looks_like_id) == (True, 11, True)
    with pytest.raises(DataError, match="'a' has more than 65536 different"):
        decide({"a": both}, Roles(), TableOptions(categorical=("a",)))


def test_survey__distinct_numbers_of_many_are_estimated():
    rng = np.random.default_rng(0)
    found = surveyed(rng.integers(0, 50_000, 200_000).astype(float), "number")
    assert found.n_different == pytest.approx(50_000 * (1 - np.exp(-4)), rel=0.06)


def test_decide__most_frequent_categories_have_a_feature():
    texts = ["d"] * 3 + ["c", "b"] * 2 + ["a", "e"]
    schema, (line,) = decided({"c": ("category", texts)}, max_categories=2)
    assert (schema.columns[0].categories, schema.columns[0].others) == (("b", "d"), True)
    assert "c has 5 categories: the 2 most frequent" in line


@pytest.mark.parametrize(
    ("kind", "values", "taken", "words"),
    [
        ("category", [f"c{i}" for i in range(60)], False, "look like ids or free text"),
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
    columns = {"n": ("number", [0.5] * n_rows), "x": ("text", texts)}
    _, lines = decided(columns)
    expected = f"{n_rows - 1} of {n_rows} values are numbers, but 'tall' is not"
    assert expected in lines[-1]
    assert not any("tall" in line for line in decided(columns, categorical=("x",))[1])


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


def test_survey__days_are_whole_numbers_of_eight_digits():
    for numbers, are_days in (
        ([20201231, 19000101, None], True),
        ([20201231, 20200230], False),
        ([20201231, 20201231.5], False),
        ([20201231, 18991231], False),
    ):
        assert surveyed(pa.array(numbers, pa.float64()), "number").are_days is are_days
    schema, (line,) = decided({"day": ("number", [20201231, 20200101])})
    assert schema.columns[0].kind == "number"
    assert "day looks like a date" in line
    assert "date_format='day=%Y%m%d'" in line


def test_decide__days_that_may_be_months_are_said():
    texts = ["01/02/2020", "03/04/2020"]
    schema, (line,) = decided({"day": ("text", texts)})
    assert schema.columns[0].kind == "category"
    assert line == (
        "day has an ambiguous order of day and month, for example '01/02/2020'; "
        "pass date_format='day=%d/%m/%Y' or pass date_format='day=%m/%d/%Y'."
    )
    with pytest.raises(DataError, match=r"'day' has an ambiguous order.*\. Pass date_format="):
        decided({"day": ("text", texts)}, date=("day",))
    for options in ({"date_format": ("%d/%m/%Y",)}, {"date_format": ("day=%d/%m/%Y",)}):
        (column,) = decided({"day": ("text", texts)}, **options)[0].columns
        assert (column.kind, column.written) == ("date", "%d/%m/%Y")


def test_decide__texts_that_are_not_all_alike_stay_text():
    units = ["12 kg", "300 g"] * 5
    schema, (line,) = decided({"w": ("text", units)})
    assert schema.columns[0].kind == "category"
    assert line == (
        "w has numbers of several units, '12 kg', '300 g', and is read as text. Write all numbers "
        "in one unit, or pass drop='w' to leave the column out."
    )
    _, (line,) = decided({"d": ("text", ["31.12.2020", "1.1.2021", "soon"])})
    assert "2 of 3 values are dates written as %d.%m.%Y, but 'soon' is not" in line
    assert decided({"w": ("text", ["12 kg"])}, categorical=("w",))[1] == ()


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [
        (["469,13 €", "1.000,00 €", "7 €"], "the numbers have decimal commas."),
        (["469,13 €", "12,50 €"], "the numbers have decimal commas."),
        (
            ["1.234 €", "999 €"],
            "points separate thousands, or numeric='p' if points precede decimals.",
        ),
    ],
)
def test_decide__decimal_commas_of_which_nothing_is_said(texts, remedy):
    def decided_by(decimal, **options):
        found = ColumnSurvey("text", decimal=decimal)
        found.add(pa.array(texts))
        schema, lines, _ = decide({"p": found}, Roles("y"), TableOptions(**options))
        return schema.columns[0], str(Advice(lines[0]))

    column, line = decided_by("")
    assert (column.kind, line.startswith(f"p has numbers such as {min(texts)!r}")) == (
        "category",
        True,
    )
    assert f"is read as text. Pass decimal=',' if {remedy}" in line
    assert decided_by(",")[0].kind == "number"
    if "numeric" in remedy:
        assert decided_by("", numeric=("p",))[0].written == "1234.5 €"


@pytest.mark.parametrize("texts", [["12.5 €", "1 €"], ["$1,234.5", "$1"], ["12 €", "3 €"]])
def test_decide__decimals_that_only_points_can_have(texts):
    found = ColumnSurvey("text", decimal="")
    found.add(pa.array(texts))
    schema, (line,), _ = decide({"p": found}, Roles("y"), TableOptions())
    assert (schema.columns[0].kind, "numbers written as" in line) == ("number", True)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "Unnamed: 0.1"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("n_rows", [3, 9000])
def test_decide__an_index_is_left_out(name, first, n_rows):
    numbers = np.random.default_rng(0).permutation(n_rows) + first
    columns = {name: ("number", numbers), "a": ("number", [0.5] * n_rows)}
    schema, (line,) = decided(columns)
    assert schema.ignored == (name,)
    assert (
        line == f"{name or repr('')} is left out: it counts the rows, as an index of pandas does."
    )
    columns[name] = "number", numbers * 2
    if name:
        assert len(decided(columns)[0].columns) == 2
    else:
        with pytest.raises(DataError, match="Column 1 of the table has no name"):
            decided(columns)


def test_decide__categories_that_are_one_number_are_one():
    texts = ["1.5", "1.50", "2", "2.0", "10"]
    schema, (line,) = decided({"v": ("category", texts)})
    assert schema.columns[0].categories == ("1.5", "10", "2")
    assert line == "v: '1.50' and '1.5' are equal numbers, so they are one category."
    schema, lines = decided({"v": ("category", [*texts, "x"])})
    assert "1.50" in schema.columns[0].categories
    assert lines == ()


def test_decide__dates_with_and_without_a_time():
    texts = ["2020-01-02", "2020-01-02 03:04"]
    for options in ({}, {"date": ("d",)}):
        (column,) = decided({"d": ("text", texts)}, **options)[0].columns
        assert (column.kind, column.written) == ("date", "")
    texts = ["31.12.2020", "31.12.2020 03:04"]
    survey = surveyed(texts, "text")
    decision = decide({"d": survey}, Roles(), TableOptions(date=("d",)))
    assert decision.unread[0].written == "%d.%m.%Y"
