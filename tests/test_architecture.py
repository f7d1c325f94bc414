"""The rooms of the package import one way; what a room may know of the outside is fixed too."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "dask_nrbfn"

# What each room may import, beside itself. The package root is free, so nobody may import it.
_BASE = {"choices", "params", "errors"}
_BELOW_STAGES = _BASE | {"spec", "outputs", "numeric", "storage", "neighbors", "sources", "engine"}
_BELOW_STAGES |= {"weighting", "parts"}
ALLOWED = {
    "errors": set(),
    "choices": set(),
    "lazy": set(),
    "params": {"choices", "errors"},
    "outputs": {"errors"},
    "private": set(),
    "numeric": _BASE,
    "spec": _BASE | {"numeric"},
    "sources": {"errors", "params", "numeric"},
    "storage": _BASE | {"spec", "private", "outputs", "numeric", "sources"},
    "neighbors": _BASE | {"numeric"},
    "engine": _BASE | {"private", "lazy", "numeric"},
    "stages": _BELOW_STAGES,
    "weighting": _BASE | {"numeric", "storage"},
    "parts": {"errors", "numeric", "storage", "engine", "weighting"},
    "fit": _BELOW_STAGES | {"stages"},
    "scorer": {"numeric", "sources", "storage"},
    "commands": _BELOW_STAGES | {"stages", "fit", "scorer"},
    "estimators": _BELOW_STAGES | {"stages", "scorer", "commands"},
    "report": _BASE | {"outputs", "numeric", "storage", "stages", "fit", "commands"},
    "cli": _BELOW_STAGES | {"stages", "commands", "report"},
    "__main__": {"cli"},
}
WITHOUT_DASK = _BASE | {"lazy", "outputs", "numeric", "sources", "storage", "neighbors"}
NUMERIC_LIBRARIES = {"numba", "numpy", "scipy", "threadpoolctl"}
DEVICE_FILE, DEVICE_LIBRARIES = "numeric/device.py", {"cupy", "cupyx"}
PYNNDESCENT_FILE = "neighbors/approximate.py"
PRIVATE_FILE = "private.py"
PRIVATE_PREFIXES = ("zarr.core.", "distributed.comm.", "distributed.system.", "sklearn.metrics._")
# Most lines and files of each room: three per cent and one file more than it has at a release, so
# that a kernel, a stage or a format fits. A larger capability says what else of its room could go.
BUDGETS = {
    "root": (2360, 14),
    "numeric": (8100, 39),
    "neighbors": (1050, 7),
    "storage": (3390, 10),
    "engine": (940, 9),
    "sources": (4000, 18),
    "stages": (7180, 20),
    "commands": (4450, 15),
    "estimators": (1920, 9),
    "report": (1120, 8),
    "cli": (1180, 10),
}
LONGEST_FUNCTION, LONGEST_FILE = 60, 700
CATCH_ALL_NAMES = {"utils", "util", "helpers", "helper", "common", "lib", "misc"}


def violations(package):
    """Return one line for each rule that a file under `package` breaks."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        found += [f"{name}: {problem}" for problem in file_violations(path, package)]
    return found


def file_violations(path, package):
    relative = path.relative_to(package)
    for part in relative.with_suffix("").parts:
        if part in CATCH_ALL_NAMES:
            yield f"{part} says nothing about what is in it"
    source = path.read_text()
    if "pynndescent" in source.lower() and relative.as_posix() != PYNNDESCENT_FILE:
        yield f"pynndescent is known to {PYNNDESCENT_FILE} alone"
    room = relative.with_suffix("").parts[0]
    if room == "__init__":
        return
    if room not in ALLOWED:
        yield f"{room} is none of the rooms"
        return
    for line, module in imported_modules(ast.parse(source), relative, package):
        if f"{module}.".startswith(PRIVATE_PREFIXES) and relative.as_posix() != PRIVATE_FILE:
            yield f"line {line}: {module} is private, and known to {PRIVATE_FILE} alone"
        if module.split(".")[0] == package.name:
            target = room_of(module, package)
            if target not in {room} | ALLOWED[room]:
                yield f"line {line}: {room} must not import {target}"
        elif module.split(".")[0] in DEVICE_LIBRARIES:
            if relative.as_posix() != DEVICE_FILE:
                yield f"line {line}: CuPy is known to {DEVICE_FILE} alone"
        elif problem := foreign_problem(room, module.split(".")[0]):
            yield f"line {line}: {problem}"


