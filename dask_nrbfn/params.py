"""The parameters of a fit and of its tuning.

They change the answer and are part of a run's identity. What only changes how the work is done
(workers, threads, memory) is in `dask_nrbfn.engine`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from os.path import dirname
from pkgutil import iter_modules
from typing import Any

from dask_nrbfn.errors import ParameterError


def _modules_of(room: str) -> tuple[str, ...]:
    """Return the names of the modules of a package inside this one: each of them is a choice.

    They are listed without being imported, so that a command line can name them at once.
    """
    return tuple(sorted(found.name for found in iter_modules([f"{dirname(__file__)}/{room}"])))


NEIGHBOR_METHODS = ("auto", "exact", "approximate")
SCALES = ("none", "standard", "unit")
BASES = ("sknn", "random", "kmeans")
BASIS_RULES = ("least-confident", "uniform")
FEATURES = ("normalized", "plain")
KERNELS = _modules_of("numeric/kernels")
CLASS_WEIGHTS = (None, "balanced")

# A lower recall than this has cost accuracy on no table tried; below it something is wrong.
MIN_RECALL = 0.95

# Basis rows of a fit to numbers that says nothing of them.
_MOST_CENTRES = 1000

# What stands before the digest of basis rows that were given.
GIVEN_PREFIX = "given:"


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
    basis : {"sknn", "random", "kmeans"} or str
        Where the basis comes from: rows of low soft-kNN confidence, rows drawn evenly, the centres
        of k-means clusters, or "given:" and the digest of rows that are handed to the fit.
    basis_size : int or None
        Number of basis rows r. None: all rows below the threshold, or as many as fit the memory;
        only for "sknn".
    basis_rule : {"least-confident", "uniform"}
        Which rows form a basis of a given size: the least confident, or a draw among the rows
        below the threshold, which the least confident of the others fill up.
    features : {"normalized", "plain"}
        Activations of a row divided by their sum (the paper's), or as they are.
    kernel : {"gaussian", "laplacian", "matern32", "matern52"}
        Of ``t = d / sigma`` with d the distance to a basis row: ``exp(-t^2 / 2)``, ``exp(-t)``,
        ``(1 + a) exp(-a)`` with ``a = sqrt(3) t``, and ``(1 + a + a^2 / 3) exp(-a)`` with
        ``a = sqrt(5) t``.
    width_factor : float
        Sigma is so many times the mean distance between rows and basis rows; 1 is the paper's.
    class_weight : {"balanced"} or None
        "balanced": the rows of every class together weigh the same.
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
        Number of parts that each pass over the rows is cut into. None: from the number of rows,
        and from that of workers beyond 64.
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
    basis: str = "sknn"
    basis_size: int | None = None
    basis_rule: str = "least-confident"
    features: str = "normalized"
    kernel: str = "gaussian"
    width_factor: float = 1.0
    class_weight: str | None = None
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
                f"`confidence_threshold` is {self.confidence_threshold}.",
                "Give a number above 0 and at most 1.",
            )
        _check_alpha("alpha", self.alpha)
        _check_width_factor("width_factor", self.width_factor)
        if self.basis_size is not None:
            _check_integer("basis_size", self.basis_size, minimum=1)
        if self.n_parts is not None:
            _check_integer("n_parts", self.n_parts, minimum=1)
        if self.n_partitions is not None:
            _check_integer("n_partitions", self.n_partitions, minimum=1)
        _check_integer("overlap", self.overlap, minimum=1)
        _check_integer("seed", self.seed, minimum=0)
        if self.seed >= 2**32:
            raise ParameterError(f"`seed` is {self.seed}.", "Give an integer below 2**32.")
        _check_choice("neighbors", self.neighbors, NEIGHBOR_METHODS)
        _check_choice("scale", self.scale, SCALES)
        _check_choice("basis_rule", self.basis_rule, BASIS_RULES)
        _check_choice("features", self.features, FEATURES)
        _check_choice("kernel", self.kernel, KERNELS)
        _check_choice("class_weight", self.class_weight, CLASS_WEIGHTS)
        if not isinstance(self.basis, str):
            raise ParameterError(
                f"`basis` is a {type(self.basis).__name__}.",
                f"Give one of {', '.join(BASES)}; given_basis returns the name of given rows.",
            )
        if not self.basis_is_given:
            _check_choice("basis", self.basis, BASES)
        if self.basis != "sknn" and self.basis_size is None:
            raise ParameterError(f"`basis`={self.basis} has no size.", "Give `basis_size` too.")

    @property
    def basis_is_given(self) -> bool:
        """Whether the basis rows are handed to the fit."""
        return isinstance(self.basis, str) and self.basis.startswith(GIVEN_PREFIX)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return _plain(asdict(self))


def number_defaults(n_rows: int) -> dict[str, Any]:
    """Return parameters of a fit to numbers where nothing else is asked for.

    Boundaries of classes have no counterpart, so the basis are the centres of clusters: a quarter
    as many as there are rows, at most 1,000.
    """
    size = max(1, min(_MOST_CENTRES, n_rows // 4))
    return {"basis": "kmeans", "basis_size": size, "features": "plain"}


@dataclass(frozen=True, kw_only=True)
class TuneParams:
    """What is tried, and how it is judged.

    Parameters
    ----------
    folds : int
        Number of folds of the rows, of which each is held out once. Not used with a validation
        dataset.
    alphas : sequence of float
        Penalties to try; each costs a factorization per fold, no pass over the rows.
    width_factors, features, kernels, basis_rules : sequences
        Values of these parameters to try, in all combinations, on a small basis and a sample of
        the rows. None: a grid of width factors and both kinds of features; the kernel and the basis
        rule of the fit.
    search_basis : int
        Basis rows of the search.
    search_rows : int or None
        Rows of the search. None: as many as make 256 MiB, from 20,000 to 100,000.
    validation : str or None
        Fingerprint of a validation dataset.

    Raises
    ------
    ParameterError
        If a value is not allowed.
    """

    folds: int = 5
    alphas: Sequence[float] = tuple(10.0**-power for power in range(1, 14))
    width_factors: Sequence[float] = (0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 1.0)
    features: Sequence[str] = FEATURES
    kernels: Sequence[str] | None = None
    basis_rules: Sequence[str] | None = None
    search_basis: int = 1000
    search_rows: int | None = None
    validation: str | None = None

    def __post_init__(self) -> None:
        _check_integer("folds", self.folds, minimum=2)
        _check_integer("search_basis", self.search_basis, minimum=2)
        if self.search_rows is not None:
            _check_integer("search_rows", self.search_rows, minimum=2)
        for name, check in (
            ("alphas", _check_alpha),
            ("width_factors", _check_width_factor),
            ("features", lambda name, value: _check_choice(name, value, FEATURES)),
            ("kernels", lambda name, value: _check_choice(name, value, KERNELS)),
            ("basis_rules", lambda name, value: _check_choice(name, value, BASIS_RULES)),
        ):
            values = getattr(self, name)
            if values is None and name in ("kernels", "basis_rules"):
                continue
            several = isinstance(values, Iterable) and not isinstance(values, str)
            values = tuple(values) if several else ()
            if not values:
                raise ParameterError(f"`{name}` is {getattr(self, name)!r}.", "Give a few values.")
            for value in values:
                check(name, value)
            object.__setattr__(self, name, values)

    @property
    def n_folds(self) -> int:
        """Number of folds whose moments are summed apart; 1 with a validation dataset."""
        return 1 if self.validation is not None else self.folds

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return _plain(asdict(self))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _check_alpha(name: str, value: object) -> None:
    _check_real(name, value)
    if not 0 <= value <= 1:  # type: ignore[operator]
        raise ParameterError(
            f"`{name}` is {value}.",
            "Give a number from 0 to 1; it is relative to the trace of the gram matrix.",
        )


def _check_width_factor(name: str, value: object) -> None:
    _check_real(name, value)
    if not 1e-6 <= value <= 1e6:  # type: ignore[operator]
        raise ParameterError(f"`{name}` is {value}.", "Give a number such as 0.1 to 1.")


def _check_integer(name: str, value: object, *, minimum: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise ParameterError(f"`{name}` is {value!r}.", f"Give an integer of at least {minimum}.")


def _check_real(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ParameterError(f"`{name}` is {value!r}.", "Give a number.")


def _check_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    if value not in choices:
        allowed = ", ".join(map(str, choices))
        raise ParameterError(f"`{name}` is {value!r}.", f"Give one of {allowed}.")
