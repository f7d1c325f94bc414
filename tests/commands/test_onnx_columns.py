"""ONNX files whose inputs are the columns of a table give what the program gives for its rows."""

import csv
import inspect
import json
import math
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest

from dask_nrbfn import NRBFNClassifier, NRBFNRegressor
from dask_nrbfn.commands.onnx_model import export_onnx
from dask_nrbfn.errors import ParameterError
from tests.cli.program import json_of, succeed
from tests.tables import spirals

BASIS = ("--basis", "random", "--basis-size", 40, "--alpha", 1e-4)
TARGETS = ("kind", "price")


def drawn_rows(n_rows, *, seed, gaps):
    """Return rows of texts with columns of every kind; new rows have unknown categories."""
    rng = np.random.default_rng(seed)
    # Few years have days of the week; dates of birth have none.
    seconds = rng.integers(-(10**8), 8 * 10**8, n_rows)
    times = seconds.astype("datetime64[s]").astype("datetime64[ms]") + np.timedelta64(250, "ms")
    sizes = ["S", "M", "L"] if seed == 0 else ["S", "M", "L", "XL", "m"]
    amounts, counts = rng.normal(1e5, 1e3, n_rows), rng.integers(0, 50, n_rows)
    rare = ["rare 1", "rare 2"] if seed == 0 else ["rare 1", "unknown"]
    shares = [0.3, 0.3, 0.3, 0.05, 0.05]
    shops = rng.choice(["north", " south ", "east", *rare], n_rows, p=shares)
    kinds = np.where((amounts > 1e5) == (shops == "north"), "a", "b")
    columns = {
        "amount": [f"{amount:.3f}" for amount in amounts],
        "count": counts.astype(str),
        "member": rng.choice(["true", "false"], n_rows),
        "shop": shops,
        "Größe, cm": rng.choice(sizes, n_rows),
        "code": rng.choice(["7", "12", "130"], n_rows),
        "since": np.datetime_as_string(times),
        "born": np.datetime_as_string(
            (3 * seconds).astype("datetime64[s]").astype("datetime64[D]")
        ),
        # Names of outputs, and what the first could become.
        "label": [f"{number:.4f}" for number in rng.normal(size=n_rows)],
        "_label": counts[::-1].astype(str),
        "values": rng.normal(size=n_rows).astype(str),
    }
    marks = {"amount": "NA", "shop": "?", "since": "", "member": "", "_label": "NA"}
    if seed:
        # Training has none of these.
        marks |= {"Größe, cm": "", "count": "NA"}
    for name, mark in marks.items():
        columns[name] = np.where(gaps & (rng.random(n_rows) < 0.15), mark, columns[name])
    targets = {"kind": kinds, "price": [f"{each:.3f}" for each in amounts + 50 * counts]}
    return pd.DataFrame({**columns, **(targets if seed == 0 else {})}, dtype=str)


def feeds(path, session):
    """Return the inputs of a graph from the cells of a CSV file; the marks of texts stay."""
    described = json.loads(session.get_modelmeta().custom_metadata_map["inputs"])
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    fed = {}
    for each in session.get_inputs():
        own = described[each.name]
        texts = [row[own["column"]].strip() for row in rows]
        cells = ["" if text in ("NA", "?") else text for text in texts]
        if own["kind"] == "category":
            values = np.array(texts, dtype=object)
        elif own["kind"] == "date":
            days = np.array(cells, dtype="datetime64[us]") - np.datetime64(0, "us")
            values = days / np.timedelta64(1, "D")
        elif own["kind"] == "boolean":
            values = np.array([{"true": 1.0, "false": 0.0, "": math.nan}[cell] for cell in cells])
        else:
            values = np.array([float(cell or "nan") for cell in cells])
        if each.type == "tensor(float)":
            values = values.astype(np.float32)
        fed[each.name] = values[:, None]
    return fed


def session_of(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def results_of(graph, path):
    session = session_of(graph)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds(path, session)), strict=True))


def card_of(path):
    card = session_of(path).get_modelmeta().custom_metadata_map
    return {name: json.loads(text) for name, text in card.items()}


def fit(place, missing, target):
    other = next(name for name in TARGETS if name != target)
    role = "--label" if target == "kind" else "--target"
    reading = (role, target, "--drop", other, "--categorical", "code", "--max-categories", 3)
    data, run = place / f"{missing}-{target}", place / f"{missing}-{target}.run"
    succeed("ingest", place / "rows.csv", data, *reading, "--missing", missing)
    succeed("fit", data, run, *BASIS)
    return run


