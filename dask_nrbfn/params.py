"""The parameters of a fit and of its tuning, each with its definition.

`FitParams` and `TuneParams` change the result and identify a run; `FitLimits` do not. Options that
only change how the work is done (workers, threads, memory) are in `dask_nrbfn.engine`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Self

from dask_nrbfn.choices import BASES, KERNELS, LOSSES, PENALTIES
from dask_nrbfn.errors import ParameterError

# Prefix of the digest of given basis rows.
GIVEN_PREFIX = "given:"

_KINDS: dict[type, type[Any]] = {int: Integral, float: Real, str: str}

# The help shortens a longer default.
_MAX_SHOWN_VALUES = 8
# An error shows only the type of a value with a longer representation, such as an array.
_MAX_SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Option:
    """Definition of a parameter, which the command line and the guide show.

    type: type of the value, or of each of several values.
    help: one line about its effect.
    choices: all allowed texts; empty: any.
    words: texts that are allowed instead of a number.
    prefix: texts with this prefix are allowed too.
    least, most, above: A number is from `least` to `most`, and more than `above`.
    hint: added to the allowed values in an error.
    none: meaning of None in words; without it None is not allowed.
    several: whether the value is a sequence.
    tunes: the parameter of a fit whose values are tried.
    metavar: placeholder of the value in the help; None: from the type.
    predicts: whether predictions from the arrays of a model depend on it.
    """

    default: Any
    type: type
    help: str
    _: KW_ONLY
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    prefix: str | None = None
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    hint: str = ""
    none: str | None = None
    several: bool = False
    tunes: str | None = None
    metavar: str | None = None
    predicts: bool = False

    @property
    def default_text(self) -> str:
        """The default as text."""
        if self.default is None:
            return str(self.none)
        values = self.default if self.several else (self.default,)
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        if len(texts) > _MAX_SHOWN_VALUES:
            texts[2:-1] = ["..."]
        return ",".join(texts)

    @property
    def allowed(self) -> str:
        """The allowed values as text."""
        if self.type is str:
            allowed = ", ".join(self.choices) or str(self.metavar)
            allowed = f"one of {allowed}" if len(self.choices) > 1 else allowed
        else:
            allowed = "an integer" if self.type is int else "a number"
            if self.above > self.least:
                allowed += f" above {self.above} and at most {self.most}"
            elif self.most == math.inf:
                allowed += f" of at least {self.least}"
            else:
                allowed += f" from {self.least} to {self.most}"
            allowed = f"{allowed}, {' or '.join(self.words)}" if self.words else allowed
        return f"a few values, each {allowed}" if self.several else allowed

    def check(self, name: str, value: Any) -> None:
        """Check the value of a parameter."""
        if value is None and self.none is not None:
            return
        if not self.several:
            wrong = [] if self._allows(value) else [value]
        elif isinstance(value, tuple) and value:
            wrong = [item for item in value if not self._allows(item)]
        else:
            wrong = [value]
        if wrong:
            remedy = f"Give {self.allowed}"
            remedy += "" if self.none is None else f", or leave `{name}` out"
            remedy += f"; {self.hint}." if self.hint else "."
            raise ParameterError(f"`{name}` is {_shown(wrong[0])}.", remedy)

    def _allows(self, value: Any) -> bool:
        if isinstance(value, str) and value in self.words:
            return True
        if not isinstance(value, _KINDS[self.type]) or isinstance(value, bool):
            return False
        if self.type is str:
            begun = self.prefix is not None and value.startswith(self.prefix)
            return not self.choices or value in self.choices or begun
        return bool(self.least <= value <= self.most and value > self.above)


def option(*values: Any, **details: Any) -> Any:
    """Return a dataclass field that is defined by an `Option` with these arguments."""
    definition = Option(*values, **details)
    return field(default=definition.default, metadata={"option": definition})


@dataclass(frozen=True)
class Params:
    """Parameters that are checked by their options when the object is made."""

    def __post_init__(self) -> None:
        for name, definition in self.options().items():
            value = getattr(self, name)
            if definition.several and isinstance(value, Iterable) and not isinstance(value, str):
                value = tuple(value)
                object.__setattr__(self, name, value)
            definition.check(name, value)

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return the option of every parameter by its name."""
        return {field.name: field.metadata["option"] for field in fields(cls)}

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON-serializable values."""
        return {name: _plain(value) for name, value in asdict(self).items()}


_N_NEIGHBORS = 20
_AUTO_FOR_CLASSES: dict[str, Any] = {"basis": "sknn", "features": "normalized"}
_AUTO_FOR_NUMBERS: dict[str, Any] = {"basis": "kmeans", "features": "plain"}


@dataclass(frozen=True, kw_only=True)
class FitParams(Params):
    """Parameters of a fit that change its result.

    Parameters
    ----------
    scale : {"auto", "none", "standard", "unit", "learned"}
        "standard": columns to mean 0 and variance 1, those of a category together. "unit": rows to
        unit length. "auto": "standard" for tables with categories, dates or imputed values, else
        "none". "learned": columns to mean 0 and variance 1, then each multiplied by the square root
        of its weight, which is learned on at most 20,000 rows.
    metric_rounds : int
        Maximum number of rounds that learn the weights of "learned". The fit uses the weights of
        the round with the best result on held-out rows, or equal weights if the gain is by chance.
    confidence_threshold : float
        t in (0, 1]: rows with a confidence below it form the basis. Ignored with `basis_size`.
    basis : {"auto", "kmeans", "random", "sknn"} or str
        Source of the basis: centres of k-means clusters, randomly drawn rows, rows of low soft-kNN
        confidence, or "given:" and the digest of rows that are passed to the fit. "auto": "sknn"
        for classes, "kmeans" for numeric targets.
    basis_size : int or None
        Number of basis rows r. None: with "sknn" all rows below the threshold, at most 10,000 and
        at most as many as fit into memory. If a class is ten times as frequent as another, at least
        100 rows, or a tenth of the rows if that is less. With another basis a quarter of the rows,
        at most 1,000 distinct ones.
    basis_rule : {"least-confident", "uniform"}
        Which rows form a basis of a given size: the least confident, or a random draw of rows
        below the threshold. If too few rows are below, the least confident other rows are added.
    candidates : int or {"auto", "all"}
        Number of drawn rows, some of every class, whose confidence is computed. Their neighbours
        are searched exactly among all rows. "auto": with `basis_size` 20 for each basis row and at
        least 50,000, if that is at most half of the rows; otherwise, and with several
        `n_partitions` or approximate `neighbors`, "all".
    features : {"auto", "normalized", "plain"}
        "normalized": activations of a row divided by their sum (the paper's). "plain": activations
        without normalization. "auto": "normalized" for classes and with `components`, else "plain".
    kernel : {"gaussian", "laplace-l1", "laplacian", "matern32", "matern52"}
        Of ``t = d / sigma`` with d the distance to a basis row: ``exp(-t^2 / 2)``, ``exp(-t)``,
        ``exp(-t)``, ``(1 + a) exp(-a)`` with ``a = sqrt(3) t``, and ``(1 + a + a^2 / 3) exp(-a)``
        with ``a = sqrt(5) t``. d is Euclidean, and with "laplace-l1" the l1 distance.
    width_factor : float
        Sigma divided by the mean distance between rows and basis rows; 1 is the paper's.
    class_weight : {"balanced"} or None
        "balanced": every class has the same total weight.
    alpha : float
        Ridge penalty, relative to the trace of the gram matrix (the paper's lambda).
    penalty : {"weights", "kernel", "clusters"}
        Quantity that the ridge keeps small. "weights": the squared norm of the weights (the
        paper's). "kernel": the norm in the space of the kernel, as in Nystroem kernel ridge
        regression, for plain features. "clusters": the squares of the weights divided by the share
        of the rows in each cluster, for plain features of a "kmeans" basis.
    locality : float
        Penalty of differences between the scores of neighbours, relative to the trace of the gram
        matrix. The neighbours of a row are nearer than any row of another class. 0: off.
    loss : {"squared", "squared-hinge", "logistic", "hinge"}
        Loss that is minimized together with the penalty. "squared": the distance from the class
        indicators (the paper's), solved by one ridge system. The others use the margins ``m = t f``
        of each class against the others, t = 1 or -1: ``max(0, 1 - m)^2``, ``log(1 + e^-m)``, and
        ``max(0, 1 - m)``, which is smoothed within 0.1 of its bend. These losses take up to 10 more
        passes over the rows, in a tuning up to 20.
    prune : int or None
        Number of basis rows that are kept: the rows that explain most of the targets, by
        regularized orthogonal least squares on the sums. For plain features. None: all.
    components : int or None
        Number of eigenfunctions of the basis that are combined for each target: the functions that
        vary least where basis rows are dense, a spectral series (Lee & Izbicki). For normalized
        features. None: any weights.
    cells : int, {"auto"} or None
        Number of cells. A tree of median splits cuts the rows into cells, and each cell has its own
        network with `basis_size` basis rows, by default 1,000. Held-out rows of the cell choose its
        column weights, width and alpha. There are fewer cells if the rows cannot be split. "auto":
        cells of at most 3 rows for each basis row, and at most 1,024 cells. A tuning uses cells
        only if they do better than one network on the same held-out rows. With cells it tries no
        other loss, and only the penalty that the search chose, or the first one. Only for dense
        rows and the squared loss. None: 1, but "auto" in a tuning of at least 4,000 rows with the
        effort "normal" or "thorough", unless another parameter needs one network.
    n_neighbors : int or None
        k of the soft-kNN confidence, and the maximum number of neighbours of a row for `locality`.
        The row itself is not counted. None: 20, or all other rows if there are fewer.
    neighbors : {"auto", "exact", "approximate"}
        Search method; "auto" uses the one with the shorter estimated time.
    n_partitions : int or None
        Number of partitions in which neighbours are searched; 1 searches all rows at once. None:
        1 if that fits into memory, else as many as make each partition small. Candidates are
        searched without partitions.
    overlap : int
        Average number of partitions that a row belongs to: one more near their borders, fewer
        inside. A higher number improves recall and takes more work.
    n_parts : int or None
        Number of parts of each pass over the rows. None: from the number of rows, and beyond 64
        from the number of workers.
    random_state : int
        Seed of the approximate search and of the choice among equally confident rows.

    Raises
    ------
    ParameterError
        If a value is not allowed.
    """

    scale: str = option(
        "auto",
        str,
        "standard: columns to mean 0 and variance 1; learned: also learned weights; unit: rows to "
        "length 1; auto: standard for tables with categories, dates or imputed values, else none.",
        choices=("auto", "none", "standard", "unit", "learned"),
    )
    metric_rounds: int = option(
        5, int, "Rounds in which the weights of columns are learned.", least=1, most=100
    )
    confidence_threshold: float = option(
        0.9, float, "Rows with a confidence below this threshold form the basis.", above=0, most=1
    )
    basis: str = option(
        "auto",
        str,
        "Cluster centres, drawn rows, rows of low confidence, or the rows of an .npy file; auto: "
        "sknn for classes, kmeans for numbers.",
        choices=("auto", *BASES),
        prefix=GIVEN_PREFIX,
        hint="given_basis returns the name of given rows",
        metavar="|".join(("auto", *BASES, "FILE")),
    )
    basis_size: int | None = option(
        None,
        int,
        "Number of basis rows.",
        least=1,
        none="sknn: all rows below the threshold, at most 10000; else a quarter of all, at most "
        "1000. A tuning chooses the size, unless the threshold or components are given",
    )
    basis_rule: str = option(
        "least-confident",
        str,
        "Rule that chooses rows of low confidence for a basis of a given size.",
        choices=("least-confident", "uniform"),
    )
    candidates: int | str = option(
        "auto",
        int,
        "Drawn rows that are searched for rows of low confidence; auto: with a basis size 20 for "
        "each basis row and at least 50000, up to half of the rows; otherwise, and with several "
        "partitions or approximate neighbors, all.",
        least=1,
        words=("auto", "all"),
        metavar="INTEGER|auto|all",
    )
    features: str = option(
        "auto",
        str,
        "Activations divided by their sum, or plain; auto: plain for numbers without components.",
        choices=("auto", "normalized", "plain"),
        predicts=True,
    )
    kernel: str = option(
        "gaussian",
        str,
        "Kernel function of the distance.",
        choices=tuple(KERNELS),
        predicts=True,
    )
    width_factor: float = option(
        1.0, float, "Kernel width over the mean distance to the basis.", least=1e-6, most=10**6
    )
    class_weight: str | None = option(
        None,
        str,
        "balanced: all classes have the same total weight.",
        choices=("balanced",),
        none="every row weighs the same",
    )
    alpha: float = option(
        1e-13, float, "Ridge penalty, relative to the trace of the gram matrix.", least=0, most=1
    )
    penalty: str = option(
        "weights",
        str,
        "Quadratic form of the penalty: weights, the kernel's norm, or weights of small clusters.",
        choices=tuple(PENALTIES),
    )
    locality: float = option(
        0.0,
        float,
        "Penalty on score differences between neighbours, relative like alpha; 0: no penalty.",
        least=0,
        most=1,
    )
    loss: str = option(
        "squared",
        str,
        "Loss of a score; all except squared are one class against the others.",
        choices=tuple(LOSSES),
        predicts=True,
    )
    prune: int | None = option(
        None,
        int,
        "Number of basis rows to keep: the rows that explain most of the targets.",
        least=1,
        none="all basis rows",
    )
    components: int | None = option(
        None,
        int,
        "Number of eigenfunctions of the basis to combine: the smoothest ones.",
        least=1,
        none="any weights",
    )
    # Never None once a fit begins.
    cells: int | str | None = option(
        None,
        int,
        "Number of cells that a tree cuts the rows into, each with its own network; auto: cells of "
        "at most 3 rows for each basis row. A tuning uses one network if it does as well.",
        least=1,
        words=("auto",),
        metavar="INTEGER|auto",
        none="1; a tuning: auto unless the effort is quick",
    )
    # Always an int after `resolve_auto`.
    n_neighbors: int = option(
        None,
        int,
        "Neighbours that the confidence of a row, or its locality, is computed from.",
        least=1,
        none=f"{_N_NEIGHBORS}, or all other rows",
    )
    neighbors: str = option(
        "auto",
        str,
        "Method of the neighbour search; auto: the one that is estimated to be faster.",
        choices=("auto", "exact", "approximate"),
    )
    n_partitions: int | None = option(
        None,
        int,
        "Number of overlapping partitions in which neighbours are searched.",
        least=1,
        none="1 if that fits 1 GiB, else as many as do",
    )
    overlap: int = option(2, int, "Partitions that a row belongs to, on average.", least=1)
    n_parts: int | None = option(
        None, int, "Parts of each pass over the rows.", least=1, none="by rows and workers"
    )
    random_state: int = option(
        0,
        int,
        "Seeds the approximate search and the choice among equally confident rows.",
        least=0,
        most=2**32 - 1,
    )

    def resolve_auto(
        self, *, numbers: bool, mixed: bool = False, n_rows: int | None = None
    ) -> Self:
        """Return the parameters of a fit, with a value in place of every "auto" and needed None.

        ``cells="auto"`` stays: the number of cells follows from the rows.
        """
        meant = dict(_AUTO_FOR_NUMBERS if numbers else _AUTO_FOR_CLASSES)
        meant["scale"] = "standard" if mixed else "none"
        if self.components is not None:
            meant["features"] = "normalized"
        asked = {name for name in meant if getattr(self, name) == "auto"}
        resolved = {name: meant[name] for name in asked}
        if self.n_neighbors is None:
            most = _N_NEIGHBORS if n_rows is None else max(n_rows - 1, 1)
            resolved["n_neighbors"] = min(_N_NEIGHBORS, most)
        if self.cells is None:
            resolved["cells"] = 1
        return replace(self, **resolved)

    @property
    def predicting(self) -> tuple[Any, ...]:
        """Values of the parameters on which predictions from the arrays of a model depend."""
        options = self.options().items()
        return tuple(getattr(self, name) for name, each in options if each.predicts)

    @property
    def normalized(self) -> bool:
        """Whether the activations of a row are divided by their sum; needs resolved parameters."""
        assert self.features != "auto"
        return self.features == "normalized"

    @property
    def asks_for_cells(self) -> bool:
        """Whether the fit may have several cells, each with its own network."""
        return self.cells not in (None, 1)

    @property
    def basis_is_given(self) -> bool:
        """Whether the basis rows are passed to the fit."""
        return self.basis.startswith(GIVEN_PREFIX)


@dataclass(frozen=True, kw_only=True)
class FitLimits(Params):
    """Limits that stop a fit; a stopped run can continue with other limits."""

    # On no tried table did a recall below this cost accuracy, but it shows that something is wrong.
    min_recall: float = option(
        0.95,
        float,
        "Least share of true neighbours that an approximate search must find.",
        least=0,
        most=1,
    )


def _tried(name: str, default: Sequence[Any] | None, help: str, *, none: str | None = None) -> Any:
    """Return the field for the tried values of a parameter of a fit."""
    of_fit = FitParams.options()[name]
    none = (none or of_fit.default_text) if default is None else None
    choices = tuple(each for each in of_fit.choices if each != "auto")
    changes: dict[str, Any] = {"default": default, "help": help, "none": none, "choices": choices}
    changes |= {"tunes": name, "prefix": None, "hint": "", "metavar": None, "predicts": False}
    return option(**(vars(of_fit) | changes | {"several": True}))


_BY_EFFORT = "by effort"


@dataclass(frozen=True, kw_only=True)
class TuneParams(Params):
    """Values that a tuning tries, and rules by which it compares results.

    Parameters
    ----------
    effort : {"quick", "normal", "thorough"}
        How much is tried for the parameters below that are not given. "quick": the Gaussian kernel,
        and the values of the fit for all else. "normal": also the Laplacian kernels of Euclidean
        and of l1 distances, learned weights of the columns, standardized columns if the fit does
        not scale, the "kernel" penalty, and for a basis of a given size a draw below the threshold
        or among all rows. "thorough": all kernels, losses and penalties, and centres of clusters.
        Parameters of the fit that differ from their defaults stay, except that "standard" may
        become "learned". If `basis_size`, `components` and `confidence_threshold` have their
        defaults, the number of basis rows is chosen too: 16, 32, and so on until a doubling gains
        nothing, with "quick" at most 1024. The smallest basis within one standard error of the best
        is chosen (Breiman et al. 1984), but of bases of up to 256 rows the best. "normal" and
        "thorough" compare a draw among all rows at every size.
    validation : str or None
        Fingerprint of a validation dataset.
    folds : int
        Number of cross-validation folds. Ignored with a validation dataset.
    alphas : sequence of float
        Values of alpha to try. Each takes a factorization per fold, and no pass over the rows. If
        several combinations are tried on a sample, the fit tries only the three alphas on either
        side of the best one.
    penalties : sequence of str or None
        Penalties to try, with all features that they apply to. If several combinations are tried
        on a sample, the fit has the penalty of the best. None: by `effort`.
    localities : sequence of float or None
        Values of locality to try, with every alpha and penalty. Each value takes one factorization
        for each of these; values above 0 take one pass over the rows. None: the value of the fit.
    components : sequence of int or None
        Numbers of eigenfunctions to try, with every alpha and normalized features. None: the value
        of the fit.
    losses : sequence of str or None
        Losses to try after all other choices. Each takes passes over the rows, until the labels of
        held-out rows do not improve. None: by `effort`.
    width_factors : sequence of float or None
        Width factors to try. None: those of each kernel, then some between and beyond them.
    features : sequence of str
        Kinds of features to try.
    kernels, scales, bases, basis_rules : sequences of str or None
        Values of these parameters to try. None: by `effort`. Bases and their rules are compared at
        a given `basis_size`. All combinations of scale, basis, rule, features, kernel and width are
        tried on a sample of the rows, first with few rows and a small basis. The best ones continue
        with more.
    search_basis : int
        Maximum number of basis rows in the rounds of the search. The final comparison has up to
        2,048 basis rows, a learning curve may have more.
    search_rows : int or None
        Rows of the search. None: as many as take 256 MiB, from 20,000 to 100,000.

    Raises
    ------
    ParameterError
        If a value is not allowed.
    """

    effort: str = option(
        "normal",
        str,
        "How many values to try for options that are not given.",
        choices=("quick", "normal", "thorough"),
    )
    validation: str | None = option(
        None,
        str,
        "Judge on these rows instead of folds.",
        none="folds of the rows",
        metavar="DATASET",
    )
    folds: int = option(5, int, "Folds of the rows, each held out once.", least=2)
    alphas: Sequence[float] = _tried(
        "alpha", tuple(10.0**-power for power in range(1, 14)), "Values of alpha to try."
    )
    penalties: Sequence[str] | None = _tried("penalty", None, "Penalties to try.", none=_BY_EFFORT)
    localities: Sequence[float] | None = _tried("locality", None, "Values of locality to try.")
    components: Sequence[int] | None = _tried(
        "components", None, "Numbers of eigenfunctions to try."
    )
    losses: Sequence[str] | None = _tried(
        "loss", None, "Losses to try, after all other options.", none=_BY_EFFORT
    )
    width_factors: Sequence[float] | None = _tried(
        "width_factor", None, "Width factors to try.", none="by kernel, then between and beyond"
    )
    features: Sequence[str] = _tried(
        "features", ("normalized", "plain"), "Kinds of features to try."
    )
    kernels: Sequence[str] | None = _tried("kernel", None, "Kernels to try.", none=_BY_EFFORT)
    scales: Sequence[str] | None = _tried("scale", None, "Scales to try.", none=_BY_EFFORT)
    bases: Sequence[str] | None = _tried(
        "basis", None, "Sources of a basis of a given size to try.", none=_BY_EFFORT
    )
    basis_rules: Sequence[str] | None = _tried(
        "basis_rule", None, "Rules to try for a basis of a given size.", none=_BY_EFFORT
    )
    search_basis: int = option(
        1000,
        int,
        "Largest basis size in the search of all options but penalty and loss.",
        least=2,
    )
    search_rows: int | None = option(
        None,
        int,
        "Rows of the search.",
        least=2,
        none="as many as take 256 MiB, from 20,000 to 100,000",
    )

    @property
    def n_folds(self) -> int:
        """Number of folds whose moments are summed separately; 1 with a validation dataset."""
        return 1 if self.validation is not None else self.folds


# Parameters of a fit that a tuning does not accept: the tuning chooses their values, or they would
# change the network after its error was measured. Scale and basis are accepted, because they also
# decide which other values are tried.
TUNED = frozenset(
    definition.tunes for definition in TuneParams.options().values() if definition.tunes
) - {"scale", "basis"} | {"prune"}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value


def _shown(value: object) -> str:
    """Return how an error shows a value."""
    text = repr(value)
    short = isinstance(value, str) or len(text) <= _MAX_SHOWN_LETTERS
    return text if short else f"a {type(value).__name__}"
