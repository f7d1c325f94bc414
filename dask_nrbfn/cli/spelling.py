"""How the command line spells the parameters that errors name."""

from collections.abc import Callable

import click


def spelling(ctx: click.Context) -> Callable[[str], str]:
    """Return how a parameter is written for the command that runs in a group's context.

    One that only other commands take is named with the first of them, such as
    ``ingest --chunk-rows``; one that no command takes keeps its name in Python.
    """
    group, own = ctx.command, ctx.invoked_subcommand
    assert isinstance(group, click.Group)

    def spell(name: str) -> str:
        for command in filter(None, (own, *group.commands)):
            if (written := _written(group.get_command(ctx, command), name)) is not None:
                return written if command == own else f"{command} {written}"
        return name

    return spell


def _written(command: click.Command | None, name: str) -> str | None:
    """Return the option or argument of a command that a parameter comes from."""
    for param in command.params if command is not None else ():
        if param.name == name:
            return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
    return None
