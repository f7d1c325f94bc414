"""The HTML templates of this directory."""

from functools import cache
from importlib.resources import files

import jinja2


@cache
def template_named(name: str) -> jinja2.Template:
    """Return a template that escapes all values."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files(__package__).joinpath(name).read_text("utf-8"))
