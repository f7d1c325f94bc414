"""The parameters of a fit.

They change the answer and are part of a run's identity. What only changes how the work is done
(workers, threads, memory) is in `dask_nrbfn.engine`.
"""

from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any

from dask_nrbfn.errors import ParameterError

NEIGHBOR_METHODS = ("auto", "exact", "approximate")
SCALES = ("none", "standard", "unit")
BASIS_RULES = ("least-confident", "uniform")


@dataclass(frozen=True, kw_only=True)
class FitParams:
    """What a fit computes.

    Parameters
    ----------
    n_neighbors : int
        k of the soft-kNN confidence; the row itself is not counted.
    confidence_threshold : float
        t in (0, 1]: rows with a confidence below it form the basis. Not used with `basis_size`.
    alpha : float
        Ridge penalty, relative to the trace of the gram matrix (the paper's lambda).
    basis_size : int or None
        Number of basis rows r. None: all rows below the threshold, or as many as fit the memory.
    basis_rule : {"least-confident", "uniform"}
        Which rows form a basis of a given size: the least confident, or a draw among the rows
        below the threshold, which the least confident of the others fill up.
    neighbors : {"auto", "exact", "approximate"}
        How neighbours are found; "auto" takes the one that is estimated to be faster.
    n_partitions : int or None
        Number of partitions in which neighbours are searched; 1 searches all rows at once. None:
        1 if that fits, else as many as make each of them small.
    overlap : int
        Number of partitions that a row belongs to on average: one more near their borders, fewer
        inside. More: better recall, more work.
    scale : {"none", "standard", "unit"}
        Columns to mean 0 and variance 1, or rows to unit length, before anything else.
    n_parts : int or None
        Number of parts that each pass over the rows is cut into. None: from the number of rows.
    seed : int
        Seeds the approximate neighbours and the choice among equally confident rows.

    Raises
    ------
    ParameterError
        If a value is not allowed.
    """

    n_neighbors: int = 20
    confidence_threshold: float = 0.9
    alpha: float = 1e-13
    basis_size: int | None = None
    basis_rule: str = "least-confident"
    neighbors: str = "auto"
    n_partitions: int | None = None
    overlap: int = 2
    scale: str = "none"
    n_parts: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_integer("n_neighbors", self.n_neighbors, minimum=1)
        _check_real("confidence_threshold", self.confidence_threshold)
        if not 0 < self.confidence_threshold <= 1:
            raise ParameterError(
                f"confidence_threshold is {self.confidence_threshold}.",
                "Give a number above 0 and at most 1.",
            )
        _check_real("alpha", self.alpha)
        if not 0 <= self.alpha <= 1:
            raise ParameterError(
                f"alpha is {self.alpha}.",
                "Give a number from 0 to 1; it is relative to the trace of the gram matrix.",
            )
        if self.basis_size is not None:
            _check_integer("basis_size", self.basis_size, minimum=1)
        if self.n_parts is not None:
            _check_integer("n_parts", self.n_parts, minimum=1)
        if self.n_partitions is not None:
            _check_integer("n_partitions", self.n_partitions, minimum=1)
        _check_integer("overlap", self.overlap, minimum=1)
        _check_integer("seed", self.seed, minimum=0)
        if self.seed >= 2**32:
            raise ParameterError(f"seed is {self.seed}.", "Give an integer below 2**32.")
        _check_choice("neighbors", self.neighbors, NEIGHBOR_METHODS)
        _check_choice("scale", self.scale, SCALES)
        _check_choice("basis_rule", self.basis_rule, BASIS_RULES)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return {
            name: value.item() if hasattr(value, "item") else value
            for name, value in asdict(self).items()
        }


def _check_integer(name: str, value: object, *, minimum: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise ParameterError(f"{name} is {value!r}.", f"Give an integer of at least {minimum}.")


def _check_real(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ParameterError(f"{name} is {value!r}.", "Give a number.")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ParameterError(f"{name} is {value!r}.", f"Give one of {', '.join(choices)}.")
