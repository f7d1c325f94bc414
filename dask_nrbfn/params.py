"""The parameters of a fit and of its tuning, each with its definition.

`FitParams` and `TuneParams` change the answer and are part of a run's identity, `FitLimits` are
not. What only changes how the work is done (workers, threads, memory) is in `dask_nrbfn.engine`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Self

from dask_nrbfn.choices import BASES, KERNELS, LOSSES, PENALTIES
from dask_nrbfn.errors import ParameterError

# What stands before the digest of basis rows that were given.
GIVEN_PREFIX = "given:"

_KINDS: dict[type, type[Any]] = {int: Integral, float: Real, str: str}

# A help shows the ends of a longer default.
_MAX_SHOWN_VALUES = 8
# An error names the type of what has a longer representation, such as an array.
_MAX_SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Option:
    """What a parameter may be and what is said of it: the command line and the README show it.

    Parameters
    ----------
    default : Any
    type : {int, float, str}
        Of the value, or of each of several.
    help : str
        What it does, in one line.
    choices : tuple of str
        All texts that are allowed; empty: any.
    words : tuple of str
        Texts that are allowed in the place of a number.
    prefix : str or None
        Texts that begin with it are allowed too.
    least, most, above : float
        A number is from `least` to `most`, and more than `above`.
    hint : str
        Told with what is allowed.
    none : str or None
        What None stands for, in words; without them None is not allowed.
    several : bool
        Whether it is a sequence of such values.
    tunes : str or None
        The parameter of a fit that these are values of.
    metavar : str or None
        How a command line's help writes the value, where it cannot know.
    predicts : bool
        Whether it decides what a model predicts from its arrays.
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
        """The default in words."""
        if self.default is None:
            return str(self.none)
        values = self.default if self.several else (self.default,)
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        if len(texts) > _MAX_SHOWN_VALUES:
            texts[2:-1] = ["..."]
        return ",".join(texts)

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
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
        """Check the value of a parameter.

        Parameters
        ----------
        name : str
        value : Any

        Raises
        ------
        ParameterError
            If the value is not allowed.
        """
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
            remedy += "" if self.none is None else ", or leave it out"
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
    """Return a field of a dataclass that an `Option` of these values defines."""
    definition = Option(*values, **details)
    return field(default=definition.default, metadata={"option": definition})


@dataclass(frozen=True)
class Params:
    """Parameters that are checked when they are given, each by its option."""

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
        """Return the parameters as plain JSON values."""
        return {name: _plain(value) for name, value in asdict(self).items()}


_N_NEIGHBORS = 20
_AUTO_FOR_CLASSES: dict[str, Any] = {"basis": "sknn", "features": "normalized"}
_AUTO_FOR_NUMBERS: dict[str, Any] = {"basis": "kmeans", "features": "plain"}


