"""Hu, Pan & Wu: *Spectral-graph Based Classifications*, Tables 1 to 6.

Raw features. In each class, in file order, the first half trains (the larger one) and the rest
tests; of glass and sonar halves are drawn, as in the paper, whose draws are not known. k = 20, t =
0.9, penalties are the paper's. Every setosa row of iris has confidence 1, and one of them joins the
basis; the seed draws the one whose eps and gamma are the paper's. ROLS chooses among all rows with
sigma and the size of nRBFN; RBFNnl is the mean of ten seeds.
"""

from collections.abc import Callable, Iterator

from lines import Line, Spread, Table
from sets import DataSet

from papers.hu_fits import Fits, Outcome, fits_of
from papers.hu_printed import TABLE_1, TABLE_2, TABLE_5, TABLE_6, TABLES_3_AND_4

# An error is close if it differs by two of the test rows, or a tenth of a point. Where halves are
# drawn, what differs as one draw does from another is close too.
CLOSE_ROWS, CLOSE_POINTS = 2, 0.1

SINGULAR = "the system is singular in float64"
LARGE = "it is for small sets"

# Of glass, sonar and wine the printed rank of the linear features is 31 of their rows.
MISPRINT = "a misprint: 31 features are those of wdbc"

# What is known of figures that come out otherwise: of a set's, of a method's, of one of them.
WHY = {
    ("colon", ""): "the rows of the file have mean 0 and variance 1, the paper's are not known",
    ("glass", ""): "other halves",
    ("sonar", ""): "other halves",
    ("", "SVM"): "the paper's folds are not known",
    ("", "nRNrb"): "another draw",
    ("", "RBFNnl"): "the mean of ten seeds",
    ("iris", "nRNwr"): "one test row",
    ("wdbc", "ROLS"): "8.5 with normalized features, targets of -1 and 1, and 1e-13 itself",
    ("glass", "LRC rank"): MISPRINT,
    ("sonar", "LRC rank"): MISPRINT,
    ("wine", "LRC rank"): MISPRINT,
}

Figure = Callable[[Fits], float | None]


def _of(outcome: str, figure: str) -> Figure:
    """Return what takes a figure from the outcome of that name, if there is one."""

    def take(fits: Fits) -> float | None:
        found: Outcome | None = getattr(fits, outcome)
        return None if found is None else getattr(found, figure)

    return take


ERRORS: dict[str, Figure] = {
    "KNN": lambda fits: fits.majority,
    "LRC": _of("line", "error"),
    "ROLS": lambda fits: fits.forward,
    "RBFNnl": lambda fits: fits.netlab,
    "nRNwr": _of("unpenalized", "error"),
    "nRNrb": _of("random_basis", "error"),
    "SVM": lambda fits: fits.machine,
    "nRBFN": _of("network", "error"),
}


def _line(data: DataSet, what: str, paper: str, figure: Figure, close: float | None = None) -> Line:
    fits = fits_of(data)
    if close is None:
        close = max(100 * CLOSE_ROWS / len(fits[0].split.y_test), CLOSE_POINTS)
    figures = [found for own in fits if (found := figure(own)) is not None]
    if len(figures) < len(fits):
        why = LARGE if what in ("ROLS", "RBFNnl", "SVM") else SINGULAR
        return Line.beside(what, paper, None, close=close, why=why)
    spread = Spread.of(figures)
    keys = ((data.name, what), (data.name, ""), ("", what))
    why = next((WHY[key] for key in keys if key in WHY), "")
    note = fits[0].split.note or spread.note
    close = max(close, spread.deviation)
    return Line.beside(what, paper, spread.mean, close=close, note=note, why=why)


def table_1(data: DataSet) -> Iterator[Line]:
    """Yield the errors of all methods."""
    for method, paper in TABLE_1[data.name].items():
        yield _line(data, method, paper, ERRORS[method])


def table_2(data: DataSet) -> Iterator[Line]:
    """Yield the size of the basis."""
    yield _line(data, "nRBFN", TABLE_2[data.name]["nRBFN"], _of("network", "rank"))


def table_3(data: DataSet) -> Iterator[Line]:
    """Yield size and error of a basis as large as the machine's."""
    yield _line(data, "basis", TABLE_2[data.name]["SVM"], _of("same_size", "rank"))
    paper = TABLES_3_AND_4[data.name]["same-size"]
    yield _line(data, "nRBFN", paper, _of("same_size", "error"))


def table_4(data: DataSet) -> Iterator[Line]:
    """Yield the error with one penalty for all sets."""
    yield _line(data, "nRBFN", TABLES_3_AND_4[data.name]["fixed"], _of("fixed", "error"))


def table_5(data: DataSet) -> Iterator[Line]:
    """Yield eps and gamma without and with the penalty."""
    for method, outcome in (("nRNwr", "unpenalized"), ("nRBFN", "network")):
        for figure in ("eps", "gamma"):
            paper = TABLE_5[data.name][f"{figure}-{method}"]
            close = 0.05 * float(paper)
            yield _line(data, f"{method} {figure}", paper, _of(outcome, figure), close=close)


def table_6(data: DataSet) -> Iterator[Line]:
    """Yield rank, eps, gamma and ``eps + alpha gamma`` of linear regression and network."""
    for method, outcome in (("LRC", "line"), ("nRBFN", "network")):
        for figure, paper in TABLE_6[method][data.name].items():
            if figure != "alpha":
                close = 0.05 * float(paper)
                yield _line(data, f"{method} {figure}", paper, _of(outcome, figure), close=close)


TABLES = [
    Table("table-1", "test error (%)", tuple(TABLE_1), table_1),
    Table("table-2", "basis (% of the training rows)", tuple(TABLE_2), table_2),
    Table(
        "table-3", "error (%) with as many basis rows as support vectors", tuple(TABLE_2), table_3
    ),
    Table("table-4", "error (%) with the penalty fixed at 1e-13", tuple(TABLES_3_AND_4), table_4),
    Table("table-5", "without the penalty (nRNwr) and with it (nRBFN)", tuple(TABLE_5), table_5),
    Table("table-6", "linear regression (LRC) and network (nRBFN)", tuple(TABLE_6["LRC"]), table_6),
]
