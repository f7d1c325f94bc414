"""The paper's Figures 1 to 3: errors and risks as penalty, threshold and neighbours vary.

The paper is Hu, Pan & Wu, "Spectral-graph Based Classifications". Its figures show five sets; these
show those that come with scikit-learn, of which it has iris. One of the parameters varies, the
others stay at alpha = 1e-13, t = 0.9 and k = 20:

    python workflows/paper/figures.py figures --sets iris wdbc wine

Needs matplotlib. Beside the drawings, points.csv has all that is drawn. Curves have a gap where the
system is singular.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from papers.hu_fits import Outcome, fit_network
from sets import Folder

SETS = ("iris", "wdbc", "wine")

# Each parameter with its symbol in the paper and the values it takes.
SWEEPS: dict[str, tuple[str, Sequence[float]]] = {
    "alpha": ("λ", [10.0**power for power in range(-15, 0)]),
    "confidence_threshold": ("t", [round(0.1 * step, 1) for step in range(1, 11)]),
    "n_neighbors": ("k", [1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32]),
}

# What the panels of Figures 2 and 3 show, and whether on a logarithmic axis.
RISK_PANELS: list[tuple[str, bool, Callable[[Outcome], float]]] = [
    ("ε", False, lambda outcome: outcome.eps),
    ("γ", True, lambda outcome: outcome.gamma),
    ("λγ", True, lambda outcome: outcome.alpha * outcome.gamma),
    ("λγ / (ε + λγ)", True, lambda outcome: outcome.alpha * outcome.gamma / outcome.tradeoff),
]


@dataclass(frozen=True)
class Point:
    """What came of one value of a parameter; the outcome is None where the system is singular."""

    name: str
    parameter: str
    value: float
    outcome: Outcome | None


def main() -> None:
    """Fit every point, then draw the figures and write the points."""
    options = parse_options()
    options.directory.mkdir(parents=True, exist_ok=True)
    points = [point for name in options.sets for point in sweep(name)]
    write_points(points, options.directory / "points.csv")
    drawings = {
        "figure-1": draw_errors(points),
        "figure-2": draw_risks(points, "alpha"),
        "figure-3": draw_risks(points, "confidence_threshold"),
    }
    for stem, figure in drawings.items():
        for suffix in options.formats:
            figure.savefig(options.directory / f"{stem}.{suffix}")


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where the files are written")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--formats", nargs="+", choices=("png", "svg"), default=["png"])
    return parser.parse_args()


def sweep(name: str) -> list[Point]:
    """Return the points of a data set, of one parameter after the other."""
    data = Folder(None, None, 1).find(name)
    assert data is not None
    split = data.first_half()
    return [
        Point(name, parameter, value, fit_network(split, **{parameter: value}))
        for parameter, (_, values) in SWEEPS.items()
        for value in values
    ]


def write_points(points: Sequence[Point], path: Path) -> None:
    """Write one line for each point, with empty cells where the system is singular."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["data", "parameter", "value", "error", "rank", "eps", "gamma"])
        for point in points:
            o = point.outcome
            figures = () if o is None else (o.error, o.rank, o.eps, o.gamma)
            cells = [f"{figure:.8g}" for figure in figures] or [""] * 4
            writer.writerow([point.name, point.parameter, f"{point.value:g}", *cells])


def draw_errors(points: Sequence[Point]) -> Figure:
    """Return Figure 1: the test error over each parameter."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels = figure.subplots(1, len(SWEEPS), sharey=True)
    for axes, parameter in zip(panels, SWEEPS, strict=True):
        draw_curves(axes, points, parameter, lambda outcome: outcome.error)
    panels[0].set_ylabel("test error (%)")
    panels[0].legend()
    return figure


def draw_risks(points: Sequence[Point], parameter: str) -> Figure:
    """Return Figure 2 or 3: error, risk and weighted risk over one parameter."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    for axes, (label, logarithmic, quantity) in zip(panels, RISK_PANELS, strict=True):
        draw_curves(axes, points, parameter, quantity)
        axes.set_ylabel(label)
        if logarithmic:
            axes.set_yscale("log")
    panels[0].legend()
    return figure


def draw_curves(
    axes: Axes, points: Sequence[Point], parameter: str, quantity: Callable[[Outcome], Any]
) -> None:
    """Draw a quantity over a parameter, a line for each data set."""
    symbol, values = SWEEPS[parameter]
    for name in dict.fromkeys(point.name for point in points):
        heights = [
            float("nan") if point.outcome is None else quantity(point.outcome)
            for point in points
            if (point.name, point.parameter) == (name, parameter)
        ]
        axes.plot(values, heights, marker="o", markersize=3, label=name)
    axes.set_xlabel(symbol)
    if parameter == "alpha":
        axes.set_xscale("log")


if __name__ == "__main__":
    main()
