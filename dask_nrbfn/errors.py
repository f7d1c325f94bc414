"""What can go wrong for a user.

Every error says what is wrong and how to mend it, and is also the builtin a caller would expect.
"""

from typing import Any


class NRBFNError(Exception):
    """Base of all errors that a user can mend.

    Parameters
    ----------
    problem : str
        One sentence: what is wrong and the value received.
    remedy : str
        One sentence: what is allowed, or what to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["NRBFNError"], tuple[Any, ...]]:
        # Errors travel from workers; what would rebuild them by default fails for MemoryError.
        return type(self), (self.problem, self.remedy)

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


class ParameterError(NRBFNError, ValueError):
    """A parameter has a value outside what it allows."""


class DataError(NRBFNError, ValueError):
    """Rows or labels cannot be used as they are."""


class MissingDataError(NRBFNError, FileNotFoundError):
    """A file, dataset, run, model or one of its chunks is not there."""


class DamagedDataError(NRBFNError, OSError):
    """Stored bytes fail their checksum, are cut short, or are not of this format."""


class DamagedResultError(DamagedDataError):
    """A result that a run had finished is missing or damaged; it can be computed again.

    Parameters
    ----------
    problem, remedy : str
    stage : str
        Name of the stage's group.
    parts : tuple of int
        The parts that are concerned; empty for the whole stage.
    """

    def __init__(self, problem: str, remedy: str, stage: str, parts: tuple[int, ...]) -> None:
        super().__init__(problem, remedy)
        self.stage = stage
        self.parts = parts

    def __reduce__(self) -> tuple[type["NRBFNError"], tuple[Any, ...]]:
        return type(self), (self.problem, self.remedy, self.stage, self.parts)


class StorageError(NRBFNError, OSError):
    """An object store refuses access, cannot be reached, or fails."""


class ExistsError(NRBFNError, FileExistsError):
    """Something is already stored where the result should go."""


class RunMismatchError(NRBFNError, ValueError):
    """A run was started with other parameters or from another dataset."""


class AlreadyAddedError(NRBFNError, ValueError):
    """Rows that a run holds would be added once more."""


class WorseModelError(NRBFNError, ArithmeticError):
    """A new model makes more errors than are allowed; the old one stays."""


class IllConditionedError(NRBFNError, ArithmeticError):
    """The ridge system is singular to working precision."""


class MemoryBudgetError(NRBFNError, MemoryError):
    """A task needs more memory than a worker has."""


class RecallError(NRBFNError, ArithmeticError):
    """The neighbours that were found are too few of the true ones."""


class RunBusyError(NRBFNError, RuntimeError):
    """Another job works on the run."""


class WorkerLostError(NRBFNError, RuntimeError):
    """Workers died while they ran the same task, again and again."""


class ClusterError(NRBFNError, ConnectionError):
    """A dask scheduler cannot be reached, or has no workers."""
