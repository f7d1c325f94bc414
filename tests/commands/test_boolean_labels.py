"""Labels that are true and false, from the rows to their predictions."""

import numpy as np
import pandas as pd
import pytest

from dask_nrbfn import (
    fit_dataset,
    refresh_run,
)
from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.params import FitParams
from tests.cli.program import json_of, succeed
from tests.tables import spirals

X, Y = spirals(120)
TRUTH = Y > 0
PARAMS = FitParams(basis="random", basis_size=30, alpha=1e-6)
ENGINE = InlineEngine()


def test_csv__labels_come_back_as_true_and_false(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=TRUTH)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    data, run = tmp_path / "data", tmp_path / "run"
    assert json_of("ingest", tmp_path / "rows.csv", data, "--label", "y")["classes"] == [
        False,
        True,
    ]
    succeed("fit", data, run, "--alpha", 1e-6)
    predict = ("predict", run, tmp_path / "rows.csv", "--probabilities")
    succeed(*predict, tmp_path / "out.csv")
    succeed(*predict, tmp_path / "out.parquet")
    found = pd.read_csv(tmp_path / "out.csv", dtype=str)
    assert {*found["prediction"]} == {"false", "true"}
    assert found.columns.tolist() == ["prediction", "probability_False", "probability_True"]
    typed = pd.read_parquet(tmp_path / "out.parquet")["prediction"]
    assert typed.dtype == bool
    assert np.mean(typed == TRUTH) > 0.9
    assert found["prediction"].tolist() == typed.astype(str).str.lower().tolist()
    assert json_of("evaluate", run, data)["n_errors"] == np.sum(typed != TRUTH)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("others", ["truth", "numbers", "further"])
def test_refresh__several_datasets_keep_truth(tmp_path, others):
    later = {"truth": TRUTH, "numbers": TRUTH.astype(int), "further": TRUTH + 1}[others]
    halves = [
        ingest_arrays(X[rows], labels[rows], tmp_path / f"{rows.start}")
        for rows, labels in ((slice(0, 60), TRUTH), (slice(60, 120), later))
    ]
    fit_dataset(halves[0], tmp_path / "run", PARAMS, ENGINE)
    refreshed = refresh_run(tmp_path / "run", halves, ENGINE)
    assert refreshed.read("model/classes").dtype == (np.int64 if others == "further" else bool)
