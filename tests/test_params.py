"""What the definition of a parameter is good for."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitLimits, FitParams, Option, TuneParams
from tests.tables import spirals, write_table

ROOT = Path(__file__).parents[1]

NUMBER = Option(0.5, float, "", above=0, most=1)
COUNT = Option(None, int, "", least=2, none="all")
WORD = Option("a", str, "", choices=("a", "b"), prefix="x:", hint="f names it")
LIST = Option((1.0, 2.0), float, "", least=-1, several=True)

CHOICES = "Give one of a, b; f names it."
BAD = [
    (NUMBER, 0, "p is 0. Give a number above 0 and at most 1."),
    (NUMBER, np.nan, "p is nan. Give a number above 0 and at most 1."),
    (NUMBER, True, "p is True. Give a number above 0 and at most 1."),
    (NUMBER, None, "p is None. Give a number above 0 and at most 1."),
    (COUNT, 1, "p is 1. Give an integer of at least 2, or leave p out."),
    (COUNT, 2.0, "p is 2.0. Give an integer of at least 2, or leave p out."),
    (WORD, "c", f"p is 'c'. {CHOICES}"),
    (WORD, None, f"p is None. {CHOICES}"),
    (WORD, np.ones((9, 9)), f"p is a ndarray. {CHOICES}"),
    (LIST, (), "p is (). Give a few values, each a number of at least -1."),
    (LIST, 1.0, "p is 1.0. Give a few values, each a number of at least -1."),
    (LIST, (0, -2), "p is -2. Give a few values, each a number of at least -1."),
    (LIST, None, "p is None. Give a few values, each a number of at least -1."),
]


@pytest.mark.parametrize(("option", "value", "message"), BAD)
def test_option__bad_values(option, value, message):
    with pytest.raises(ParameterError) as caught:
        option.check("p", value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (NUMBER, (1, 1e-300, np.float32(0.5))),
        (COUNT, (2, None, np.int8(3))),
        (WORD, ("a", "b", "x:anything")),
        (LIST, ((-1,), (np.float64(3.0), 4))),
    ],
)
def test_option__good_values(option, values):
    for value in values:
        option.check("p", value)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (NUMBER, "0.5"),
        (COUNT, "all"),
        (WORD, "a"),
        (LIST, "1,2"),
        (Option(tuple(range(9)), int, "", several=True), "0,1,...,8"),
    ],
)
def test_option__default_in_words(option, text):
    assert option.default_text == text


@pytest.mark.parametrize("kind", [FitParams, FitLimits, TuneParams])
def test_params__are_all_defined(kind):
    for name, option in kind.options().items():
        option.check(name, option.default)
        assert option.help.endswith(".")
        assert "\n" not in option.help
        assert getattr(kind(), name) == option.default


ONE_MORE = """
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from dask_nrbfn import params


@dataclass(frozen=True, kw_only=True)
class FitParams(params.FitParams):
    patience: int = params.option(3, int, "How often it waits.", least=1)


params.FitParams = FitParams

from dask_nrbfn import NRBFNError
from dask_nrbfn.storage.run import Run
from tests.cli.program import refuse, succeed

place, jobs = map(Path, sys.argv[1:])
sys.path.insert(0, str(jobs))
from settings import read_settings, spelled

QUICK = ("--basis", "random", "--basis-size", 9, "--alpha", 1e-6, "--workers", 0)


def fit(*options):
    return "fit", place / "data", place / "run", *QUICK, "--patience", *options


def settings(value):
    (place / "job.toml").write_text(f'''
        data.train.source = "a.csv"
        output.directory = "out"
        fit.patience = {value}
    ''')
    return read_settings(place / "job.toml")


told = {"help": succeed("fit", "--help"), "refused": refuse(*fit(0))}
succeed(*fit(5))
told |= {"stored": Run.open(place / "run").params.patience, "changed": refuse(*fit(6))}
told["key"] = settings(4).fit.patience
try:
    settings(0)
except NRBFNError as error:
    told["refused key"] = error.spelled(spelled)
print(json.dumps(told))
"""


@pytest.mark.slow
def test_params__one_more_is_one_field(tmp_path):
    write_table(tmp_path / "data", *spirals(60))
    process = subprocess.run(
        [sys.executable, "-c", ONE_MORE, str(tmp_path), str(ROOT / "workflows" / "jobs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    told = json.loads(process.stdout)
    assert "How often it waits.  [default: 3]" in " ".join(told["help"].split("\n"))
    assert "--patience INTEGER" in told["help"]
    remedy = "Give an integer of at least 1."
    assert told["refused"] == ["--patience is 0.", remedy]
    assert told["stored"] == 5
    assert "was begun with --patience=5 (now 6)." in told["changed"][0]
    assert told["key"] == 4
    assert told["refused key"] == ["[fit] patience is 0.", remedy]


@pytest.mark.parametrize(
    ("asked", "mixed", "scale"),
    [("auto", True, "standard"), ("auto", False, "none"), ("unit", True, "unit")],
)
def test_resolve_auto__scales_features_of_several_kinds(asked, mixed, scale):
    assert FitParams(scale=asked).resolve_auto(numbers=False, mixed=mixed).scale == scale
