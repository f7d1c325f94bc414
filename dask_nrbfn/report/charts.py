"""Charts as SVG, with the colours and the typeface of the page around them."""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import StringIO
from textwrap import shorten
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from dask_nrbfn.numeric.cell_tree import CellTree
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.report.finished import Confidences
from dask_nrbfn.report.results import Criterion, DrawnCoordinates, DrawnTarget

# Placeholders for the colour variables of the page, which depend on light and dark mode.
_INK, _MUTED = "#010101", "#020202"
_SERIES = ("#030303", "#040404", "#050505", "#060606")
_VARIABLES = {_INK: "ink", _MUTED: "muted"} | {
    colour: f"series-{place}" for place, colour in enumerate(_SERIES, start=1)
}
_LINE: dict[str, Any] = {"color": _INK, "linestyle": "--", "linewidth": 1}

# With the colours of the page, 16 classes can be distinguished.
_SHAPES = ("o", "s", "^", "D")
# Maximum length of the name of a class in a legend.
_MOST_LETTERS = 12

# On a phone of 375 pixels the text is 11 pixels high.
_INCHES = (4.4, 2.7)

# Maximum length of the name of a feature beside its bar.
_LONGEST_NAME = 24
_STYLE: dict[str, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _MUTED,
    "grid.alpha": 0.25,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
}

# Values with a larger ratio are drawn on a logarithmic axis.
_LINEAR_RATIO = 30.0

# Below this ratio, powers of ten alone are too few ticks.
_FEW_DECADES = 200.0

# Number of bars of a histogram, and maximum number of values that become ticks themselves.
_BARS = 50
_MOST_TICKS = 8


def confidence_chart(confidences: Confidences, threshold: float) -> str:
    """Return the histogram of the confidence with the threshold; an SVG, like every chart."""
    rows = confidences.rows
    counts = confidences.counts.reshape(_BARS, -1).sum(axis=1)
    edges = np.linspace(0.0, 1.0, _BARS + 1)[:-1]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="confidence", ylabel=rows, xlim=(0.0, 1.0))
        colours = [_SERIES[1] if edge < threshold else _SERIES[0] for edge in edges]
        axes.bar(edges, counts, width=0.85 / _BARS, align="edge", color=colours)
        _log_scale(axes, "y", counts[counts > 0])
        # These limits make counts of 1 visible, and leave space for the text above the bars.
        axes.set_ylim(0.7, 5.0 * counts.max())
        _mark(axes, threshold, f" threshold {threshold:g} ")

    below = int(confidences.counts[: round(threshold * len(confidences.counts))].sum())
    title = f"Histogram of the confidence of all {rows}"
    return _svg("confidence", title, f"About {below} {rows} lie below the threshold.", draw)


