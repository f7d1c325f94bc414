"""The paper's tables for the sets that come with scikit-learn, its figures beside those of a fit.

The paper is Hu, Pan & Wu, "Spectral-graph Based Classifications: Linear Regression for
Classification and Normalized Radial Basis Function Network", Tables 1 to 6:

    python workflows/paper/tables.py
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol import PROTOCOL, Halves, Outcome
from published import DATA, Published, Table6

FIXED_ALPHA = 1e-13


@dataclass(frozen=True, kw_only=True)
class Fits:
    """The fits of one data set that the tables are made of."""

    line: Outcome
    network: Outcome
    unpenalized: Outcome | None
    same_size: Outcome
    fixed: Outcome


def main() -> None:
    """Fit every set and print the tables."""
    fits = {name: fit_all(published) for name, published in DATA.items()}
    print(PROTOCOL)
    print_table("Table 1: test error (%)", *table_1(fits))
    print_table("Table 2: basis (% of the training rows)", *table_2(fits))
    print_table(
        "Table 3: test error (%) with as many basis rows as support vectors", *table_3(fits)
    )
    print_table(f"Table 4: test error (%) with alpha fixed at {FIXED_ALPHA:.0e}", *table_4(fits))
    print_table("Table 5: without the penalty (nRNwr) and with it (nRBFN)", *table_5(fits))
    print_table("Table 6: linear regression (LRC) and network (nRBFN)", *table_6(fits))


def fit_all(published: Published) -> Fits:
    """Return all fits of a data set, with the penalties that the paper chose."""
    halves, alpha = Halves.of(published), published.nrbfn_6.alpha
    same_size = round(float(published.svm_basis) * len(halves.y_train) / 100)
    return Fits(
        line=halves.fit_line(published.lrc_6.alpha),
        network=halves.fit_network(alpha=alpha),
        unpenalized=halves.fit_network(alpha=0.0),
        same_size=halves.fit_network(alpha=alpha, basis_size=same_size),
        fixed=halves.fit_network(alpha=FIXED_ALPHA),
    )


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def table_1(fits: dict[str, Fits]) -> Table:
    """Return header and rows of the errors of all methods."""
    methods = ("LRC", "nRNwr", "nRBFN")
    header = ("data", "KNN", "SVM", *(f"{m} {who}" for m in methods for who in ("paper", "here")))
    return header, [
        (
            name,
            p.knn,
            p.svm,
            *beside((p.lrc, p.nrnwr, p.nrbfn), errors(fit.line, fit.unpenalized, fit.network)),
        )
        for name, p, fit in each(fits)
    ]


def table_2(fits: dict[str, Fits]) -> Table:
    """Return header and rows of the sizes of the basis."""
    return ("data", "SVM", "nRBFN paper", "nRBFN here"), [
        (name, p.svm_basis, p.nrbfn_6.rank, f"{fit.network.rank:.1f}")
        for name, p, fit in each(fits)
    ]


def table_3(fits: dict[str, Fits]) -> Table:
    """Return header and rows of the errors with a basis of the size of SVM's."""
    return ("data", "basis paper", "basis here", "SVM", "nRBFN paper", "nRBFN here"), [
        (
            name,
            *beside((p.svm_basis,), (f"{fit.same_size.rank:.1f}",)),
            p.svm,
            *beside((p.same_size,), errors(fit.same_size)),
        )
        for name, p, fit in each(fits)
    ]


def table_4(fits: dict[str, Fits]) -> Table:
    """Return header and rows of the errors with one penalty for all sets."""
    return ("data", "SVM", "nRBFN paper", "nRBFN here"), [
        (name, p.svm, *beside((p.fixed,), errors(fit.fixed))) for name, p, fit in each(fits)
    ]


def table_5(fits: dict[str, Fits]) -> Table:
    """Return header and rows of eps, gamma and error without and with the penalty."""
    header = (
        "data",
        "alpha",
        "",
        "eps paper",
        "here",
        "gamma paper",
        "here",
        "error paper",
        "here",
    )
    rows = []
    for name, p, fit in each(fits):
        nothing = ("-",) * 3
        without, regularized = nothing, nothing
        if p.table_5 is not None:
            without, regularized = p.table_5.nrnwr, (*p.table_5.nrbfn, p.nrbfn)
        for alpha, method, paper, outcome in (
            ("0", "nRNwr", without, fit.unpenalized),
            (f"{fit.network.alpha:.0e}", "nRBFN", regularized, fit.network),
        ):
            rows.append((name, alpha, method, *beside(paper, digits_of_table_5(outcome))))
    return header, rows


def table_6(fits: dict[str, Fits]) -> Table:
    """Return header and rows of rank, eps, gamma, ``eps + alpha gamma`` and error."""
    names = ("rank", "eps", "gamma", "eps+alpha gamma", "error")
    header = (
        "data",
        "",
        "alpha",
        *(label for name in names for label in (f"{name} paper", "here")),
    )
    rows = [
        (name, method, f"{outcome.alpha:.0e}", *beside(as_printed(paper, error), cells(outcome)))
        for name, p, fit in each(fits)
        for method, paper, error, outcome in (
            ("LRC", p.lrc_6, p.lrc, fit.line),
            ("nRBFN", p.nrbfn_6, p.nrbfn, fit.network),
        )
    ]
    return header, rows


def each(fits: dict[str, Fits]) -> Iterator[tuple[str, Published, Fits]]:
    """Yield name, published figures and fits of each set."""
    for name, published in DATA.items():
        yield name, published, fits[name]


def errors(*outcomes: Outcome | None) -> list[str]:
    """Return the test errors as the paper prints them."""
    return ["-" if outcome is None else f"{outcome.error:.1f}" for outcome in outcomes]


def digits_of_table_5(outcome: Outcome | None) -> Sequence[str]:
    """Return eps, gamma and error with the digits of Table 5."""
    if outcome is None:
        return ("-",) * 3
    return f"{outcome.eps:.3f}", f"{outcome.gamma:.1e}", f"{outcome.error:.1f}"


def as_printed(paper: Table6, error: str) -> Sequence[str]:
    """Return the paper's row of Table 6."""
    return paper.rank, paper.eps, paper.gamma, paper.tradeoff, error


def cells(outcome: Outcome) -> Sequence[str]:
    """Return an outcome with the digits of Table 6."""
    return (
        f"{outcome.rank:.1f}",
        f"{outcome.eps:.2f}",
        f"{outcome.gamma:.0e}",
        f"{outcome.tradeoff:.2f}",
        f"{outcome.error:.1f}",
    )


def beside(paper: Sequence[str], here: Sequence[str]) -> list[str]:
    """Return the paper's cells, each before ours."""
    return [cell for pair in zip(paper, here, strict=True) for cell in pair]


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"\n{title}")
    for row in (header, *rows):
        print("  ".join(map(str.rjust, row, widths)).rstrip())


if __name__ == "__main__":
    main()
