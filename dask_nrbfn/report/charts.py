"""Charts as SVG, with the colours and the typeface of the page around them."""

import re
from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.report.formats import label_texts
from dask_nrbfn.report.results import Criterion, NumberResults
from dask_nrbfn.storage.run import Run

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

# Below this ratio, powers of ten alone are too few ticks.
_FEW_DECADES = 200.0

# Number of bars of a histogram, of sizes that become ticks themselves, and of drawn targets.
_BARS = 50
_MOST_TICKS = 8
_MOST_DRAWN = 4


class Chart(NamedTuple):
    """An SVG and the text below it."""

    svg: str
    caption: str


def confidence_chart(counts: NDArray[np.int64], threshold: float, rows: str) -> str:
    """Return the histogram of the confidence of `rows` with the threshold, as SVG."""
    bars = counts.reshape(_BARS, -1).sum(axis=1)
    edges = np.linspace(0.0, 1.0, _BARS + 1)[:-1]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="confidence", ylabel=rows, xlim=(0.0, 1.0))
        colours = [_SERIES[1] if edge < threshold else _SERIES[0] for edge in edges]
        axes.bar(edges, bars, width=0.85 / _BARS, align="edge", color=colours)
        _log_scale(axes, "y", bars[bars > 0])
        # These limits make counts of 1 visible, and leave space for the text above the bars.
        axes.set_ylim(0.7, 5.0 * bars.max())
        axes.axvline(threshold, **_LINE)
        side, place = "right" if threshold > 0.5 else "left", axes.get_xaxis_transform()
        text = f" threshold {threshold:g} "
        axes.text(threshold, 0.97, text, transform=place, ha=side, va="top")

    below = int(counts[: round(threshold * len(counts))].sum())
    title = f"Histogram of the confidence of all {rows}"
    return _svg("confidence", title, f"About {below} {rows} lie below the threshold.", draw)


def prediction_charts(results: NumberResults) -> list[Chart]:
    """Return charts of predicted against true numbers of the targets with the lowest R2."""
    if (evaluation := results.evaluation) is None:
        return []
    worst = sorted(np.argsort(evaluation.r2, kind="stable")[:_MOST_DRAWN].tolist())
    rows = plural(len(evaluation.sample.true), "evaluated row")
    charts = []
    for place in worst:
        true = evaluation.sample.true[:, place]
        predicted = evaluation.sample.predicted[:, place]

        def draw(figure: Figure, true: Floats = true, predicted: Floats = predicted) -> None:
            axes = figure.add_subplot(xlabel="true", ylabel="predicted")
            points = axes.plot(true, predicted, "o", color=_SERIES[0], markersize=3)
            points[0].set(alpha=0.5, markeredgewidth=0)
            axes.axline((true[0], true[0]), slope=1, **_LINE)

        name, text = results.names[place], f"R2 of all rows is {evaluation.r2[place]:.4f}."
        svg = _svg(f"prediction-{place}", f"Predicted against true numbers of {name}", text, draw)
        caption = f"{name}: predicted against true, {rows}; on the dashed line both are equal."
        charts.append(Chart(svg, caption))
    return charts


def coordinates_chart(run: Run) -> Chart | None:
    """Return the chart of sampled rows of an embedding in their first two coordinates.

    Classes have colours and shapes, if these are enough. Numbers have a scale of colours for the
    first target. Unlabelled rows are grey.
    """
    coordinates = run.read("model/sample/coordinates")[:, :2]
    if coordinates.shape[1] < 2:
        return None
    names, looks = run.attributes["target_names"], [(c, s) for s in _SHAPES for c in _SERIES]
    has_targets = run.has("model/sample/targets")
    targets = run.read("model/sample/targets") if has_targets else np.empty(0)
    of_classes = has_targets and names is None
    labels = label_texts(run.read("model/sample/classes").tolist()) if of_classes else []
    x, y = coordinates.T

    def draw(figure: Figure) -> None:
        look: dict[str, Any] = {"s": 9, "alpha": 0.7, "linewidths": 0}
        shown = labels if len(labels) <= len(looks) else []
        # The legend is under the axes, with four names a line.
        figure.set_size_inches(_INCHES[0], 1.4 * _INCHES[1] + 0.06 * len(shown))
        axes = figure.add_subplot(xlabel="first coordinate", ylabel="second coordinate")
        coloured = bool(shown) or (has_targets and not of_classes)
        plain = np.ones(len(x), dtype=bool)
        if coloured:
            plain = targets < 0 if of_classes else np.isnan(targets[:, 0])
        axes.scatter(x[plain], y[plain], color=_MUTED if coloured else _SERIES[0], **look)
        for place, (label, (colour, shape)) in enumerate(zip(shown, looks, strict=False)):
            own = targets == place
            # matplotlib leaves names that begin with _ out of the legend.
            label = " " + shorten(label, _MOST_LETTERS, placeholder="...")
            axes.scatter(x[own], y[own], color=colour, marker=shape, label=label, **look)
        if shown:
            figure.legend(loc="outside lower left", fontsize="small", ncols=4)
        elif coloured:
            known = ~np.isnan(targets[:, 0])
            points = axes.scatter(x[known], y[known], c=targets[known, 0], **look)
            figure.colorbar(points, label=names[0])

    by = "nothing" if not has_targets else "their class" if of_classes else names[0]
    title = "Rows in the first two coordinates"
    return Chart(
        _svg("coordinates", title, f"They are coloured by {by}.", draw),
        f"The first two coordinates of {plural(len(x), 'row')}, evenly spaced in the table.",
    )


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
        _log_scale(axes, "x", np.array(sizes))
        if len(sizes) <= _MOST_TICKS:
            axes.set_xticks(sizes)
        axes.axvline(chosen["basis_size"], **_LINE)
        if len(lines) > 1:
            axes.legend(fontsize="small")

    title = "Held-out error against the number of basis rows"
    return _svg("sizes", title, f"{chosen['basis_size']:,} basis rows are chosen.", draw)


def pruning_chart(run: Run) -> str:
    """Return the chart of the unexplained squares of the targets by the number of basis rows."""
    unexplained = run.read("prune/unexplained")

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="basis rows", ylabel="unexplained share")
        axes.plot(np.arange(1, len(unexplained) + 1), unexplained, color=_SERIES[0])
        if unexplained.min() > 0:
            _log_scale(axes, "y", unexplained)

    description = f"{len(unexplained)} basis rows leave a share of {unexplained[-1]:.4g}."
    title = "Unexplained share of the squares by the number of basis rows"
    return _svg("pruning", title, description, draw)


def _log_scale(axes: Axes, side: str, values: NDArray[Any]) -> None:
    """Make the axis "x" or "y" logarithmic, with plain numbers as ticks."""
    axes.set(**{f"{side}scale": "log"})
    axis = getattr(axes, f"{side}axis")
    few_decades = values.max() / values.min() < _FEW_DECADES
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,), numticks=7))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


def _svg(name: str, title: str, description: str, draw: Callable[[Figure], None]) -> str:
    """Return the drawing with unique ids, a title, and the colours of the page around it."""
    # Settings of the user are ignored, so that the page is always the same.
    with style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=_INCHES, layout="constrained")
        figure.patch.set_visible(False)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
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
