"""Load the modules of a package when their names are first used."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562).

    Its names are those that its file imports for type checkers, in ``if TYPE_CHECKING``. None may
    be the name of a module of the package too: the import system puts the module there.
    """
    branches = (node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in next(branches).body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names, sorted(name for name in homes if not name.startswith("_"))
