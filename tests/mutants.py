"""Draws faults in the code, and prints those that the fast tests of their room do not notice.

`python -m tests.mutants --seed 0 --most 100` tries them one after the other in a temporary copy.
"""

import ast
import os
import random
import shutil
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import click
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dask_nrbfn"
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "*.zarr")
LOADED = ("distributed", "duckdb", "hypothesis", "numba", "pandas", "sklearn.neighbors", "zarr")
# Tests that take longer hang because of the fault.
LIMIT_S = 400

NUMERIC = ("moments", "held_out", "ridge", "ridge_path", "risk", "calibration", "sums", "products")
NUMERIC += ("trials",)
FILES = {
    "root": ("parts.py", "fit.py"),
    "storage": ("storage/*.py",),
    "engine": ("engine/*.py",),
    "numeric": tuple(f"numeric/{name}.py" for name in NUMERIC),
    "update": ("commands/update.py", "commands/change.py"),
    "search": ("stages/search.py", "stages/units.py", "stages/trials.py"),
    "costs": ("stages/*.py",),
}
# Parts of names at the top of the files of `stages` that make up the costs.
COSTS = ("cost", "Cost", "FitSizes", "Clock", "expected_s", "worker_bytes", "_MARGIN", "_PART_S")
COSTS += ("_COPIES",)

# Faults that no test can notice, as they are printed, with the reason.
EQUIVALENT = {
    "parts.py: span: tuple[int, int] = ([0 -> 1], 0),": "the sum of a family has no span",
    "parts.py: span: tuple[int, int] = (0, [0 -> 1]),": "the sum of a family has no span",
    "parts.py: [del records[member] -> pass]": "nothing looks for the sum of a member again",
    "storage/run.py: parts = parts_in(inner[1]) if inner[[1 -> 2]:] and inner[0] "
    '== "parts" else ()': "a damaged array is below its part",
    "storage/array.py: ends = (ends - first).astype(columns.dtype if last - first < 2**[31 -> 32] "
    "else np.int64)": "nobody reads 2^31 values at a time in a test",
    "engine/tasks.py: if [now - looked > _LOOK_INTERVAL_S -> (now - looked >= "
    "_LOOK_INTERVAL_S)]:": "no time between two looks is exactly the interval",
    "engine/tasks.py: time.sleep([0.1 -> 0.2])": "how soon a lost result is looked at again",
    "numeric/calibration.py: at_most = (factors >= _MOST_FACTORS) & ([slopes < 0 -> "
    "(slopes <= 0)])": "a gradient at a bound is not exactly 0",
    "numeric/held_out.py: near = slice(max(best - [3 -> 4], 0), best + 4)": (
        "one more point of the grid changes the spline less than its error"
    ),
    "numeric/ridge.py: ILL_CONDITIONED = [10 -> 11] * float(np.finfo(np.float64).eps)": (
        "a round number of rounding errors, before a warning"
    ),
    "stages/search.py: if search.job.left_s() < [0 -> 1]:": "a second more or less is left",
    "stages/search.py: if first and search.job.left_s() > [0 -> 1]:": (
        "a second more or less is left"
    ),
    "stages/search.py: return bool(self.job.left_s(chosen, [trial]) > [0 -> 1])": (
        "a second more or less is left"
    ),
    'stages/search.py: clustering = _MOVES * n_rows * rounds[-1].n_basis if "kmeans" in '
    "spec.bases else [0 -> 1]": "one exponential more",
    "numeric/calibration.py: start[0] = [1.0 / temperature -> (1.0 * temperature)]": (
        "where a convex minimization starts"
    ),
    "stages/search.py: if [search.job.left_s() < 0 -> (search.job.left_s() <= 0)]:": (
        "the time left is not exactly 0"
    ),
}

PAIRS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitOr, ast.BitAnd)),
    (ast.And, ast.Or),
)
SWAPPED = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
DELETED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue)


class Fault(NamedTuple):
    group: str
    path: Path
    source: bytes
    start: int
    stop: int
    after: str

    @property
    def line(self):
        return self.source.count(b"\n", 0, self.start) + 1

    @property
    def faulty(self):
        return self.source[: self.start] + self.after.encode() + self.source[self.stop :]

    def __str__(self):
        """Return the file, and its line with what the fault replaces."""
        first = self.source.rfind(b"\n", 0, self.start) + 1
        pieces = (first, self.start), (self.start, self.stop), (self.stop, None)
        around, before, rest = (self.source[slice(*piece)].decode() for piece in pieces)
        line = f"{around}[{before} -> {self.after}]{rest.partition(chr(10))[0]}"
        return f"{self.path.relative_to(PACKAGE)}: {' '.join(line.split())}"