def prediction_chart(target: DrawnTarget, place: int) -> str:
    """Return chart number `place` on its page, of predicted against true numbers of a target."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="true", ylabel="predicted")
        points = axes.plot(target.true, target.predicted, "o", color=_SERIES[0], markersize=3)
        points[0].set(alpha=0.5, markeredgewidth=0)
        axes.axline((target.true[0], target.true[0]), slope=1, **_LINE)

    title = f"Predicted against true numbers of {target.name}"
    return _svg(f"prediction-{place}", title, f"R2 of all rows is {target.r2:.4f}.", draw)


def coordinates_chart(drawn: DrawnCoordinates) -> str:
    """Return the chart of rows in their first two coordinates, coloured by their targets.

    If there are too many classes to distinguish, all have one colour. Unlabelled rows are grey.
    """
    looks = [(colour, shape) for shape in _SHAPES for colour in _SERIES]
    names = drawn.labels if len(drawn.labels) <= len(looks) else []
    x, y = drawn.coordinates.T
    # A code below 0, or NaN, is a missing label.
    unknown = np.zeros(len(x), dtype=np.bool_)
    if drawn.targets is not None:
        unknown = drawn.targets < 0 if drawn.labels else np.isnan(drawn.targets)

    def draw(figure: Figure) -> None:
        # The legend is under the axes, with four names a line.
        figure.set_size_inches(_INCHES[0], 1.4 * _INCHES[1] + 0.06 * len(names))
        axes = figure.add_subplot(xlabel="first coordinate", ylabel="second coordinate")
        look: dict[str, Any] = {"s": 9, "alpha": 0.7, "linewidths": 0}
        axes.scatter(x[unknown], y[unknown], color=_MUTED, **look)
        for place, (name, (colour, shape)) in enumerate(zip(names, looks, strict=False)):
            own = drawn.coordinates[drawn.targets == place]
            # matplotlib leaves names that begin with _ out of the legend.
            label = " " + shorten(name, _MOST_LETTERS, placeholder="...")
            axes.scatter(own[:, 0], own[:, 1], color=colour, marker=shape, label=label, **look)
        if names:
            figure.legend(loc="outside lower left", fontsize="small", ncols=4)
        elif drawn.targets is not None and drawn.name:
            known = ~unknown
            points = axes.scatter(x[known], y[known], c=drawn.targets[known], **look)
            figure.colorbar(points, label=drawn.name)
        else:
            axes.scatter(x, y, color=_SERIES[0], **look)

    by = drawn.name or ("their class" if drawn.labels else "nothing")
    title = "Rows in the first two coordinates"
    return _svg("coordinates", title, f"They are coloured by {by}.", draw)


def size_chart(
    curve: Sequence[dict[str, Any]], chosen: dict[str, Any], criterion: Criterion
) -> str | None:
    """Return the chart of the held-out error by basis size; None with fewer than two sizes."""
    sizes = sorted({record["n_basis"] for record in curve})
    if len(sizes) < 2:
        return None
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in curve:
        error = criterion.factor * record[criterion.name]
        lines.setdefault(record["basis"], []).append((record["n_basis"], error))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="basis rows", ylabel=criterion.label)
        for (basis, points), colour in zip(lines.items(), _SERIES, strict=False):
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, color=colour, marker="o", markersize=3.5, label=basis)
        _fitting_scale(axes, "y", [y for points in lines.values() for _, y in points])
        _fitting_scale(axes, "x", sizes, always_log=True)
        _mark(axes, chosen["basis_size"])
        if len(lines) > 1:
            axes.legend(fontsize="small")

    title = "Held-out error against the number of basis rows"
    return _svg("sizes", title, f"{chosen['basis_size']:,} basis rows are chosen.", draw)


def pruning_chart(unexplained: Floats) -> str:
    """Return the chart of the unexplained squares of the targets by the number of basis rows."""
    sizes = np.arange(1, len(unexplained) + 1)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="basis rows", ylabel="unexplained share")
        axes.plot(sizes, unexplained, color=_SERIES[0])
        _fitting_scale(axes, "x", sizes)
        _fitting_scale(axes, "y", unexplained)

    description = f"{len(unexplained)} basis rows leave a share of {unexplained[-1]:.4g}."
    title = "Unexplained share of the squares by the number of basis rows"
    return _svg("pruning", title, description, draw)


def cells_chart(tree: CellTree, n_rows: NDArray[np.int64], errors: Floats, label: str) -> str:
    """Return the chart of the errors of cells (L,), as wide as their rows, above their tree."""
    ends = np.cumsum(n_rows)
    starts = ends - n_rows
    spans = tree.cells_below()

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        above.bar(starts, errors, n_rows, align="edge", color=_SERIES[0], edgecolor=_MUTED)
        above.set_ylabel(label)
        for depth, first, last in spans:
            place = (starts[first], -1 - depth)
            size = (ends[last] - starts[first], 1)
            below.add_patch(Rectangle(place, *size, facecolor="none", edgecolor=_MUTED))
        below.set_xlim(0, ends[-1])
        below.set_ylim(-1 - max(depth for depth, *_ in spans), 0)
        below.set_xlabel("rows, cell by cell")
        below.grid(visible=False)
        below.yaxis.set_major_locator(NullLocator())

    worst = int(np.argmax(errors))
    title = "Errors of the cells, and the tree that divides the rows"
    return _svg("cells", title, f"The largest is {errors[worst]:.3g}.", draw)


def feature_chart(weights: Mapping[str, float]) -> str:
    """Return the bar chart of the weights of features in squared distances."""
    names, values = [*weights], [*weights.values()]

    def draw(figure: Figure) -> None:
        figure.set_size_inches(_INCHES[0], 0.8 + 0.2 * len(names))
        axes = figure.add_subplot(xlabel="weight; the mean is 1")
        axes.barh(range(len(names)), values, color=_SERIES[0])
        axes.set_yticks(range(len(names)), [_shortened(name) for name in names])
        axes.invert_yaxis()

    description = f"{names[0]} has the largest weight, {values[0]:.4g}."
    return _svg("features", "Weights of the heaviest features", description, draw)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _mark(axes: Axes, x: float, text: str = "") -> None:
    """Draw a dashed line at x, with a text at its top on the side that has more room."""
    axes.axvline(x, **_LINE)
    if text:
        side = "right" if x > 0.5 else "left"
        axes.text(x, 0.97, text, transform=axes.get_xaxis_transform(), ha=side, va="top")


def _fitting_scale(axes: Axes, side: str, values: Any, *, always_log: bool = False) -> None:
    """Make the axis "x" or "y" logarithmic if its values span a large ratio; set its ticks."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if len(finite) == 0:
        return
    spread = finite.min() > 0 and finite.max() / finite.min() > _LINEAR_RATIO
    if always_log or spread:
        _log_scale(axes, side, finite, own=always_log)
    else:
        getattr(axes, f"{side}axis").set_major_locator(MaxNLocator(5))


def _log_scale(axes: Axes, side: str, values: NDArray[Any], *, own: bool = False) -> None:
    """Make an axis logarithmic, with plain numbers as ticks; with `own` at the values, if few."""
    axes.set(**{f"{side}scale": "log"})
    axis = getattr(axes, f"{side}axis")
    few_decades = values.max() / values.min() < _FEW_DECADES
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,), numticks=7))
    if own and len(set(values.tolist())) <= _MOST_TICKS:
        axis.set_ticks(sorted(set(values.tolist())))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_tick))
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float, place: int | None = None) -> str:
    return f"{value:,.0f}" if 1 <= value < 1e6 and value == round(value) else f"{value:g}"


def _svg(name: str, title: str, description: str, draw: Callable[[Figure], None]) -> str:
    """Return the drawing of `draw` as SVG for a page with other charts."""
    # Settings of the user are ignored, so that the page is always the same.
    with style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=_INCHES, layout="constrained")
        figure.patch.set_visible(False)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return _for_page(text.getvalue(), name, title, description)


def _for_page(text: str, name: str, title: str, description: str) -> str:
    """Return the SVG element with unique ids, a title, and the colours of the page."""
    text = text[text.index("<svg") :]
    # matplotlib's style rule would apply to the whole page.
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    view_box = re.findall(r'viewBox="[^"]*"', text)[0]
    named = (
        f'<svg role="img" aria-labelledby="{name}-title {name}-description" {view_box} '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>'
    )
    return re.sub(r"<svg[^>]*>", lambda _: named, text, count=1)
