"""A paper's figures beside ours, a line each, and what is said of them."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sets import DataSet

HEADER = "| data | what | paper | here | |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Line:
    """What was measured, the figure in print and ours, and whether it is reproduced."""

    what: str
    paper: str
    here: str
    verdict: str

    @classmethod
    def beside(
        cls,
        what: str,
        paper: str,
        here: float | None,
        *,
        close: float,
        note: str = "",
        why: str = "",
    ) -> "Line":
        """Return the line of a printed figure and ours; None: it cannot be had.

        Ours is rounded as the paper's. It is close if they differ by no more than `close`. `why` is
        said of a figure that is not reproduced, `note` of any.
        """
        if here is None:
            return cls(what, paper, "-", f"not: {why}")
        ours = like(here, paper)
        near = abs(here - float(paper)) <= close
        verdict = "reproduced" if ours == paper else "close" if near else "not"
        said = "; ".join(filter(None, [note] if ours == paper else [why, note]))
        return cls(what, paper, ours, f"{verdict}: {said}" if said else verdict)

    @classmethod
    def ours(cls, what: str, here: str, note: str = "") -> "Line":
        """Return the line of a figure that the paper does not print."""
        return cls(what, "", here, note)

    @classmethod
    def claim(cls, what: str, claim: str, here: str, *, holds: bool) -> "Line":
        """Return the line of something that the paper says."""
        return cls(what, claim, here, "reproduced" if holds else "not")


@dataclass(frozen=True)
class Table:
    """A table of a paper, "table-1" as the paper numbers it: the lines of each of its data sets."""

    name: str
    title: str
    sets: Sequence[str]
    lines: Callable[[DataSet], Iterable[Line]]


def printed(text: str) -> dict[str, dict[str, str]]:
    """Return figures by row and column: of words, the first line names columns, each other a row.

    "-" stands where nothing is printed.

    Examples
    --------
    >>> printed('''
    ... data  KNN  SVM
    ... iris  5.3  -
    ... ''')
    {'iris': {'KNN': '5.3'}}
    """
    header, *rows = (line.split() for line in text.strip().splitlines())
    return {
        name: {column: cell for column, cell in zip(header[1:], cells, strict=True) if cell != "-"}
        for name, *cells in rows
    }


def like(value: float, figure: str) -> str:
    """Return a value with the digits of a printed figure.

    Examples
    --------
    >>> like(5.333, "4.0"), like(2345678, "2.5e+06"), like(97.6, "98")
    ('5.3', '2.3e+06', '98')
    """
    mantissa, power, _ = figure.partition("e")
    return f"{value:.{len(mantissa.partition('.')[2])}{'e' if power else 'f'}}"


@dataclass(frozen=True)
class Spread:
    """A figure over several splits."""

    mean: float
    deviation: float
    n_splits: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return mean and standard deviation of a figure."""
        return cls(statistics.fmean(values), statistics.pstdev(values), len(values))

    @property
    def note(self) -> str:
        """How many splits there were and how far apart, if there was more than one."""
        return f"{self.n_splits} splits, +- {self.deviation:.2g}" if self.n_splits > 1 else ""
