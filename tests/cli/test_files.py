"""Commands that use a model on files as people have them."""

import csv
import json
import re
import shutil
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import zarr

from dask_nrbfn import FitParams, InlineEngine, Model, fit_dataset, ingest_file
from tests.cli.program import json_of, refuse, succeed
from tests.cli.program import run as run_program

PARAMS = FitParams(scale="standard", alpha=1e-6)


def people(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "person": [f"p{seed}-{row}" for row in range(n_rows)],
            "age": rng.normal(40, 10, n_rows).round(2),
            "city": rng.choice(["aa", "bb", "cc"], n_rows),
            "code": rng.choice([1, 2, 3], n_rows),
            "member": rng.choice(["true", "false"], n_rows),
            "day": pd.date_range("2020-01-01", periods=n_rows).strftime("%Y-%m-%d"),
            "note": [f"a, {row}" for row in range(n_rows)],
        }
    )
    old, first = frame["age"] > 40, frame["city"] == "aa"
    return frame.assign(bought=np.where(old ^ first, "yes", "no"))


def write(place, frame):
    frame.to_csv(place, index=False)
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("files")
    options = {"label": "bought", "id": "person", "drop": ("note",), "categorical": ("code",)}
    dataset = ingest_file(write(place / "train.csv", people(150)), place / "train", **options)
    fit_dataset(dataset, place / "run", PARAMS, InlineEngine())
    return place


def predicted(place, frame, tmp_path, *options):
    """Return what the program predicts of a table that is written as CSV, and what it prints."""
    file, out = write(tmp_path / "rows.csv", frame), tmp_path / "out.csv"
    figures = succeed("predict", place / "run", file, out, "--overwrite", "--json", *options)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.csv", "rows.csv"]
    return pd.read_csv(out, dtype={"note": str}), json.loads(figures)


def test_predict__a_file_as_its_dataset(tmp_path, place):
    succeed("predict", place / "run", place / "train", tmp_path / "out.csv", "--scores")
    expected = pd.read_csv(tmp_path / "out.csv")
    found, figures = predicted(place, people(150), tmp_path, "--scores")
    pd.testing.assert_frame_equal(found, expected)
    assert figures["ignored_columns"] == ["note", "bought"]
    assert (figures["n_rows"], figures["n_skipped"]) == (150, 0)


def test_predict__columns_by_name_and_others_kept(tmp_path, place):
    rows = people(90, seed=1).drop(columns="bought")
    expected, _ = predicted(place, rows, tmp_path)
    mixed = rows[rows.columns[::-1]].assign(more=1.50)
    found, figures = predicted(place, mixed, tmp_path, "--keep", "person, note, age")
    assert found.columns.tolist() == ["person", "note", "age", "prediction"]
    pd.testing.assert_frame_equal(found[["person", "prediction"]], expected)
    pd.testing.assert_frame_equal(found[["note", "age"]], rows[["note", "age"]])
    assert figures["ignored_columns"] == ["more"]
    everything, figures = predicted(place, mixed, tmp_path, "--keep", "*")
    others = [name for name in mixed.columns if name != "person"]
    assert everything.columns.tolist() == ["person", *others, "prediction"]
    kept = ["note", "age", "more"]
    pd.testing.assert_frame_equal(everything[kept], mixed[kept])
    assert figures["ignored_columns"] == []


def test_predict__text_has_quotes_where_it_needs_them(tmp_path, place):
    notes = ["007", "a, b", 'a "b"', "a\nb", ""]
    file, out = write(tmp_path / "rows.csv", people(5).assign(note=notes)), tmp_path / "out.csv"
    succeed("predict", place / "run", file, out, "--keep", "note")
    with open(out, newline="") as text:
        assert [row[1] for row in csv.reader(text)] == ["note", *notes]
    assert out.read_text().startswith("person,note,prediction\n")
    assert {*re.findall(r'"(?:[^"]|"")+"', out.read_text())} == {'"a, b"', '"a ""b"""', '"a\nb"'}


def test_predict__an_id_that_is_a_feature_too(tmp_path, place):
    rows = people(90, seed=1).assign(code=[f"{row % 3 + 1:02d}" for row in range(90)])
    file = write(tmp_path / "rows.csv", rows)
    predict = ("predict", place / "run", file, "--scores")
    for name in ("person", "age", "code"):
        succeed(*predict, tmp_path / f"{name}.csv", "--id", name)
    expected = pd.read_csv(tmp_path / "person.csv")
    for name in ("age", "code"):
        frame = pd.read_csv(tmp_path / f"{name}.csv", dtype={"code": str})
        assert frame.columns[0] == name
        assert frame[name].tolist() == rows[name].tolist()
        pd.testing.assert_frame_equal(frame.iloc[:, 1:], expected.iloc[:, 1:])
    succeed(*predict[:3], tmp_path / "group", "--id", "age")
    assert zarr.open_array(tmp_path / "group" / "ids", mode="r").shape == (90,)


