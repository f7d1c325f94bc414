import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn.numeric.schema import Column, Schema
from tests.schemas import COLUMNS, FILLED, N, stored_rows


def features_of(value, column, *, fills):
    """Make the features of one stored value, one after another."""
    gap = math.isnan(value)
    if column.kind == "category":
        names = [*column.categories, *["other"] * column.others]
        names += ["missing"] * (column.missing > 0)
        shown = "missing" if gap else (names[int(value)] if value >= 0 else "unseen")
        made = [float(name == shown) for name in names]
    else:
        number = column.fill if gap else value
        made = [number]
        if column.kind == "date":
            angle = 2 * math.pi * number / 365.2425
            made += [math.cos(angle), math.sin(angle)]
        made += [float(gap)] * (column.missing > 0.01)
    return made if fills or not gap else [math.nan] * len(made)


def expanded(schema, stored):
    return np.array(
        [
            [
                feature
                for value, column in zip(row, schema.columns, strict=True)
                for feature in features_of(value, column, fills=schema.fills)
            ]
            for row in stored.tolist()
        ]
    )


@pytest.mark.parametrize("missing", ["impute", "error"])
def test_expand__is_what_each_value_means(missing):
    schema, stored = replace(FILLED, missing=missing), stored_rows()
    found = schema.expand(stored)
    assert (found.shape, found.dtype) == ((N, schema.n_features), np.float64)
    np.testing.assert_allclose(found, expanded(schema, stored), rtol=1e-12, atol=1e-12)
    assert np.isnan(found).any() == (missing == "error")


def test_expand__of_a_plain_schema_is_nothing_new():
    schema = Schema((Column("a", "number"), Column("b", "boolean", missing=0.01)))
    assert schema.is_plain
    for dtype in ("u1", "f4"):
        stored = np.arange(6, dtype=dtype).reshape(3, 2)
        np.testing.assert_array_equal(schema.expand(stored), stored)


def test_expand__times_of_day():
    column = Column("day", "date", times=True)
    days = np.array([0.0, 18000.25, 18000.5, -0.25])
    found = Schema((column,)).expand(days[:, None])
    np.testing.assert_allclose(found[:, 3], [1, 0, -1, 0], atol=1e-11)
    np.testing.assert_allclose(found[:, 4], [0, 1, 0, -1], atol=1e-11)
    np.testing.assert_array_equal(
        found[:, :3], Schema((Column("day", "date"),)).expand(days[:, None])
    )
    schema = Schema((column,))
    assert Schema.of_record(json.loads(json.dumps(schema.to_dict()))) == schema


def test_expand__days_of_the_week():
    column = Column("day", "date", times=True, weekdays=True)
    # The first day of 1970 was a Thursday.
    days = np.array([-7.0, 0.0, 0.75, 1.0, 20_006.0, 20_007.5])
    found = Schema((column,)).expand(days[:, None])
    angles = 2 * np.pi / 7 * np.array([0, 0, 0, 1, 0, 1])
    np.testing.assert_allclose(found[:, 3], np.cos(angles), atol=1e-11)
    np.testing.assert_allclose(found[:, 4], np.sin(angles), atol=1e-11)
    assert column.feature_names[3:5] == ["day_week_cos", "day_week_sin"]
    np.testing.assert_allclose(found[:, 5], [1, 1, 0, 1, 1, -1], atol=1e-11)


def test_schema__names_of_features_and_their_groups():
    assert FILLED.feature_names == (
        *("age", "age_missing", "pay", "sex=f", "sex=m", "sex=(missing)"),
        *("town=Bonn", "town=Köln", "town=Mainz", "town=(other)", "paid"),
        *("day", "day_cos", "day_sin", "day_missing"),
    )
    assert FILLED.groups == ((3, 6), (6, 10))
    assert (FILLED.n_features, Schema(()).n_features) == (15, 0)


def test_schema__comes_back_from_json():
    written = {"delimiter": ";", "missing_values": ["?", "NA"]}
    full = replace(FILLED, targets=("p", "q"), weights="w", id="i", ignored=("z",), written=written)
    for schema in (full, FILLED, Schema(COLUMNS[:1])):
        text = json.dumps(schema.to_dict())
        assert Schema.of_record(json.loads(text)) == schema == pickle.loads(pickle.dumps(schema))
    assert Schema(COLUMNS[4:5]).to_dict() == {"columns": {"paid": {"kind": "boolean"}}}


def changed(place, **changes):
    columns = [*COLUMNS]
    columns[place] = replace(columns[place], **changes)
    return replace(FILLED, columns=tuple(columns))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (replace(FILLED, columns=COLUMNS[:5]), "has an extra column 'day'"),
        (changed(0, name="years"), "has the column 'age' where 'years' is expected"),
        (changed(4, kind="date"), "a column 'paid' of the kind boolean, not date"),
        (changed(3, categories=("Bonn",)), "a column 'town' of other categories, such as 'Köln'"),
        (changed(2, others=True), "a column 'sex' of other categories"),
        (replace(FILLED, missing="error"), "has missing values in the column 'age', which are not"),
    ],
)
def test_difference__names_the_first_column(other, difference):
    assert difference in FILLED.difference(other)
    assert FILLED.digest != other.digest


def test_difference__is_none_where_values_are_stored_alike():
    assert FILLED.difference(changed(0, fill=0.0, missing=0.0)) is None
    assert FILLED.difference(changed(4, kind="number")) is None
    without_gaps = replace(FILLED, missing="error")
    assert without_gaps.difference(FILLED) is None
    assert replace(FILLED, columns=COLUMNS[:5]).difference(FILLED) == "has no column 'day'"


def test_digest__is_of_the_features_alone():
    written = replace(FILLED, label="other", id="i", ignored=("z",), written={"delimiter": ";"})
    assert written.digest == FILLED.digest != changed(0, fill=0.0).digest
    assert FILLED.coding_factor % 2 == 1 != FILLED.coding_factor
    assert changed(0, fill=0.0, name="years").coding_factor == FILLED.coding_factor
    assert changed(2, categories=("f", "n")).coding_factor != FILLED.coding_factor
    assert Schema(COLUMNS[:2], missing="impute").coding_factor == 1


def test_schema__names_of_features_are_unique():
    columns = (
        Column("day", "date", missing=0.5),
        Column("day_cos", "number"),
        Column("c", "category", ("(missing)", "(other)", "x"), others=True, missing=0.5),
        Column("c=x", "boolean"),
    )
    assert Schema(columns, missing="impute").feature_names == (
        *("day", "day_cos_", "day_sin", "day_missing", "day_cos"),
        *("c=(missing)", "c=(other)", "c=x_", "c=(other)_", "c=(missing)_", "c=x"),
    )