def faulty(node):
    """Return the source of a node with a fault; None if there is no fault for such a node."""
    match node:
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.Constant(value=int(value)):
            return repr(value + 1)
        case ast.Constant(value=float(value)):
            return repr(value * (10_000 if value < 1e-3 else 2) or 1.0)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return f"({ast.unparse(node.operand)})"
        case ast.Compare(ops=[operator]) if type(operator) in SWAPPED:
            node = ast.Compare(node.left, [SWAPPED[type(operator)]()], node.comparators)
        case ast.BinOp() if type(node.op) in SWAPPED:
            node = ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        case ast.BoolOp():
            node = ast.BoolOp(SWAPPED[type(node.op)](), node.values)
        case ast.Expr(value=ast.Constant()):
            return None
        case _:
            deleted = isinstance(node, DELETED) and "logger." not in ast.unparse(node)
            return "pass" if deleted else None
    return f"({ast.unparse(node)})"


def nodes_below(parent):
    """Yield the nodes that a fault may change: no types, decorators, texts or `strict=True`."""
    for name, value in ast.iter_fields(parent):
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            checks = isinstance(node, ast.keyword) and node.arg == "strict"
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr) and not checks:
                yield node
                yield from nodes_below(node)


def faults_of(group, path):
    """Yield all faults of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for top in ast.parse(source).body:
        names = " ".join([getattr(top, "name", ""), *map(ast.unparse, getattr(top, "targets", ()))])
        of_costs = any(part in names for part in COSTS)
        if path.parent.name == "stages" and of_costs != (group == "costs"):
            continue
        for node in (top, *nodes_below(top)):
            if (after := faulty(node)) is not None:
                start = starts[node.lineno - 1] + node.col_offset
                stop = starts[node.end_lineno - 1] + node.end_col_offset
                yield Fault(group, path, source, start, stop, after)


def drawn(seed, most):
    """Return about as many faults of every group, in a drawn order."""
    rng, groups = random.Random(seed), {}
    for group, patterns in FILES.items():
        paths = sorted(path for pattern in patterns for path in PACKAGE.glob(pattern))
        own = [fault for path in paths for fault in faults_of(group, path)]
        groups[group] = rng.sample(own, len(own))
    in_turn = [fault for turn in zip(*groups.values(), strict=False) for fault in turn]
    return [fault for fault in in_turn if str(fault) not in EQUIVALENT][:most]


def tests_for(fault):
    """Return the tests of a room: those of the file, those that know its module, and the others."""
    path, room = fault.path, fault.path.parent.relative_to(PACKAGE)
    module, names = ".".join((*room.parts, path.stem)), {f"test_{path.stem}", f"test_{fault.group}"}
    pattern = "test_*.py" if room.parts else f"test_{path.name}"
    steps = [[], [], []]
    for test in sorted((ROOT / "tests" / room).glob(pattern)):
        own, knows = test.stem in names, f".{module} " in test.read_text()
        steps[0 if own else 1 if knows else 2].append(str(test.relative_to(ROOT)))
    return [step for step in steps if step]


def fails(tests, copy):
    """Return whether tests of a copy of the checkout fail, or hang, in a process of their own."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] != 0
    status = 1
    try:
        status = test_in_this_process(tests, copy)
    finally:
        os._exit(status)


def test_in_this_process(tests, copy):
    os.chdir(copy)
    os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
    # Neither the tests nor their workers may see this module.
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    signal.alarm(LIMIT_S)
    options = ["-qx", "-p", "no:cacheprovider", "--timeout=100", "--hypothesis-seed=0"]
    # Of plugins that are loaded already.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main([*options, *tests])


def is_killed(fault, copy):
    """Return whether a test of the room notices a fault in a copy of the checkout."""
    path = copy / fault.path.relative_to(ROOT)
    path.write_bytes(fault.faulty)
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    killed = any(fails(tests, copy) for tests in tests_for(fault))
    path.write_bytes(fault.source)
    return killed


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True)
@click.option("--most", default=100, show_default=True, help="Faults to draw.")
def main(seed, most):
    # What takes long to load is loaded once, and is there in every forked process.
    for name in LOADED:
        import_module(name)
    killed = {group: [] for group in FILES}
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(ROOT, Path(place) / "copy", ignore=NOT_COPIED)
        for fault in drawn(seed, most):
            found = is_killed(fault, copy)
            killed[fault.group].append(found)
            click.echo(f"{'killed' if found else 'SURVIVED':9}line {fault.line} of {fault}")
    killed["all"] = [found for group in killed.values() for found in group]
    click.echo(f"{'':10}{'drawn':>9}{'killed':>9}{'survived':>9}")
    for group, found in killed.items():
        numbers = len(found), sum(found), len(found) - sum(found)
        click.echo(f"{group:10}" + "".join(f"{number:9}" for number in numbers))


if __name__ == "__main__":
    main()
