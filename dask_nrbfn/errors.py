"""Errors that a user can cause or mend.

Every error says what is wrong and how to mend it, and is also a builtin error such as ValueError.
Its texts write parameter names between backticks. A front end that spells these names differently,
such as the command line, calls `spelled`.
"""

import re
from collections.abc import Callable
from shlex import quote
from typing import NamedTuple

# Either a quoted text of the user, which stays unchanged, or a parameter, perhaps with a value.
# Blanks or punctuation surround a parameter; backticks within a path or word do not mark one.
_PARAMETER = re.compile(
    r"""(?<![^\s=(])(?P<mark>['"])(?:\\.|(?!(?P=mark)).)*(?P=mark)(?=[\s.,;:)]|$)"""
    r"""|(?<![^\s(])`(?P<name>\w+)`(?P<given>=(?P<quote>['"])(?P<value>(?:\\.|[^\\])*?)(?P=quote))?"""
    r"""(?=[\s=.,;:)]|$)"""
)


class Advice(NamedTuple):
    """A text that names parameters, as an argument of a log line."""

    text: str

    def __str__(self) -> str:
        return self.spelled(str)

    def spelled(self, spell: Callable[[str], str]) -> str:
        """Return the text with parameter names spelled by `spell`; --name takes a shell word."""

        def spelled(found: re.Match[str]) -> str:
            if found["name"] is None:
                return found[0]
            name, given = spell(found["name"]), found["given"] or ""
            # The option may be one of another command, as "ingest --missing".
            if not given or "--" not in name:
                return name + given
            value = re.sub(r"\\(.)", r"\1", found["value"])
            if "'" not in value:
                return f"{name} {quote(value)}"
            inside = re.sub(r'(["\\$`])', r"\\\1", value)
            return f'{name} "{inside}"'

        return _PARAMETER.sub(spelled, self.text)


def plural(value: int, name: str) -> str:
    """Return a number with its noun, which is in the plural unless the number is 1."""
    if value == 1:
        return f"1 {name}"
    ending = "es" if name.endswith("s") else "s"
    return f"{value:,} {name}{ending}"


class NRBFNError(Exception):
    """Base of all errors that a user can mend.

    Parameters
    ----------
    problem : str
        One sentence: what is wrong and the value received.
    remedy : str
        One sentence: what is allowed, or what to do.

    Examples
    --------
    >>> error = NRBFNError("`basis_size` is 0.", "Give at least 1.")
    >>> print(error)
    basis_size is 0. Give at least 1.
    >>> error.spelled(lambda name: "--" + name.replace("_", "-"))
    ('--basis-size is 0.', 'Give at least 1.')
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"

    @property
    def problem(self) -> str:
        """What is wrong, with parameter names as in Python."""
        return self.spelled(str)[0]

    @property
    def remedy(self) -> str:
        """How to mend the problem, with parameter names as in Python."""
        return self.spelled(str)[1]

    def spelled(self, spell: Callable[[str], str]) -> tuple[str, str]:
        """Return problem and remedy with parameter names spelled by `spell`."""
        problem, remedy = (Advice(text).spelled(spell) for text in self.args[:2])
        return problem, remedy


class ParameterError(NRBFNError, ValueError):
    """A parameter has a value that is not allowed."""


class DataError(NRBFNError, ValueError):
    """Rows or labels cannot be used as they are."""


class MissingDataError(NRBFNError, FileNotFoundError):
    """A file, dataset, run, model or chunk is missing."""


class DamagedDataError(NRBFNError, OSError):
    """Stored bytes fail their checksum, are cut short, or do not have the expected format."""


class FormatVersionError(NRBFNError, OSError):
    """Stored data has the format of another version of this package; it is never replaced."""


class DamagedResultError(DamagedDataError):
    """A result of a run, some parts or all of it, is damaged, but can be computed again."""

    def __init__(self, problem: str, remedy: str, stage: str, parts: tuple[int, ...]) -> None:
        super().__init__(problem, remedy)
        self.args = problem, remedy, stage, parts
        self.stage, self.parts = stage, parts


class StorageError(NRBFNError, OSError):
    """A disk or an object store refuses access, is full, cannot be reached, or fails."""


class ExistsError(NRBFNError, FileExistsError):
    """Something is already stored where the result should go."""


class RunMismatchError(NRBFNError, ValueError):
    """A run was started with other parameters or from another dataset."""


class AlreadyAddedError(NRBFNError, ValueError):
    """Rows that a run already holds would be added again."""


class WorseModelError(NRBFNError, ArithmeticError):
    """A new model makes more errors than are allowed; the old one stays."""


class IllConditionedError(NRBFNError, ArithmeticError):
    """The ridge system is singular to working precision."""


class IllConditionedWarning(UserWarning):
    """The ridge system was solved, but the weights have large rounding errors."""


class MemoryBudgetError(NRBFNError, MemoryError):
    """A task needs more memory than a worker has."""


class RecallError(NRBFNError, ArithmeticError):
    """The neighbour search found too few of the true neighbours."""


class RunBusyError(NRBFNError, RuntimeError):
    """Another job writes to the same run, dataset or store."""


class WorkerLostError(NRBFNError, RuntimeError):
    """Workers died repeatedly while they ran the same task."""


class ClusterError(NRBFNError, ConnectionError):
    """A dask scheduler cannot be reached, or has no workers."""
