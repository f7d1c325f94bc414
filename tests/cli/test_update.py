"""Commands that bring a run up to date."""

import pytest

from tests.cli.program import json_of, refuse, succeed
from tests.tables import spirals, write_table

FIT = ("--basis", "random", "--basis-size", 30, "--alpha", 1e-9, "--width-factor", 0.4)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Work in a directory with three datasets, a run of the first, and rows with wrong labels."""
    monkeypatch.chdir(tmp_path)
    X, y = spirals(360)
    for place, name in enumerate("abc"):
        write_table(name, X[place::3], y[place::3])
    write_table("wrong", X[:120] + 0.25, (y[:120] + 1) % 3)
    succeed("fit", "a", "run", *FIT)


@pytest.mark.usefixtures("place")
def test_update_and_forget():
    record = json_of("update", "run", "b")
    assert (record["version"], record["action"], record["n_rows"]) == (1, "add", 120)
    assert 0 <= record["new_error"] < 0.2
    problem, _ = refuse("update", "run", "b")
    assert "holds the rows of" in problem
    shown = succeed("update", "run", "b", "--forget")
    assert "action             forget\n" in shown
    known = json_of("inspect", "run")
    assert (known["version"], known["n_rows"], known["complete"]) == (2, 120, True)
    shown = succeed("inspect", "run")
    assert "version 1          add 120 rows of b, error of new rows 0." in shown
    assert "version 2          forget 120 rows of b, at 20" in shown


@pytest.mark.usefixtures("place")
def test_update__keeps_the_old_model_if_it_has_many_errors_on_the_new_rows():
    before, expected = json_of("inspect", "run"), json_of("evaluate", "run", "wrong")["error_rate"]
    problem, fix = refuse("update", "run", "wrong", "--max-new-error", 0.5)
    assert f"an error of {expected:.4g} on " in problem
    assert "--max-new-error" in fix
    assert json_of("inspect", "run") == before
    assert json_of("update", "run", "wrong", "--max-new-error", expected)["version"] == 1
    problem, _ = refuse("update", "run", "c", "--max-new-error", "nan")
    assert "only nan" in problem
    problem, _ = refuse("update", "run", "b", "--forget", "--max-new-error", 1)
    assert problem.startswith("--forget and --max-new-error")
