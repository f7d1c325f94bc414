"""The group of all commands, and what it does with errors."""

import errno
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.spelling import spelling
from dask_nrbfn.errors import IllConditionedWarning, NRBFNError

logger = logging.getLogger(__name__)

# What the user can mend, as the README promises; 1 is anything else.
EXIT_MENDABLE = 2


class Commands(click.Group):
    """Says what went wrong and how to mend it, exits with 2, and sums up long work."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        job = ctx.ensure_object(Job)
        with job.summary(), _logged_errors(ctx, job), _mendable_errors(ctx, job):
            return super().invoke(ctx)


@contextmanager
def logged_warnings() -> Iterator[None]:
    """Log this package's warnings as a line, without the source that Python shows of others."""
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
def _mendable_errors(ctx: click.Context, job: Job) -> Iterator[None]:
    try:
        yield
    except NRBFNError as error:
        job.tell_error(*error.spelled(spelling(ctx)))
        ctx.exit(EXIT_MENDABLE)
    except BrokenPipeError:
        # Whoever reads the output has enough, as in "| head"; click ends without a word then.
        raise
    except OSError as error:
        remedy = "Check the path, what is there, and its permissions."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free some space, or write elsewhere; what was finished is kept."
        job.tell_error(f"{error}.", remedy)
        ctx.exit(EXIT_MENDABLE)


@contextmanager
def _logged_errors(ctx: click.Context, job: Job) -> Iterator[None]:
    """Log what click or Python would print, where everything is to be JSON."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        if not job.json_logs:
            raise
        failed = getattr(error, "ctx", None) or ctx
        job.tell_error(error.format_message(), f"See {failed.command_path} --help.")
        ctx.exit(error.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        if not job.json_logs:
            raise
        logger.exception("%s: %s", type(error).__name__, error)  # noqa: TRY401
        ctx.exit(1)