def test_predict__names_of_predicted_numbers(tmp_path):
    file, out = write(tmp_path / "rows.csv", people(90)), tmp_path / "out.csv"
    succeed("ingest", file, tmp_path / "rows", "--target", "age,code", "--drop", "person,note")
    succeed("fit", tmp_path / "rows", tmp_path / "run", "--alpha", 1e-3)
    succeed("predict", tmp_path / "run", file, out, "--keep", "code")
    assert pd.read_csv(out).columns.tolist() == ["code", "prediction_age", "prediction_code"]


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
def test_predict__typed_tables(tmp_path, place, suffix):
    rows = people(90, seed=1)
    expected, _ = predicted(place, rows, tmp_path, "--scores")
    typed = rows.astype({"city": "category", "code": float, "note": "category"})
    typed = typed.assign(member=rows["member"] == "true", day=pd.to_datetime(rows["day"]))
    typed = typed.assign(exact=[Decimal(row) / 4 for row in range(90)])
    file, out = tmp_path / f"rows{suffix}", tmp_path / "out.parquet"
    (typed.to_parquet if suffix == ".parquet" else typed.to_feather)(file)
    predict = ("predict", place / "run", file, "--scores", "--keep", "day,note,exact")
    succeed(*predict, out)
    found = pd.read_parquet(out)
    kept = found[["day", "note", "exact"]]
    expected_kept = typed[["day", "note", "exact"]].astype({"note": object})
    pd.testing.assert_frame_equal(kept, expected_kept, check_dtype=False)
    pd.testing.assert_frame_equal(found[expected.columns], expected, check_dtype=False)
    succeed(*predict, tmp_path / "typed.csv")
    assert pd.read_csv(tmp_path / "typed.csv")["note"].tolist() == rows["note"].tolist()


def test_predict__an_unseen_category_is_none_of_the_others(tmp_path, place):
    rows = people(9, seed=2).assign(city="zz")
    found, figures = predicted(place, rows, tmp_path, "--scores")
    assert figures["unseen_categories"] == {"city": 9}
    evaluated = succeed("evaluate", place / "run", tmp_path / "rows.csv", "--json")
    assert json.loads(evaluated)["unseen_categories"] == {"city": 9}
    shown = succeed("evaluate", place / "run", tmp_path / "rows.csv")
    assert re.search("^rows with unseen city +9$", shown, re.M)
    model = Model.load(place / "run")
    names = [column.name for column in model.schema.columns]
    days = (pd.to_datetime(rows["day"]) - pd.Timestamp("1970-01-01")).dt.days
    stored = rows.assign(city=-1, code=rows["code"] - 1, member=rows["member"] == "true", day=days)
    scores = model.scores(model.schema.expand(stored[names].to_numpy(dtype=float)))
    np.testing.assert_allclose(found[["score_no", "score_yes"]], scores, rtol=1e-9)


def test_predict__rows_that_are_bad(tmp_path, place):
    rows = people(90, seed=1).astype({"age": object})
    expected, _ = predicted(place, rows, tmp_path)
    bad = [3, 50, 89]
    rows.loc[bad, "age"] = ["old", None, "inf"]
    rows.loc[bad[1], "day"] = "soon"
    found, figures = predicted(place, rows, tmp_path, "--skip-bad")
    assert (figures["n_rows"], figures["n_skipped"]) == (90, 3)
    assert found["person"].tolist() == rows["person"].tolist()
    assert np.flatnonzero(found["prediction"].isna()).tolist() == bad
    pd.testing.assert_frame_equal(found.drop(index=bad), expected.drop(index=bad))
    predict = ("predict", place / "run", tmp_path / "rows.csv", tmp_path / "x")
    problem, fix = refuse(*predict)
    assert "'old' in row 3" in problem
    assert "pass its text in ingest --missing-values" in fix
    assert refuse(*predict, "--skip-bad")[0].startswith("--skip-bad is given, but")


def test_evaluate__a_file_as_its_dataset(tmp_path, place):
    evaluate = ("evaluate", place / "run")
    rows = people(90, seed=1)
    shuffled = write(tmp_path / "rows.csv", rows[rows.columns[::-1]])
    found = json_of(*evaluate, shuffled)
    ingest_file(shuffled, tmp_path / "rows", schema=Model.load(place / "run").schema)
    assert found == json_of(*evaluate, tmp_path / "rows") | {"ignored_columns": ["note"]}
    assert found["n_rows"] == 90
    assert {*place.iterdir()} == {place / name for name in ("run", "train", "train.csv")}