def foreign_problem(room, library):
    if room in WITHOUT_DASK and library in {"dask", "distributed"}:
        return f"{room} must not import {library}"
    if room == "numeric" and library not in NUMERIC_LIBRARIES | sys.stdlib_module_names:
        return f"{room} must not import {library}"
    return None


def imported_modules(tree, relative, package):
    """Yield line and dotted name of every import at any depth, functions and type checks too."""
    here = [package.name, *relative.parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join(start + ([node.module] if node.module else []))
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = getattr(node.func, "attr", getattr(node.func, "id", None))
            if function in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def room_of(module, package):
    """Return the room that a dotted name lies in; a name of the package root is the root's."""
    parts = module.split(".")
    is_room = len(parts) > 1 and (
        parts[1] in ALLOWED
        or (package / parts[1]).is_dir()
        or (package / f"{parts[1]}.py").is_file()
    )
    return parts[1] if is_room else "the package root"


def module_graph(package):
    """Return the modules that each module imports, at any depth, by dotted names."""
    graph = {}
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        imported = imported_modules(ast.parse(path.read_text()), relative, package)
        graph[dotted(path, package)] = {module_of(name, package) for _, name in imported} - {None}
    return graph


def dotted(path, package):
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_of(name, package):
    """Return the module that a dotted name is, or is in; None if it is foreign."""
    parts = name.split(".")
    if parts[0] != package.name:
        return None
    while len(parts) > 1:
        place = package.joinpath(*parts[1:])
        if place.with_suffix(".py").is_file() or (place / "__init__.py").is_file():
            break
        parts.pop()
    return ".".join(parts)


def cycle(package):
    """Return modules that import each other in a circle; none if there is no circle."""
    try:
        TopologicalSorter(module_graph(package)).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_architecture__package():
    assert violations(PACKAGE) == []


def test_architecture__rooms_are_within_their_budgets():
    found = dict.fromkeys(BUDGETS, (0, 0))
    for path in PACKAGE.rglob("*.py"):
        room = "root" if path.parent == PACKAGE else path.relative_to(PACKAGE).parts[0]
        lines, files = found[room]
        found[room] = lines + len(path.read_text().splitlines()), files + 1
    over = {
        room: own
        for room, own in found.items()
        if any(n > most for n, most in zip(own, BUDGETS[room], strict=True))
    }
    assert not over


def sizes(path):
    """Yield the number of lines of a file, and of its functions without their docstrings."""
    name, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
    yield name, len(source.splitlines()), LONGEST_FILE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            first, lines = node.body[0], node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= first.end_lineno - first.lineno + 1
            yield f"{name}:{node.name}", lines, LONGEST_FUNCTION


def test_architecture__functions_and_files_are_short():
    long = {
        name: lines
        for path in PACKAGE.rglob("*.py")
        for name, lines, most in sizes(path)
        if lines > most
    }
    assert not long


def test_architecture__a_rule_that_is_broken_is_found(tmp_path):
    source = "import dask\nif 1:\n    from ..stages import width\nfrom zarr.core.sync import sync"
    (tmp_path / "dask_nrbfn" / "storage").mkdir(parents=True)
    (tmp_path / "dask_nrbfn" / "storage" / "utils.py").write_text(source)
    assert violations(tmp_path / "dask_nrbfn") == [
        "storage/utils.py: utils says nothing about what is in it",
        "storage/utils.py: line 1: storage must not import dask",
        "storage/utils.py: line 4: zarr.core.sync.sync is private, and known to private.py alone",
        "storage/utils.py: line 3: storage must not import stages",
    ]


def test_architecture__arrows_have_no_cycle():
    below = {room: set(targets) for room, targets in ALLOWED.items()}
    while free := {room for room, targets in below.items() if not targets}:
        below = {room: targets - free for room, targets in below.items() if room not in free}
    assert not below


def test_architecture__modules_have_no_cycle():
    graph = module_graph(PACKAGE)
    # One at the top of a file, one in a function, and one for types and lazy names.
    assert "dask_nrbfn.errors" in graph["dask_nrbfn.params"]
    assert "dask_nrbfn.commands.fit" in graph["dask_nrbfn.cli.train"]
    assert "dask_nrbfn.engine.tasks" in graph["dask_nrbfn.engine"]
    assert cycle(PACKAGE) == []
