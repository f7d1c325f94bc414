"""What a process loads before its first line: names and commands bring what they need, no more."""

import ast
import json
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest

import dask_nrbfn
from dask_nrbfn.cli import commands
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.params import FitParams
from tests.tables import spirals, write_table

PACKAGES = ("dask_nrbfn", "dask_nrbfn.engine")

HEAVY = {
    "distributed",
    "jinja2",
    "matplotlib",
    "pyarrow",
    "pynndescent",
    "sklearn",
}
# Next to nothing is computed by what prints a page of help or a stored record.
COMPUTING = {"dask", "numba", "pandas", "scipy"}

PRINT_LOADED = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
SEVERAL = """
import json
from dask_nrbfn.cli import commands
for arguments in json.loads(sys.argv[1]):
    commands.main(arguments, standalone_mode=False)
"""
HELP_OF_ALL = """
import dask_nrbfn
dask_nrbfn.FitParams(), dask_nrbfn.NRBFNError
assert "click" not in sys.modules
from dask_nrbfn.cli import commands
commands.main(["--help"], standalone_mode=False)
for name in commands.commands:
    commands.main([name, "--help"], standalone_mode=False)
"""


def loaded(code, *arguments):
    """Return the modules that a fresh process has when it ends, and what it printed."""
    process = subprocess.run(
        [sys.executable, "-c", PRINT_LOADED + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return set(process.stderr.split()), process.stdout


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Directory with a dataset and a run."""
    place = tmp_path_factory.mktemp("start")
    dataset = write_table(place / "data", *spirals(60), chunk_rows=30)
    fit_dataset(dataset, place / "run", FitParams(n_neighbors=5), InlineEngine())
    return place


def test_start__help_of_every_command():
    modules, out = loaded(HELP_OF_ALL)
    assert not modules & (HEAVY | COMPUTING | {"numpy", "zarr"})
    assert out.count("Usage: ") == len(commands.commands) + 1
    for name, command in commands.commands.items():
        shown = command.get_short_help_str(limit=40).removesuffix("...")
        assert f"  {name} " in out
        assert shown in " ".join(out.split())


def test_start__inspect_and_the_log_of_a_cluster_that_is_loaded_later(fitted):
    code = (
        "import logging\n"
        "from dask_nrbfn.cli import commands\n"
        f"for path in {[str(fitted / name) for name in ('data', 'run')]!r}:\n"
        "    commands.main(['inspect', path], standalone_mode=False)\n"
        f"assert not {HEAVY | COMPUTING!r} & {{*sys.modules}}\n"
        "import distributed\n"
        "logging.getLogger('distributed.scheduler').info('noise')\n"
        "logging.getLogger('distributed.scheduler').warning('trouble')\n"
        "logging.getLogger('dask_nrbfn.engine').info('work')\n"
    )
    words, out = loaded(code)
    assert out.count("n_rows             60") == 2
    assert words >= {"trouble", "work"}
    assert "noise" not in words


@pytest.mark.slow
def test_start__new_rows_need_no_neighbours_and_no_charts(fitted, tmp_path):
    run, more = shutil.copytree(fitted / "run", tmp_path / "run"), tmp_path / "more"
    write_table(more, *spirals(60, seed=1), chunk_rows=30)
    calls = ("evaluate", run, more), ("predict", run, more, tmp_path / "out"), ("update", run, more)
    modules, _ = loaded(SEVERAL, json.dumps([[*map(str, call)] for call in calls]))
    assert "dask_nrbfn.report.console" in modules
    assert not modules & {
        "pandas",
        "pynndescent",
        "sklearn",
        "matplotlib",
        "dask_nrbfn.report.page",
    }


@pytest.mark.slow
def test_start__two_threads_load_parts_of_scikit_learn():
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from threading import Barrier\n"
        "import numpy as np\n"
        "from dask_nrbfn.neighbors.partition import Partitions, cluster_means\n"
        "rows, both = np.eye(9), Barrier(2)\n"
        "partitions = Partitions(rows, np.zeros(9), np.ones(9))\n"
        "def route():\n"
        "    both.wait()\n"
        "    return partitions.route(rows, overlap=2)\n"
        "def cluster():\n"
        "    both.wait()\n"
        "    return cluster_means(rows, 3, seed=0)\n"
        "with ThreadPoolExecutor(2) as pool:\n"
        "    tasks = [pool.submit(route), pool.submit(cluster)]\n"
        "print([len(task.result()) for task in tasks])\n"
    )
    modules, out = loaded(code)
    assert out == "[9, 3]\n"
    assert "sklearn" in modules


@pytest.mark.slow
def test_start__ingest_loads_the_library_of_its_format_only(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("a,b\n1,2\n3,4\n")
    code = "from dask_nrbfn.cli import main; main()"
    modules, _ = loaded(code, "--quiet", "ingest", table, tmp_path / "rows")
    assert "pyarrow" in modules
    assert not modules & (HEAVY - {"pyarrow"})


@pytest.mark.parametrize("package", PACKAGES)
def test_lazy__names_are_no_modules(package):
    module = import_module(package)
    assert len(module.__all__) > 3
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
        assert name in dir(module)
    # The import system would put a module of that name in its place.
    assert not {path.stem for path in Path(module.__file__).parent.iterdir()} & {*module.__all__}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'fit_datset'"):
        _ = module.fit_datset


@pytest.mark.parametrize("package", PACKAGES)
def test_lazy__type_checkers_see_the_same_names(package):
    module = import_module(package)
    tree = ast.parse(Path(module.__file__).read_text())
    (for_types,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: line.module
        for line in for_types.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert sorted(seen) == module.__all__
    for name, home in seen.items():
        assert getattr(module, name) is getattr(import_module(home), name)


def test_package__says_that_it_is_typed():
    assert files(dask_nrbfn).joinpath("py.typed").is_file()
