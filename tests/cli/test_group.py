"""Errors name what was typed: options on the command line, parameters in Python."""

import re

import click
import pytest
from click.testing import CliRunner

from dask_nrbfn import EngineOptions, FitParams, NRBFNError, fit_dataset
from dask_nrbfn.cli import commands
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.sources.options import IngestOptions
from tests.cli.program import refuse
from tests.tables import spirals, write_table


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    place = tmp_path_factory.mktemp("spelling") / "data.zarr"
    return write_table(place, *spirals(120))


@pytest.mark.parametrize(
    ("option", "value", "parameters"),
    [
        ("--alpha", 2, {"alpha": 2}),
        ("--n-neighbors", 500, {"n_neighbors": 500}),
        ("--confidence-threshold", 0, {"confidence_threshold": 0}),
    ],
)
def test_spelling__parameters_of_a_fit(dataset, tmp_path, option, value, parameters):
    problem, fix = refuse("fit", dataset.location, tmp_path / "run", option, value)
    (name,) = parameters
    assert re.search(rf"(^| ){option}[ =]", problem)
    assert name not in (problem + fix).replace(option, "")
    with pytest.raises(NRBFNError) as caught:
        fit_dataset(dataset, tmp_path / "run", FitParams(**parameters), InlineEngine())
    assert re.search(rf"(^| ){name}[ =]", str(caught.value))
    assert "--" not in str(caught.value)
    assert "`" not in str(caught.value)


def test_spelling__advice_names_options_too(dataset, tmp_path):
    fit = ("fit", dataset.location, tmp_path / "run")
    problem, fix = refuse(*fit, "--penalty", "kernel")
    assert "--features is normalized" in problem
    assert "--features=plain" in fix


def test_spelling__parameters_of_the_engine(dataset, tmp_path):
    for option, value in (("--memory", "4 parsecs"), ("--workers", -1), ("--threads", 0)):
        problem, _ = refuse("fit", dataset.location, tmp_path / "run", option, value)
        assert problem.startswith(f"{option} is ")
    with pytest.raises(NRBFNError, match=r"^memory is '4 parsecs'\."):
        EngineOptions(memory="4 parsecs")


def test_spelling__option_of_another_command_is_named_with_it(tmp_path):
    unlabelled = write_table(tmp_path / "data.zarr", spirals(60)[0], None).location
    problem, fix = refuse("fit", unlabelled, tmp_path / "run")
    assert "has no labels" in problem
    assert "ingest --label" in fix
    assert "ingest --y" in fix


def test_spelling__an_option_is_its_name_in_python():
    """But for what only the command line has."""
    for command in commands.commands.values():
        for param in command.params:
            if isinstance(param, click.Option) and param.name != "as_json":
                assert param.opts == [f"--{param.name.replace('_', '-')}"]


@pytest.mark.parametrize("arguments", [["-h"], ["fit", "-h"]])
def test_help__short(arguments):
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 0
    assert "-h, --help" in result.stdout


def test_help__of_ingest_has_every_definition():
    shown = " ".join(CliRunner().invoke(commands, ["ingest", "--help"]).stdout.split())
    for name, option in IngestOptions.options().items():
        text, _, _ = option.help.partition("`")
        assert f"--{name.replace('_', '-')} {option.placeholder}".strip() in shown
        assert text.strip() in shown
        assert option.default in (None, False) or f"[default: {option.default_text}]" in shown


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--missing", "some", "--missing is 'some'.\n  fix: Give one of error, drop, impute."),
        ("--max-categories", "0", "--max-categories is 0.\n  fix: Give an integer of at least 1."),
        (
            "--chunk-rows",
            "x",
            "--chunk-rows is 'x'.\n  fix: Give an integer of at least 1, or",
        ),
    ],
)
def test_ingest__value_that_an_option_does_not_allow(option, value, message):
    result = CliRunner().invoke(commands, ["ingest", "a.csv", "b.zarr", option, value])
    assert result.exit_code == 2
    assert message in result.stderr
