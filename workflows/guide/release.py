"""Show the version and the repository on every page.

A hook of mkdocs. Both come from `pyproject.toml`; a build on GitHub knows its repository itself.
"""

import os
import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def on_config(config: Any) -> Any:
    """Return the configuration with the version in the title and the repository in the footer."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    config.site_name = f"{config.site_name} {project['version']}"
    shown = [f"Version {project['version']}", f"license {project['license']}"]
    if place := repository(project):
        # The theme's own link asks GitHub for stars; readers need no network.
        shown.append(f'<a href="{place}">repository</a>')
    config.copyright = ", ".join(shown)
    return config


def repository(project: dict[str, Any]) -> str | None:
    """Return the address of the repository, if it is known."""
    if place := project.get("urls", {}).get("Repository"):
        return str(place)
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    return None
