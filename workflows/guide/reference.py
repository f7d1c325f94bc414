"""Fill the reference pages of the guide from the definitions in the package.

A hook of mkdocs: a line ``{{ name }}`` of a page becomes what the function of that name in `PARTS`
returns. `mkdocs build --strict -f workflows/guide/mkdocs.yml` runs it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import partial
from html import escape
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

import dask_nrbfn
from dask_nrbfn import errors
from dask_nrbfn.cli import COMMANDS, commands
from dask_nrbfn.engine import EngineOptions
from dask_nrbfn.fit import STAGES
from dask_nrbfn.params import FitLimits, FitParams, Params, TuneParams
from dask_nrbfn.sources.formats import FORMATS
from dask_nrbfn.stages.model import EMBEDDED
from dask_nrbfn.stages.stage import StageRecord

# Headings of the Python page, and the rooms of the package whose public names stand below each.
ROOMS = {
    "Estimators": ("estimators",),
    "Functions": ("commands", "stages"),
    "Parameters": ("params",),
    "Stored data": ("storage",),
    "Engines": ("engine",),
    "Errors": ("errors",),
}

# Groups of the options of a command; the others are about its rows and its output.
GROUPS: dict[str, Iterable[str]] = {
    "Columns of a table": FORMATS["text"].options[4:],
    "What is tried": TuneParams.options().keys() - FitParams.options().keys(),
    "The network": {**FitParams.options(), **FitLimits.options()},
    "Workers and memory": EngineOptions.options(),
}

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PYTHON = Path(__file__).with_name("pages") / "reference/python.md"
PUBLIC = {name: getattr(dask_nrbfn, name) for name in dask_nrbfn.__all__}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with its parts filled in."""
    return re.sub(r"^\{\{ (\w+) \}\}$", lambda found: PARTS[found[1]](), markdown, flags=re.M)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the parentheses around types of several words, which are no tuples."""
    return re.sub(r"<code>\(((?:(?!</code>).)*)\)</code>(?=\s*</td>)", r"<code>\1</code>", html)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x&#124;y |
    """
    header = list(header)
    lines = [header, *([cell.replace("|", "&#124;") for cell in row] for row in rows)]
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


def command(each: click.Command) -> str:
    """Return the usage and the help of a command, and tables of its options in groups."""
    # click keeps the help option of the first context, so that has the settings of the program.
    program = click.Context(commands, info_name="dask-nrbfn", **commands.context_settings)
    usage = each.get_usage(click.Context(each, program, each.name))
    texts = [f"```text\n{usage.removeprefix('Usage: ')}\n```", str(each.help)]
    groups: dict[str, list[tuple[str, str, str]]] = {"Rows and output": []}
    for option in each.params:
        if isinstance(option, click.Option) and not option.hidden:
            own = (group for group, names in GROUPS.items() if option.name in names)
            groups.setdefault(next(own, "Rows and output"), []).append(option_row(option))
    for group, rows in groups.items():
        texts += [f"**{group}**", table(["option", "default", "effect"], rows)]
    return "\n\n".join([*texts, each.epilog or ""])


def option_row(option: click.Option) -> tuple[str, str, str]:
    """Return an option with its values, its default and its effect."""
    text, _, default = escape(option.help or "", quote=False).partition("  [default: ")
    values = option.type.choices if isinstance(option.type, click.Choice) else [option.metavar]
    shown = " ".join([option.opts[0], *([] if option.is_flag else ["|".join(map(str, values))])])
    return f"<code>{shown}</code>", default.removesuffix("]"), text


def notebook(name: str) -> str:
    """Return the cells of a notebook, its headings one level lower."""
    return "\n\n".join(_cells((NOTEBOOKS / f"{name}.py").read_text()))


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
    rows = []
    for name, each in FORMATS.items():
        options = (f"--{option.replace('_', '-')}" for option in each.options)
        rows.append(
            [" ".join(f"`{word}`" for word in words) for words in ([name], each.suffixes, options)]
        )
    return table(["format", "suffixes", "options"], rows)


def exit_codes() -> str:
    """Return a table of the errors that end a command with the code of what a user can correct."""
    kinds = [
        (f"`{kind.__name__}`", f"`{kind.__bases__[-1].__name__}`", first_sentence(kind))
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.NRBFNError)
        if kind is not errors.NRBFNError
    ]
    return table(["error", "is also", "meaning"], kinds)


def python() -> str:
    """Return the public names of the package that have no example of their own."""
    rooms = {name: each.__module__.split(".")[1] for name, each in PUBLIC.items()}
    assert set(rooms.values()) <= {room for rooms_of in ROOMS.values() for room in rooms_of}
    first, texts = re.findall(r"^\{\{ (\w+) \}\}$", PYTHON.read_text(), re.MULTILINE), []
    for heading, rooms_of in ROOMS.items():
        own = [name for name, room in rooms.items() if room in rooms_of and name not in first]
        texts += [f"## {heading}", *map(entry, own)] if own else []
    return "\n\n".join(texts)


def entry(name: str, *, examples: str = "true") -> str:
    """Return a public name with its methods and properties, for mkdocstrings."""
    own = [(each, getattr(PUBLIC[name], each)) for each in dir(PUBLIC[name]) if each[0] != "_"]
    shown = ", ".join(each for each, v in own if callable(v) or hasattr(v, "__get__"))
    options = f"{{members: [{shown}], show_docstring_examples: {examples}}}"
    return f"::: {PUBLIC[name].__module__}.{name}\n    options: {options}"


def run_arrays() -> str:
    """Return a table of the arrays that stages store in a run."""
    rows = [
        (
            f"`{array.name}`",
            ", ".join(array.axes),
            array.content,
            "yes" if array.verified else "",
            "yes" if stage.read_by_updates else "",
        )
        for stage in (*STAGES, EMBEDDED)
        for array in stage.arrays
    ]
    return table(["array", "axes", "values", "verified", "updates"], rows)


def run_records() -> str:
    """Return a table of the records of stages."""
    rows = []
    for stage in STAGES:
        own = fields(stage.record)[len(fields(StageRecord)) :]
        if own:
            names = ", ".join(f"`{each.name}`" for each in own)
            rows.append((f"`{stage.name}`", names, first_sentence(stage.record)))
    return table(["stage", "values", "meaning"], rows)


def first_sentence(kind: type[Any]) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join(cleandoc(str(kind.__doc__)).split("\n\n")[0].split())


PARTS = {
    "run_arrays": run_arrays,
    "run_records": run_records,
    "fit_options": lambda: options_of(FitParams, FitLimits),
    "tune_options": lambda: options_of(TuneParams),
    "formats": formats,
    "exit_codes": exit_codes,
    "python": python,
    **{each.name: partial(command, each) for each in COMMANDS},
    **{name: partial(entry, name, examples="false") for name in PUBLIC},
    **{f"notebook_{path.stem}": partial(notebook, path.stem) for path in NOTEBOOKS.glob("*.py")},
}