def test_evaluate__importance_is_by_column_of_the_file(tmp_path, place):
    rows = write(tmp_path / "rows.csv", people(90, seed=1))
    evaluate = ("evaluate", place / "run", rows)
    names = {column.name for column in Model.load(place / "run").schema.columns}
    found = json_of(*evaluate, "--importance")["importances"]
    assert {each["column"] for each in found} == names
    shown = succeed(*evaluate, "--importance")
    table = shown[shown.index("Evaluated rows: the most important") :].split("\n\n")[0].splitlines()
    first = [line.split()[0] for line in table]
    assert first[-len(names) :] == [each["column"] for each in found]
    assert json_of(*evaluate)["importances"] == []
    assert "the most important" not in succeed(*evaluate)
    page = ("report", place / "run", "--evaluate", rows, "--out", tmp_path / "page.html")
    succeed(*page)
    assert "Columns that matter" in (tmp_path / "page.html").read_text()
    succeed(*page, "--overwrite", "--sql", "FROM source WHERE age > 30")
    people(90, seed=1).to_parquet(tmp_path / "rows.parquet")
    query = f"FROM '{tmp_path / 'rows.parquet'}' WHERE age > 30"
    succeed("report", place / "run", "--sql", query, "--out", tmp_path / "of-query.html")
    problem, _ = refuse("report", place / "run", "--encoding", "utf-8")
    assert problem == "--encoding is given, but no rows are evaluated."


def test_query__alone_stands_for_the_rows_to_evaluate_or_predict(tmp_path, place):
    people(90, seed=1).to_parquet(tmp_path / "rows.parquet")
    query, run = f"FROM '{tmp_path / 'rows.parquet'}'", place / "run"
    assert json_of("evaluate", run, "--sql", query) == json_of("evaluate", run, query)
    succeed("predict", run, tmp_path / "out.csv", "--sql", query)
    assert len(pd.read_csv(tmp_path / "out.csv")) == 90
    for command in ("evaluate", "predict"):
        assert "Missing argument 'ROWS'" in run_program(command, run)[2]


def test_update__a_file_is_known_by_its_name(tmp_path, place):
    shutil.copytree(place / "run", tmp_path / "run")
    update = ("update", tmp_path / "run", write(tmp_path / "rows.csv", people(90, seed=1)))
    judge = ("--evaluate", place / "train.csv", "--max-error-rate", 1)
    figures = json_of(*update, *judge)
    assert figures["n_rows"] == 90
    assert figures["ignored_columns"] == ["note"]
    (member,) = zarr.open_group(tmp_path / "run", mode="r").attrs["versions"][0]["members"]
    assert member["dataset"] == str(tmp_path / "rows.csv")
    assert "holds the rows of" in refuse(*update)[0]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.csv", "run"]


@pytest.mark.slow
def test_refresh__reads_files_that_were_added_again(tmp_path, place):
    run, file = tmp_path / "run", write(tmp_path / "rows.csv", people(90, seed=1))
    shutil.copytree(place / "run", run)
    succeed("update", run, file)
    figures = json_of("refresh", run)
    assert figures["n_rows"] == 240
    file.unlink()
    assert "rows.csv, which cannot be read" in refuse("refresh", run)[0]
    assert {each.name for each in tmp_path.iterdir()} == {"run"}


def test_predict__options_of_files_with_a_dataset(tmp_path, place):
    predict = ("predict", place / "run", place / "train", tmp_path / "out.csv")
    assert "--sql is given" in refuse(*predict, "--sql", "FROM source")[0]
    assert "--keep is given" in refuse(*predict, "--keep", "note")[0]
    file = ("predict", place / "run", place / "train.csv", tmp_path / "out.csv")
    assert "has no column 'old'" in refuse(*file, "--keep", "age,old")[0]
    assert not any(tmp_path.iterdir())


def test_predict__no_cell_of_a_column_is_read_though_bad_cells_are_skipped(tmp_path, place, caplog):
    rows = people(30, seed=1).astype({"age": object})
    rows["age"] = [f"{age} years" for age in rows["age"]]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    predict = ("predict", place / "run", tmp_path / "rows.csv", tmp_path / "out.csv", "--skip-bad")
    problem, fix = refuse(*predict)
    assert "Column 'age'" in problem
    assert "with the same --sql" in fix
    assert not (tmp_path / "out.csv").exists()
    rows["age"] = [30, *rows["age"][1:]]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    succeed(*predict)
    assert "column age has 29 cells that count as missing values" in caplog.text


def test_predict__new_files_have_the_encoding_of_the_training_rows_or_their_own(tmp_path):
    # Rows of unknown towns are u.
    text = "town,y\n" + "Köln,v\nBonn,u\n" * 60
    (tmp_path / "latin.csv").write_bytes(text.encode("latin-1"))
    (tmp_path / "new.csv").write_text(text)
    label = ("--label", "y", "--encoding", "latin-1")
    succeed("ingest", tmp_path / "latin.csv", tmp_path / "data", *label)
    succeed("fit", tmp_path / "data", tmp_path / "run", "--alpha", 1e-3)
    for name, options in (("latin.csv", ()), ("new.csv", ("--encoding", "utf-8"))):
        assert json_of("evaluate", tmp_path / "run", tmp_path / name, *options)["error_rate"] == 0
        succeed("predict", tmp_path / "run", tmp_path / name, tmp_path / f"of-{name}", *options)
        predicted = pd.read_csv(tmp_path / f"of-{name}")
        assert predicted.iloc[:2, 0].tolist() == ["v", "u"]