@dataclass(frozen=True, kw_only=True)
class FitParams(Params):
    """What a fit computes.

    Parameters
    ----------
    svd : int or None
        Every row is replaced by so many coordinates, its products with the first right singular
        vectors of X, before anything else; scale and all after it act on these. The vectors are
        those of the rows as they are: not centred, and of weights nothing is seen. None: the rows.
    scale : {"auto", "none", "standard", "unit", "learned"}
        Columns to mean 0 and variance 1, those of a category together, or rows to unit length,
        before anything else. "auto": "standard" for tables with categories, dates or filled gaps,
        else "none". "learned": columns to mean 0 and variance 1, then each multiplied by the square
        root of its weight, which is learned on at most 20,000 rows.
    metric_rounds : int
        Rounds in which "learned" weights are learned, at most; those that do best on rows that are
        held out are taken, equal ones unless others gain more than chance.
    confidence_threshold : float
        t in (0, 1]: rows with a confidence below it form the basis. Not used with `basis_size`.
    basis : {"auto", "kmeans", "random", "sknn"} or str
        Where the basis comes from: the centres of k-means clusters, rows drawn evenly, rows of low
        soft-kNN confidence, or "given:" and the digest of rows that are handed to the fit. "auto":
        "sknn" for classes, "kmeans" for numbers.
    basis_size : int or None
        Number of basis rows r. None: with "sknn" all rows below the threshold, at most 10,000 and
        as many as fit the memory; else a quarter of the rows, at most 1,000, as far as they are
        distinct.
    basis_rule : {"least-confident", "uniform"}
        Which rows form a basis of a given size: the least confident, or a draw among the rows
        below the threshold, which the least confident of the others fill up.
    candidates : int or {"auto", "all"}
        Rows among which those of low confidence are looked for: so many are drawn, some of every
        class, and their neighbours found among all rows. "auto": 20 for each basis row and at
        least 50,000 with `basis_size`, where that is at most half of the rows; else all.
    features : {"auto", "normalized", "plain"}
        Activations of a row divided by their sum (the paper's), or as they are. "auto":
        "normalized" for classes and with `components`, else "plain" for numbers.
    kernel : {"gaussian", "laplace-l1", "laplacian", "matern32", "matern52"}
        Of ``t = d / sigma`` with d the distance to a basis row: ``exp(-t^2 / 2)``, ``exp(-t^q)``,
        ``exp(-t)``, ``(1 + a) exp(-a)`` with ``a = sqrt(3) t``, and ``(1 + a + a^2 / 3) exp(-a)``
        with ``a = sqrt(5) t``. d is Euclidean, and with "laplace-l1"
        ``(sum_l |x_l - g_l|^q)^(1/q)``, for q = 1 the l1 distance.
    kernel_exponent : float
        q of "laplace-l1", above 0 and at most 2.
    width_factor : float
        Sigma is so many times the mean distance between rows and basis rows; 1 is the paper's.
    class_weight : {"balanced"} or None
        "balanced": the rows of every class together weigh the same.
    alpha : float
        Ridge penalty, relative to the trace of the gram matrix (the paper's lambda).
    penalty : {"weights", "kernel", "clusters"}
        What the ridge keeps small: the squared norm of the weights (the paper's); the norm in the
        kernel's own space, as Nystroem kernel ridge regression does, with plain features; or the
        squares of the weights over the shares of the rows in each cluster, with plain features of
        a "kmeans" basis.
    locality : float
        What the ridge adds for differences between the scores of neighbours, relative to the trace
        of the gram matrix. Neighbours of a row are nearer than any row of another class. 0: off.
    loss : {"squared", "squared-hinge", "logistic", "hinge"}
        What the network keeps small beside the penalty. "squared": the distance from the class
        indicators (the paper's), which one ridge system solves. The others are of the margins
        ``m = t f`` of each class against the others, t = 1 or -1: ``max(0, 1 - m)^2``,
        ``log(1 + e^-m)``, and ``max(0, 1 - m)``, smooth within 0.1 of its bend. They take up to 10
        more passes over the rows, in a tuning up to 20.
    prune : int or None
        Basis rows that the network keeps of all: those that explain most of the targets, by
        regularized orthogonal least squares on the sums. Plain features. None: all.
    components : int or None
        The weights of each target are in the span of so many eigenfunctions of the basis, those
        that vary least where its rows are dense: a spectral series (Lee & Izbicki). Normalized
        features. None: anywhere.
    n_neighbors : int or None
        k of the soft-kNN confidence, and the most neighbours of a row that `locality` looks at; the
        row itself is not counted. None: 20, or all other rows where there are fewer.
    neighbors : {"auto", "exact", "approximate"}
        How neighbours are found; "auto" takes the one that is estimated to be faster.
    n_partitions : int or None
        Number of partitions in which neighbours are searched; 1 searches all rows at once. None:
        1 if that fits, else as many as make each of them small; of candidates, twice the root of
        their number if that is estimated to be faster than 1.
    overlap : int
        Number of partitions that a row belongs to on average: one more near their borders, fewer
        inside. More: better recall, more work. Candidates look into as many as a sample tells.
    n_parts : int or None
        Number of parts that each pass over the rows is cut into. None: from the number of rows,
        and from that of workers beyond 64.
    random_state : int
        Seeds the approximate neighbours and the choice among equally confident rows.

    Raises
    ------
    ParameterError
        If a value is not allowed.
    """

    svd: int | None = option(
        None,
        int,
        "Replace every row by so many coordinates of a truncated SVD.",
        least=1,
        none="the rows as they are",
    )
    scale: str = option(
        "auto",
        str,
        "Columns to mean 0 and variance 1, learned weights on top, or rows to unit length; auto: "
        "standard for tables with categories, dates or filled gaps, else none.",
        choices=("auto", "none", "standard", "unit", "learned"),
    )
    metric_rounds: int = option(
        5, int, "Rounds in which the weights of columns are learned.", least=1, most=100
    )
    confidence_threshold: float = option(
        0.9, float, "Rows with a confidence below it form the basis.", above=0, most=1
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
        "1000",
    )
    basis_rule: str = option(
        "least-confident",
        str,
        "Which rows of low confidence form a basis of a given size.",
        choices=("least-confident", "uniform"),
    )
    candidates: int | str = option(
        "auto",
        int,
        "Drawn rows among which those of low confidence are looked for; auto: with a basis size "
        "20 for each basis row and at least 50000, up to half of the rows; else all.",
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
        "How activations fall with distance.",
        choices=tuple(KERNELS),
        predicts=True,
    )
    kernel_exponent: float = option(
        1.0,
        float,
        "Power of the differences of columns that laplace-l1 sums; 1: l1 distances.",
        above=0,
        most=2,
        predicts=True,
    )
    width_factor: float = option(
        1.0, float, "Kernel width over the mean distance to the basis.", least=1e-6, most=10**6
    )
    class_weight: str | None = option(
        None,
        str,
        "Let the rows of every class together weigh the same.",
        choices=("balanced",),
        none="every row weighs the same",
    )
    alpha: float = option(
        1e-13, float, "Ridge penalty, relative to the trace of the gram matrix.", least=0, most=1
    )
    penalty: str = option(
        "weights",
        str,
        "What the ridge keeps small: weights, the kernel's own norm, or weights of small clusters.",
        choices=tuple(PENALTIES),
    )
    locality: float = option(
        0.0,
        float,
        "Penalty of neighbours whose scores differ, relative like alpha; 0: none.",
        least=0,
        most=1,
    )
    loss: str = option(
        "squared",
        str,
        "What a wrong score costs; of all but squared, each class against the others.",
        choices=tuple(LOSSES),
        predicts=True,
    )
    prune: int | None = option(
        None,
        int,
        "Keep only so many basis rows, those that explain most.",
        least=1,
        none="all basis rows",
    )
    components: int | None = option(
        None,
        int,
        "Combine only so many eigenfunctions of the basis, the smoothest ones.",
        least=1,
        none="any weights",
    )
    # An int wherever it is used: of resolved parameters.
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
        "How neighbours are searched; auto: the way that is estimated to be faster.",
        choices=("auto", "exact", "approximate"),
    )
    n_partitions: int | None = option(
        None,
        int,
        "Search neighbours in so many overlapping parts of the feature space.",
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
        """Return the parameters with what "auto" stands for, and a number of neighbours.

        Parameters
        ----------
        numbers : bool
            Whether the targets are numbers, which have no borders between classes, and no scores
            that sum to 1.
        mixed : bool
            Whether the features are of several kinds, and so of several units.
        n_rows : int, optional
            Rows that may be neighbours; None: enough.

        Notes
        -----
        Eigenfunctions are of normalized features.
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
        return replace(self, **resolved)

    @property
    def predicting(self) -> tuple[Any, ...]:
        """Values of the parameters that decide what a model predicts from its arrays."""
        names = [name for name, definition in self.options().items() if definition.predicts]
        if self.kernel_exponent == 1:
            # Digests that runs and predictions hold are older than this parameter.
            names.remove("kernel_exponent")
        return tuple(getattr(self, name) for name in names)

    @property
    def normalized(self) -> bool:
        """Whether the activations of a row are divided by their sum, of resolved parameters."""
        assert self.features != "auto"
        return self.features == "normalized"

    @property
    def basis_is_given(self) -> bool:
        """Whether the basis rows are handed to the fit."""
        return self.basis.startswith(GIVEN_PREFIX)


@dataclass(frozen=True, kw_only=True)
class FitLimits(Params):
    """What stops a fit; a run that was stopped may go on with others.

    Parameters
    ----------
    min_recall : float
        Least share of the true neighbours that an approximate search must find.

    Raises
    ------
    ParameterError
        If a value is not allowed.
    """

    # A lower recall than this has cost accuracy on no table tried; below it something is wrong.
    min_recall: float = option(
        0.95,
        float,
        "Least share of true neighbours that an approximate search must find.",
        least=0,
        most=1,
    )


def _tried(name: str, default: Sequence[Any] | None, help: str, *, none: str | None = None) -> Any:
    """Return the field of values of a fit's parameter; None stands for its default alone."""
    of_fit = FitParams.options()[name]
    none = (none or of_fit.default_text) if default is None else None
    choices = tuple(each for each in of_fit.choices if each != "auto")
    changes: dict[str, Any] = {"default": default, "help": help, "none": none, "choices": choices}
    changes |= {"tunes": name, "prefix": None, "hint": "", "metavar": None, "predicts": False}
    return option(**(vars(of_fit) | changes | {"several": True}))


_BY_EFFORT = "by effort"


@dataclass(frozen=True, kw_only=True)
class TuneParams(Params):
    """What is tried, and how it is judged.

    Parameters
    ----------
    effort : {"quick", "normal", "thorough"}
        How much is tried of what is left out below. "quick": the Gaussian kernel, and what the fit
        has of all else. "normal": Laplacian kernels of both distances too; learned weights of the
        columns and, where the fit scales nothing, standardized ones; the kernel's own norm as a
        penalty; and instead of the least confident rows of a given number a draw below the
        threshold, or of all rows.
        "thorough": all kernels, losses and penalties, and centres of clusters. What the fit has
        otherwise than by default stays; "standard" may become "learned".
    validation : str or None
        Fingerprint of a validation dataset.
    folds : int
        Number of folds of the rows, of which each is held out once. Not used with a validation
        dataset.
    alphas : sequence of float
        Values of alpha to try; each costs a factorization per fold, no pass over the rows. If
        several combinations are tried on a sample, the fit tries only the three on either side of
        the sample's best.
    penalties : sequence of str or None
        Penalties to try, with all features that support them. If several combinations are tried on
        a sample, the fit has the penalty of the best. None: by `effort`.
    localities : sequence of float or None
        Values of locality to try, with every alpha and penalty; each costs as many factorizations
        as these, and any above 0 one pass over the rows. None: that of the fit.
    components : sequence of int or None
        Numbers of eigenfunctions to try, with every alpha and normalized features. None: that of
        the fit.
    losses : sequence of str or None
        Losses to try, last, with what was chosen of all else; each costs passes over the rows,
        until rows that are held out are labelled no better. None: by `effort`.
    width_factors : sequence of float or None
        Width factors to try. None: those of each kernel, and then some between and beyond them.
    features : sequence of str
        Kinds of features to try.
    kernels, scales, bases, basis_rules : sequences of str or None
        Values of these parameters to try. None: by `effort`. Bases and their rules are compared at
        a given `basis_size`. Scale, basis, rule, features, kernel and width are tried in all
        combinations on a sample of the rows, first on few rows and with a small basis; those that
        do best go on to more.
    search_basis : int
        Basis rows of the search, at most.
    search_rows : int or None
        Rows of the search. None: as many as make 256 MiB, from 20,000 to 100,000.

    Raises
    ------
    ParameterError
        If a value is not allowed.
    """

    effort: str = option(
        "normal",
        str,
        "How much is tried of what is not listed.",
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
        "loss", None, "Losses to try, after all else.", none=_BY_EFFORT
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
        1000, int, "Basis rows while all but penalty and loss is tried, at most.", least=2
    )
    search_rows: int | None = option(
        None,
        int,
        "Rows on which they are tried.",
        least=2,
        none="256 MiB of them, from 20,000 to 100,000",
    )

    @property
    def n_folds(self) -> int:
        """Number of folds whose moments are summed apart; 1 with a validation dataset."""
        return 1 if self.validation is not None else self.folds


# What a tuning chooses is no parameter of it, but for those that decide what else it tries; nor is
# what would change the network that it has judged.
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