def predicted(run, rows, place):
    """Return the label or number and the scores that the program predicts, NaN where it skips."""
    scores = () if "price" in run.name else ("--scores",)
    out = place / f"{run.name}.parquet"
    succeed("predict", run, rows, out, "--skip-bad", "--overwrite", *scores)
    frame = pd.read_parquet(out)
    return frame.iloc[:, 0], frame.filter(like="score_").to_numpy()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("columns")
    drawn_rows(300, seed=0, gaps=True).to_csv(place / "rows.csv", index=False)
    drawn_rows(200, seed=1, gaps=True).to_csv(place / "new.csv", index=False)
    return place


@pytest.fixture(scope="module")
def filled(place):
    return fit(place, "impute", "kind")


def test_columns__classes_of_every_kind_of_column(filled, place, tmp_path):
    record = json_of("export", filled, tmp_path / "model.onnx")
    names = drawn_rows(1, seed=1, gaps=False).columns
    clear = {"label": "__label"}
    assert record["inputs"] == [clear.get(name, name) for name in names]
    assert {*record["schema"]["columns"]} == {*names}
    labels, scores = predicted(filled, place / "new.csv", place)
    given = results_of(tmp_path / "model.onnx", place / "new.csv")
    np.testing.assert_allclose(given["scores"], scores, rtol=0, atol=1e-9)
    assert np.isfinite(scores).all()
    assert given["label"].tolist() == labels.tolist()
    assert np.ptp(scores, axis=0).min() > 0.1


def test_columns__float32_keeps_the_time_of_day(filled, place, tmp_path):
    path = tmp_path / "model.onnx"
    json_of("export", filled, path, "--dtype", "float32")
    types = {each.name: each.type for each in session_of(path).get_inputs()}
    assert types["since"] == types["born"] == "tensor(double)"
    assert types["amount"] == types["member"] == "tensor(float)"
    _, scores = predicted(filled, place / "new.csv", place)
    given = results_of(path, place / "new.csv")
    assert given["scores"].dtype == np.float32
    assert 0.0 < np.abs(given["scores"] - scores).max() < min(1e-4, card_of(path)["rounding"])


def test_columns__no_cosine_which_onnxruntime_1_20_lacks_in_float64(filled, tmp_path):
    json_of("export", filled, tmp_path / "model.onnx")
    operators = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert operators.count("Sin") == 8
    assert "Cos" not in operators


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_columns__a_row_with_a_gap_has_no_result_where_gaps_are_not_filled(missing, tmp_path):
    drawn_rows(200, seed=0, gaps=missing == "drop").to_csv(tmp_path / "rows.csv", index=False)
    drawn_rows(200, seed=1, gaps=True).to_csv(tmp_path / "new.csv", index=False)
    run = fit(tmp_path, missing, "kind")
    json_of("export", run, tmp_path / "model.onnx")
    labels, scores = predicted(run, tmp_path / "new.csv", tmp_path)
    given = results_of(tmp_path / "model.onnx", tmp_path / "new.csv")
    # Equal where both are NaN.
    np.testing.assert_allclose(given["scores"], scores, rtol=0, atol=1e-9)
    known = ~np.isnan(scores[:, 0])
    assert 20 < known.sum() < 180
    assert given["label"][known].tolist() == labels[known].tolist()
    assert (np.isnan(given["probabilities"]).all(axis=1) == ~known).all()


def test_columns__a_regression(place, tmp_path):
    run = fit(place, "impute", "price")
    record = json_of("export", run, tmp_path / "model.onnx")
    assert record["outputs"] == ["values"]
    assert {"label", "_label", "_values"} <= {*record["inputs"]}
    numbers, _ = predicted(run, place / "new.csv", place)
    given = results_of(tmp_path / "model.onnx", place / "new.csv")
    np.testing.assert_allclose(given["values"][:, 0], numbers, rtol=1e-9)


ALONE = """
import csv, json, math, sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dask_nrbfn", "pandas", "duckdb", "zarr", "dask"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import numpy as np, onnxruntime
"""


def test_columns__a_process_without_this_package(filled, place, tmp_path):
    json_of("export", filled, tmp_path / "model.onnx")
    call = f"""
session = onnxruntime.InferenceSession({str(tmp_path / "model.onnx")!r})
scores = session.run(["scores"], feeds({str(place / "new.csv")!r}, session))[0]
try:
    import dask_nrbfn
except ImportError:
    print(json.dumps(scores.tolist()))
"""
    program = ALONE + inspect.getsource(feeds) + call
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, scores = predicted(filled, place / "new.csv", place)
    np.testing.assert_allclose(json.loads(done.stdout), scores, rtol=0, atol=1e-9)


