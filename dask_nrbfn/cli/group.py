"""The group of all commands: its errors, and the spelling of parameters in them."""

import errno
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from dask_nrbfn.cli.job import Job
from dask_nrbfn.errors import IllConditionedWarning, NRBFNError

logger = logging.getLogger(__name__)

# The exit code of errors that the user can mend, as the README promises; all others exit with 1.
EXIT_MENDABLE = 2


class Commands(click.Group):
    """Prints an error and its remedy, exits with 2, and logs a summary of long work."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        job = ctx.ensure_object(Job)
        with job.summary(), _mendable_errors(ctx):
            return super().invoke(ctx)


@contextmanager
def logged_warnings() -> Iterator[None]:
    """Log this package's warnings as one line, without the source line that Python adds."""
    show = warnings.showwarning

    def log(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, IllConditionedWarning):
            logger.warning("%s", message)
        else:
            show(message, category, *where)

    with warnings.catch_warnings():
        warnings.simplefilter("always", IllConditionedWarning)
        warnings.showwarning = log  # type: ignore[assignment]
        yield


@contextmanager
def _mendable_errors(ctx: click.Context) -> Iterator[None]:
    """Print an error of the block and its remedy on standard error, and exit."""
    try:
        yield
    except NRBFNError as error:
        problem, remedy = error.spelled(spelling(ctx))
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does; click then ends silently.
        raise
    except OSError as error:
        problem, remedy = f"{error}.", "Check the path and its permissions."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free disk space, or write to another disk. Finished parts are kept."
    else:
        return
    click.echo(f"error: {problem}\n  fix: {remedy}", err=True)
    ctx.exit(EXIT_MENDABLE)


def spelling(ctx: click.Context) -> Callable[[str], str]:
    """Return the spelling of a parameter for the command that runs in a group's context.

    A parameter that only other commands have is named with the first of these commands, such as
    ``ingest --chunk-rows``. A parameter that no command has keeps its name in Python.
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
        if param.name == name and isinstance(param, click.Option):
            return param.opts[0]
        if param.name == name:
            return param.human_readable_name
    return None
