"""The parameters of a fit and of its tuning, each with its definition.

`FitParams` and `TuneParams` change the result and identify a run; `FitLimits` do not. Options that
only change how the work is done (workers, threads, memory) are in `dask_nrbfn.engine`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from inspect import cleandoc
from numbers import Integral, Real
from textwrap import indent, wrap
from typing import Any, Self

from dask_nrbfn.choices import BASES, KERNELS, LOSSES, PENALTIES
from dask_nrbfn.errors import ParameterError

# Prefix of the digest of given basis rows.
GIVEN_PREFIX = "given:"

# The alpha of the paper, for fits that cannot choose one.
PAPER_ALPHA = 1e-13

# The threshold of the paper, and the rows that are drawn above the threshold unless one is given.
# Where the classes do not overlap, no row is below it. The draw has the rows of spirals, boards and
# tens of groups that a kernel needs, and the classes of a table of which only a part overlaps.
PAPER_THRESHOLD, N_DRAWN = 0.9, 500

# Rows with more features are mostly images, spectra and the like, whose columns have one unit.
MOST_FEATURES = 256

_KINDS: dict[type, type[Any]] = {int: Integral, float: Real, str: str}

# The help shortens a longer default.
_MAX_SHOWN_VALUES = 8
_DOCSTRING_WIDTH = 92
# An error shows only the type of a value with a longer representation, such as an array.
_MAX_SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Option:
    """Definition of a parameter, for the command line, docstrings, the guide and checks.

    type: type of the value, or of each of several values; bool of a flag, object of anything.
    help: its effect.
    choices: all allowed texts; empty: any. prefix: texts with this prefix are allowed too.
    words: texts that are allowed instead of a number.
    least, most: a number is from `least` to `most`.
    none: meaning of None in words, which may be empty; without it None is not allowed.
    several: whether the value is a sequence. tunes: the parameter of a fit whose values are tried.
    metavar: placeholder of the value in the help; None: from the type.
    rare: whether the help of a command has only its name.
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
    none: str | None = None
    several: bool = False
    tunes: str | None = None
    metavar: str | None = None
    rare: bool = False

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
        if self.type is bool:
            return "True or False"
        if self.type in (str, object):
            allowed = ", ".join(self.choices) or self._allowed_text
            allowed = f"one of {allowed}" if len(self.choices) > 1 else allowed
        else:
            allowed = "an integer" if self.type is int else "a number"
            no_most = self.most == math.inf
            allowed += f" {'of at least' if no_most else 'from'} {self.least}"
            allowed += "" if no_most else f" to {self.most}"
            allowed = f"{allowed}, or {' or '.join(self.words)}" if self.words else allowed
        return f"a few values, each {allowed}" if self.several and not self._has_names else allowed

    @property
    def _allowed_text(self) -> str:
        """The allowed values of an option without choices."""
        if self._has_names:
            return "text with commas, or a sequence"
        return "text" if self.type is str else str(self.metavar)

    @property
    def placeholder(self) -> str:
        """The placeholder of the value in the help of a command."""
        numbers = {int: ("INTEGER",), float: ("NUMBER",)}.get(self.type, ())
        one = self.metavar or "|".join((*numbers, *self.choices, *self.words))
        return f"{one},..." if self.several and not self._has_names else one

    @property
    def _has_names(self) -> bool:
        """Whether the values are any texts, which `metavar` describes all together."""
        return self.several and self.type is str and not self.choices

    def documentation(self, name: str, default: Any) -> str:
        """Return the entry of a docstring for a parameter with this name and default."""
        own = replace(self, default=default)
        shown, help = own.default_text, self.help
        if default is None:
            shown, help = "None", f"{help} None: {self.none}." if self.none else help
        text = "\n".join(wrap(help, _DOCSTRING_WIDTH, break_on_hyphens=False))
        return f"{name} : {self.allowed}, default={shown}\n{indent(text, '    ')}"

    def parse(self, text: str) -> Any:
        """Return the value that a text gives; a text that gives none stays, for `check`."""
        if self._has_names or self.type is object:
            return text
        if self.several:
            one = replace(self, several=False)
            return tuple(one.parse(each.strip()) for each in text.split(","))
        try:
            return text if text in self.words else self.type(text)
        except ValueError:
            return text

    def check(self, name: str, value: Any) -> None:
        """Raise ParameterError unless the value is allowed."""
        if value is None and self.none is not None:
            return
        items = value if self.several and isinstance(value, tuple) and value else (value,)
        if wrong := [item for item in items if not self._allows(item)]:
            shown, without = repr(wrong[0]), "" if self.none is None else f", or leave `{name}` out"
            if len(shown) > _MAX_SHOWN_LETTERS and not isinstance(wrong[0], str):
                shown = f"a {type(wrong[0]).__name__}"
            raise ParameterError(f"`{name}` is {shown}.", f"Give {self.allowed}{without}.")

    def _allows(self, value: Any) -> bool:
        if isinstance(value, str) and value in self.words:
            return True
        if self.type in (bool, object):
            return isinstance(value, self.type)
        if not isinstance(value, _KINDS[self.type]) or isinstance(value, bool):
            return False
        if self.type is str:
            if not self.choices:
                return self.several or bool(value)
            begun = self.prefix is not None and value.startswith(self.prefix)
            return value in self.choices or begun
        return bool(self.least <= value <= self.most)


