"""Fill the reference pages of the guide from the definitions in the package.

A hook of mkdocs: a line ``{{ name }}`` of a page becomes what the function of that name in `PARTS`
returns. `mkdocs build --strict -f workflows/guide/mkdocs.yml` runs it.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask_nrbfn
from dask_nrbfn import errors
from dask_nrbfn.cli.group import EXIT_MENDABLE
from dask_nrbfn.params import FitLimits, FitParams, Params, TuneParams
from dask_nrbfn.sources.formats import FORMATS

# Headings of the Python page, and the rooms of the package whose public names stand below each.
ROOMS = {
    "Estimators": ("estimators",),
    "Functions": ("commands", "stages"),
    "Parameters": ("params",),
    "Stored data": ("storage",),
    "Engines": ("engine",),
    "Errors": ("errors",),
}

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with its parts filled in."""
    return re.sub(r"^\{\{ (\w+) \}\}$", lambda found: PARTS[found[1]](), markdown, flags=re.M)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    r"""Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\|y |
    """
    header = list(header)
    lines = [header, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    texts = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([texts[0], f"|{'---|' * len(header)}", *texts[1:]])


def options_of(*kinds: type[Params]) -> str:
    """Return a table of all parameters of these classes."""
    rows = []
    for kind in kinds:
        for name, option in kind.options().items():
            default = option.default_text if option.default is None else f"`{option.default_text}`"
            spelled = f"`--{name.replace('_', '-')}`"
            rows.append((spelled, default, option.allowed, option.help))
    return table(["option", "default", "values", "effect"], rows)


def notebook(name: str) -> str:
    """Return the cells of a notebook, its headings one level lower."""
    text = (NOTEBOOKS / f"{name}.py").read_text()
    return "\n\n".join(_cells(text))


def _cells(text: str) -> Iterator[str]:
    for cell in text.split("# %%")[1:]:
        kind, _, body = cell.partition("\n")
        if kind.strip() != "[markdown]":
            yield f"```python\n{body.strip()}\n```"
            continue
        written = re.sub("^# ?", "", body.strip(), flags=re.M)
        yield re.sub("^#", "##", written, flags=re.M)


def formats() -> str:
    """Return a table of the source formats."""
    return table(
        ["format", "suffixes", "options"],
        (
            (
                f"`{name}`",
                " ".join(f"`{suffix}`" for suffix in each.suffixes),
                " ".join(f"`--{option.replace('_', '-')}`" for option in each.options),
            )
            for name, each in FORMATS.items()
        ),
    )


def exit_codes() -> str:
    """Return a table of the errors that end a command with the code of what a user can correct."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.NRBFNError)
    ]
    rows = (
        (f"`{kind.__name__}`", f"`{kind.__bases__[-1].__name__}`", first_line(kind), EXIT_MENDABLE)
        for kind in kinds
        if kind is not errors.NRBFNError
    )
    return table(["error", "is also", "meaning", "exit code"], (map(str, row) for row in rows))


def python() -> str:
    """Return the public names of the package, for mkdocstrings."""
    return "\n\n".join(_python())


def _python() -> Iterator[str]:
    names = {name: getattr(dask_nrbfn, name) for name in dask_nrbfn.__all__}
    rooms = {name: thing.__module__.split(".")[1] for name, thing in names.items()}
    assert set(rooms.values()) <= {room for rooms_of in ROOMS.values() for room in rooms_of}
    for heading, rooms_of in ROOMS.items():
        yield f"## {heading}"
        for name, thing in names.items():
            if rooms[name] in rooms_of:
                yield f"::: {thing.__module__}.{name}"


def first_line(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


PARTS = {
    "fit_options": lambda: options_of(FitParams, FitLimits),
    "tune_options": lambda: options_of(TuneParams),
    "formats": formats,
    "exit_codes": exit_codes,
    "python": python,
    **{f"notebook_{path.stem}": partial(notebook, path.stem) for path in NOTEBOOKS.glob("*.py")},
}