def test_columns__the_card_says_how_each_is_filled(filled, tmp_path):
    json_of("export", filled, tmp_path / "model.onnx")
    inputs = card_of(tmp_path / "model.onnx")["inputs"]
    assert inputs["amount"] == {"column": "amount", "kind": "number"}
    assert inputs["since"] == {"column": "since", "kind": "date"}
    assert inputs["__label"] == {"column": "label", "kind": "number"}
    shop = inputs["shop"]
    assert (shop["categories"], shop["others"]) == (["east", "north", "south"], True)
    assert shop["missing"][:3] == ["", "?", "NA"]
    code = inputs["code"]
    assert (code["categories"], code["others"]) == (["12", "130", "7"], False)


def frame_of(n_rows, seed, texts):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"wide": rng.normal(size=n_rows), "text": rng.choice(texts, n_rows)},
    )


def given_for(path, frame):
    fed = {"wide": frame[["wide"]].to_numpy(), "text": frame[["text"]].to_numpy(dtype=object)}
    return session_of(path).run(None, fed)


def test_columns__a_category_that_reads_like_a_gap(tmp_path):
    frame = frame_of(120, 0, ["NA", "None", "b"])
    y = (frame["wide"] + (frame["text"] == "NA") > 0.5).astype(int)
    network = NRBFNClassifier(basis_size=30, alpha=1e-4).fit(frame, y)
    network.to_onnx(tmp_path / "model.onnx")
    new = frame_of(50, 1, ["NA", "None", "b", "unknown"])
    _, _, probabilities = given_for(tmp_path / "model.onnx", new)
    np.testing.assert_allclose(probabilities, network.predict_proba(new), rtol=0, atol=1e-9)
    assert "NA" not in card_of(tmp_path / "model.onnx")["inputs"]["text"]["missing"]


def test_columns__texts_that_ingest_was_told_are_gaps(tmp_path):
    frame = frame_of(120, 0, ["b", "c", "-"])
    frame.assign(y=frame["wide"] > 0).to_csv(tmp_path / "rows.csv", index=False)
    reading = ("--label", "y", "--missing", "impute", "--missing-values", "-,none")
    succeed("ingest", tmp_path / "rows.csv", tmp_path / "data", *reading)
    succeed("fit", tmp_path / "data", tmp_path / "run", *BASIS)
    json_of("export", tmp_path / "run", tmp_path / "model.onnx")
    new = frame_of(60, 1, ["b", "-", "none", "", "NA"])
    new.to_csv(tmp_path / "new.csv", index=False)
    _, scores = predicted(tmp_path / "run", tmp_path / "new.csv", tmp_path)
    _, given, _ = given_for(tmp_path / "model.onnx", new)
    np.testing.assert_allclose(given, scores, rtol=0, atol=1e-9)


def test_inputs__features_of_a_table(filled, tmp_path):
    record = json_of("export", filled, tmp_path / "model.onnx", "--inputs", "features")
    assert record["inputs"] == ["X"]
    assert "inputs" not in card_of(tmp_path / "model.onnx")


def test_inputs__columns_of_numbers_are_features_unless_asked(tmp_path):
    X, Y = spirals(80)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    network = NRBFNRegressor(basis_size=20, alpha=1e-4).fit(frame, X[:, 0] + Y)
    network.to_onnx(tmp_path / "features.onnx")
    network.to_onnx(tmp_path / "columns.onnx", inputs="columns")
    (of_features,) = session_of(tmp_path / "features.onnx").run(None, {"X": X})
    fed = {name: frame[[name]].to_numpy() for name in frame}
    (of_columns,) = session_of(tmp_path / "columns.onnx").run(None, fed)
    np.testing.assert_array_equal(of_columns, of_features)
    np.testing.assert_allclose(of_columns[:, 0], network.predict(frame), rtol=1e-9)


def test_inputs__columns_without_names(tmp_path):
    X, y = spirals(80)
    network = NRBFNClassifier(basis_size=20, alpha=1e-4).fit(X, y)
    with pytest.raises(ParameterError, match="had no names"):
        network.to_onnx(tmp_path / "model.onnx", inputs="columns")


def test_inputs__a_word_that_is_no_choice(filled, tmp_path):
    with pytest.raises(ParameterError, match="Give one of columns, features"):
        export_onnx(filled, tmp_path / "model.onnx", inputs="rows")
    assert not (tmp_path / "model.onnx").exists()