def _field(definition: Option) -> Any:
    return field(default=definition.default, metadata={"option": definition})


def word(default: str | None, choices: str, help: str, **details: Any) -> Any:
    """Return the option of a word; `choices` has | between them, and may be empty."""
    words = tuple(filter(None, choices.split("|")))
    return _field(Option(default, str, help, choices=words, **details))


def count(default: Any, help: str, least: int = 1, **details: Any) -> Any:
    """Return the option of a whole number."""
    return _field(Option(default, int, help, least=least, **details))


def number(default: Any, help: str, most: float = 1, **details: Any) -> Any:
    """Return the option of a number."""
    return _field(Option(default, float, help, most=most, **details))


def flag(help: str) -> Any:
    """Return the option of a flag, which is off by default."""
    return _field(Option(False, bool, help))


def names(help: str, *, none: str = "", metavar: str = "COLUMNS") -> Any:
    """Return the option of any names; `metavar` stands for all of them."""
    return _field(Option(None, str, help, none=none, metavar=metavar, several=True))


def anything(help: str, **details: Any) -> Any:
    """Return the option of a value whose type is checked where it is used; None by default."""
    return _field(Option(None, object, help, **details))


@dataclass(frozen=True)
class Params:
    """Parameters whose values are checked by their options."""

    def __post_init__(self) -> None:
        for name, definition in self.options().items():
            value = getattr(self, name)
            if definition.several and value is not None:
                one = isinstance(value, str) or not isinstance(value, Iterable)
                value = (value,) if one else tuple(value)
                object.__setattr__(self, name, value)
            definition.check(name, value)

    @classmethod
    @cache
    def options(cls) -> Mapping[str, Option]:
        """Return the option of every parameter by its name."""
        return {
            each.name: each.metadata["option"] for each in fields(cls) if "option" in each.metadata
        }

    @classmethod
    def of_named(cls, values: Mapping[str, Any]) -> Self:
        """Return parameters of values by name; an unknown name is a ParameterError."""
        known = cls.options()
        for name in values:
            if name not in known:
                alike = get_close_matches(name, known, n=1)
                hint = f"`{alike[0]}` has a similar name. " if alike else ""
                options = ", ".join(f"`{each}`" for each in known)
                raise ParameterError(
                    f"{name} is not an option.", f"{hint}The options are {options}."
                )
        return cls(**values)

    @classmethod
    def of_checked(cls, values: Mapping[str, Any]) -> Self:
        """Return parameters of values, one for every field, that were checked before."""
        params = object.__new__(cls)
        vars(params).update(values)
        return params

    def with_checked(self, **changes: Any) -> Self:
        """Return a copy with some other values that were checked before."""
        return self.of_checked(vars(self) | changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON-serializable values."""
        return {name: plain(value) for name, value in asdict(self).items()}


def document(kind: type[Any], options: Mapping[str, Option]) -> None:
    """Add the fields of a dataclass to its docstring, before its section Attributes."""
    entries = [
        options[each.name].documentation(each.name, each.default)
        for each in fields(kind)
        if each.init and each.name in options
    ]
    first, section, others = cleandoc(str(kind.__doc__)).partition("\n\nAttributes\n")
    own = "\n".join(["Parameters", "----------", *entries])
    kind.__doc__ = f"{first}\n\n{own}{section}{others}"


N_NEIGHBORS, _METRIC_ROUNDS = 20, 5


@dataclass(frozen=True, kw_only=True)
class FitParams(Params):
    """Parameters of a fit that change its result. A value that is not allowed is a ParameterError.

    ``help(FitParams)`` and the page Parameters of the guide list them.
    """

    scale: str = word(
        "auto",
        "auto|none|standard|rank|unit|learned",
        "standard: columns to mean 0 and variance 1, those of a category together; rank: numbers "
        "to normal scores of their ranks; learned: standard or rank, multiplied by weights that "
        "the targets of at most 6,000 rows decide; unit: rows to length 1; auto: standard in a "
        f"fit of dense rows with up to {MOST_FEATURES} features, and for tables with categories, "
        "dates or imputed values, else none, the paper's.",
    )
    metric_rounds: int | None = count(
        None,
        "Largest number of rounds that learn the weights of columns. The round with the best "
        "result on held-out rows is used; none is used if the gain is by chance. Rounds end after "
        "two without a gain.",
        most=100,
        none=f"{_METRIC_ROUNDS}",
        rare=True,
    )
    confidence_threshold: float | None = number(
        None,
        "Only rows with a confidence below this threshold form the basis, unless it has a size; a "
        "class without such a row gives one row. The paper has 0.9.",
        least=1e-6,
        none=f"{PAPER_THRESHOLD}, and {N_DRAWN} rows drawn from the others, ten of every class; in "
        "a table of fewer than 2000 rows, a quarter of the rows",
    )
    basis: str = word(
        "auto",
        "|".join(("auto", *BASES)),
        "Centres of clusters, drawn rows, rows of low soft-kNN confidence, or the rows of an .npy "
        "file; auto: sknn for classes, kmeans for numbers.",
        prefix=GIVEN_PREFIX,
        metavar="|".join(("auto", *BASES, "FILE")),
    )
    basis_size: int | None = count(
        None,
        "Number of basis rows.",
        none="sknn: all below the threshold, at most 2000, or 10000 with a given "
        "`confidence_threshold`, and as many as fit into memory; else a quarter of all, at most "
        "1000; in a tuning, the size is chosen unless the threshold or components are given",
    )
    basis_rule: str = word(
        "uniform",
        "uniform|least-confident",
        "Rule that chooses rows for a basis of a given size: a draw of rows below the threshold, "
        "or the least confident.",
        rare=True,
    )
    candidates: int | str = count(
        "auto",
        "Drawn rows that are searched for rows of low confidence; auto: with a basis size 20 for "
        "each basis row and at least 50000, up to half of the rows; otherwise, and with several "
        "partitions or approximate neighbors, all.",
        words=("auto", "all"),
        rare=True,
    )
    features: str = word(
        "auto",
        "auto|normalized|plain",
        "Activations of a row divided by their sum, or plain; auto: plain for numbers without "
        "components.",
    )
    kernel: str = word(
        "auto",
        "|".join(("auto", *KERNELS)),
        "Function of t = distance / width: gaussian exp(-t^2 / 2); laplacian exp(-t); laplace-l1 "
        "the same of the l1 distance; matern32 (1 + a) exp(-a), a = sqrt(3) t; matern52 "
        "(1 + a + a^2 / 3) exp(-a), a = sqrt(5) t; auto: laplace-l1 in a fit of dense "
        f"rows with up to {MOST_FEATURES} features, else gaussian, the paper's.",
    )
    width_factor: float = number(
        1.0,
        "Kernel width divided by the mean distance between rows and basis rows; 1 is the paper's.",
        least=1e-6,
        most=10**6,
    )
    class_weight: str | None = word(
        None,
        "balanced",
        "balanced: all classes have the same total weight.",
        none="every row weighs the same",
    )
    alpha: float | str = number(
        "auto",
        "Ridge penalty, relative to the trace of the gram matrix (the paper's lambda); auto: the "
        "best of 0.1, 0.001, ..., 1e-13 on held-out rows, or in each cell the best of 0.001, 1e-4, "
        "..., 1e-9. With prune, another loss than squared, or fewer than 10 labelled rows, auto is "
        "1e-13.",
        least=0,
        words=("auto",),
    )
    penalty: str = word(
        "weights",
        "|".join(PENALTIES),
        "What the ridge keeps small: the weights; the norm in the space of the kernel, for plain "
        "features; or weights divided by the share of their cluster, for plain features of a "
        "kmeans basis.",
    )
    locality: float = number(
        0.0,
        "Penalty on score differences between neighbours, relative like alpha; 0: no penalty. The "
        "neighbours of a row are nearer than any row of another class.",
        least=0,
    )
    loss: str = word(
        "squared",
        "|".join(LOSSES),
        "Loss of a score; all except squared are of the margin m of one class against the others: "
        "squared-hinge max(0, 1 - m)^2, logistic log(1 + e^-m), hinge max(0, 1 - m), smoothed. "
        "They take up to 10 more passes over the rows, in a tuning up to 20. Only a tuning chooses "
        "their alpha and calibrates their probabilities.",
    )
    prune: int | None = count(
        None,
        "Number of basis rows to keep: those that explain most of the targets; for plain features.",
        none="all basis rows",
    )
    components: int | None = count(
        None,
        "Number of eigenfunctions of the basis to combine, the smoothest ones (a spectral series, "
        "Lee & Izbicki), for normalized features.",
        none="any weights",
    )
    # Never None once a fit begins.
    cells: int | str | None = count(
        None,
        "Number of cells that a tree cuts the rows into, each with its own network; auto: cells "
        "of at most 3 rows for each basis row, at most 1024. A tuning uses one network if it does "
        "as well. For dense rows and the squared loss.",
        words=("auto",),
        none="1; in a tuning, auto unless the effort is quick",
    )
    n_neighbors: int | None = count(
        None,
        "Neighbours that the confidence of a row, or its locality, is computed from.",
        none=f"{N_NEIGHBORS}, or all other rows",
        rare=True,
    )
    neighbors: str = word(
        "auto",
        "auto|exact|approximate",
        "Method of the neighbour search; auto: the one that is estimated to be faster.",
        rare=True,
    )
    n_partitions: int | None = count(
        None,
        "Number of overlapping partitions in which neighbours are searched.",
        none="1 if that fits 1 GiB, else as many as do",
        rare=True,
    )
    overlap: int = count(2, "Partitions that a row belongs to, on average.", rare=True)
    n_parts: int | None = count(
        None, "Parts of each pass over the rows.", none="by rows and workers", rare=True
    )
    random_state: int = count(
        0,
        "Seeds the approximate search and the choice among equally confident rows.",
        least=0,
        most=2**32 - 1,
        rare=True,
    )

    def resolve_auto(
        self,
        *,
        numbers: bool,
        mixed: bool = False,
        n_rows: int | None = None,
        n_features: int | None = None,
    ) -> Self:
        """Return the parameters with values in place of "auto" (but `cells`, `alpha`) and None.

        n_features: number of features of a plain fit of dense rows; None: any other fit.
        """
        is_table = n_features is not None and n_features <= MOST_FEATURES
        values: dict[str, Any] = {
            "basis": "kmeans" if numbers else "sknn",
            "features": "plain" if numbers and self.components is None else "normalized",
            "scale": "standard" if mixed or is_table else "none",
            "kernel": "laplace-l1" if is_table else "gaussian",
        }
        resolved = {name: values[name] for name in values if getattr(self, name) == "auto"}
        if self.n_neighbors is None:
            most = N_NEIGHBORS if n_rows is None else max(n_rows - 1, 1)
            resolved["n_neighbors"] = min(N_NEIGHBORS, most)
        for name, value in (("cells", 1), ("metric_rounds", _METRIC_ROUNDS)):
            if getattr(self, name) is None:
                resolved[name] = value
        return self.with_checked(**resolved)

    @property
    def k(self) -> int:
        """The number of neighbours of a fit that has begun."""
        assert self.n_neighbors is not None
        return self.n_neighbors

    @property
    def most_rounds(self) -> int:
        """The largest number of rounds that learn column weights, of a fit that has begun."""
        assert self.metric_rounds is not None
        return self.metric_rounds

    @property
    def chosen_alpha(self) -> float:
        """The alpha of a fit that has chosen it."""
        assert not isinstance(self.alpha, str)
        return self.alpha

    @property
    def predicting(self) -> tuple[str, str, str]:
        """Values of the parameters on which predictions from the arrays of a model depend."""
        return self.features, self.kernel, self.loss

    @property
    def normalized(self) -> bool:
        """Whether the activations of a row are divided by their sum; needs resolved parameters."""
        assert self.features != "auto"
        return self.features == "normalized"

    @property
    def threshold(self) -> float:
        """The confidence below which a row may enter the basis."""
        given = self.confidence_threshold
        return PAPER_THRESHOLD if given is None else given

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
    min_recall: float = number(
        0.95,
        "Least share of true neighbours that an approximate search must find.",
        least=0,
        rare=True,
    )
    time_limit: float | None = number(
        None,
        "Seconds after which a tuning tries nothing more and fits the best network so far. A step "
        "that has begun ends first.",
        least=0,
        most=math.inf,
        none="no limit",
        metavar="SECONDS",
    )


def _tried(name: str, default: Sequence[Any] | None, help: str, **own: Any) -> Any:
    """Return the field for the tried values of a parameter of a fit."""
    of_fit = FitParams.options()[name]
    choices = tuple(each for each in of_fit.choices if each != "auto")
    own = {"rare": False, "none": of_fit.default_text if default is None else None} | own
    own |= {"default": default, "help": help, "choices": choices, "tunes": name}
    return _field(replace(of_fit, **own, several=True, prefix=None, metavar=None, words=()))


_BY_EFFORT = "by effort"


@dataclass(frozen=True, kw_only=True)
class TuneParams(Params):
    """Values that a tuning tries, and rules by which it compares results.

    Networks are fitted to a sample of the rows and compared by their squared errors on the same
    held-out rows of the sample. All combinations of scale, features, kernel and width are tried
    with few rows and a small drawn basis; the best ones continue with more. Without a `basis_size`,
    `components` or `confidence_threshold` the number of basis rows is chosen too: 16, 32, and so on
    until a doubling gains less than a standard error ("quick": two). The smallest basis within one
    standard error of the best is chosen (Breiman et al. 1984); among such bases of up to 256 rows,
    the largest. Sources of the basis and penalties are compared with that size.
    ``help(TuneParams)`` and the page Parameters of the guide list the parameters.
    """

    effort: str = word(
        "normal",
        "quick|normal|thorough",
        "How much is tried for options that are not given. quick: gaussian and laplace-l1 "
        "kernels, standardized columns, ranks, weights of the columns learned from Euclidean "
        "distances, drawn bases if the size is chosen, and at most 2,048 basis rows; with given "
        "width factors, only the kernel and scale of the fit. normal: also the laplacian kernel, "
        "weights learned from l1 distances, the kernel penalty, and drawn bases of a given size. "
        "thorough: all kernels, losses and penalties, and centres of clusters.",
    )
    validation: str | None = word(
        None,
        "",
        "Judge on these rows instead of folds.",
        none="folds of the rows",
        metavar="DATASET",
    )
    folds: int = count(
        5,
        "Folds of the rows. As many are held out, one after another, as have 10,000 rows; of fewer "
        "rows all folds. Ignored with a validation dataset.",
        least=2,
    )
    alphas: Sequence[float] = _tried(
        "alpha", tuple(10.0**-power for power in range(1, 14)), "Values of alpha to try."
    )
    penalties: Sequence[str] | None = _tried("penalty", None, "Penalties to try.", none=_BY_EFFORT)
    localities: Sequence[float] | None = _tried(
        "locality", None, "Values of locality to try, with every alpha and penalty.", rare=True
    )
    components: Sequence[int] | None = _tried(
        "components", None, "Numbers of eigenfunctions to try, with every alpha.", rare=True
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
        "basis_rule", None, "Rules to try for a basis of a given size.", none=_BY_EFFORT, rare=True
    )
    search_basis: int = count(
        1000,
        "Largest basis size with which scales, features, kernels and widths are compared.",
        least=2,
        rare=True,
    )
    search_rows: int | None = count(
        None,
        "Rows of the sample on which networks are compared.",
        least=2,
        none="as many as take 256 MiB, from 20,000 to 100,000",
        rare=True,
    )


for _kind in (FitParams, TuneParams):
    document(_kind, _kind.options())

# Parameters of a fit that a tuning does not accept: the tuning chooses their values, or they would
# change the network after its error was measured. Scale and basis are accepted, because they also
# decide which other values are tried.
TUNED = frozenset(
    definition.tunes for definition in TuneParams.options().values() if definition.tunes
) - {"scale", "basis"} | {"prune"}


def plain(value: Any) -> Any:
    """Return a value of a parameter as JSON has it."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
