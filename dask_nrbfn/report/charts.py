"""Charts of a report, as images that a page contains."""

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from textwrap import fill, shorten
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import ConfusionMatrixDisplay, PredictionErrorDisplay

from dask_nrbfn.commands.evaluate import NumberEvaluation
from dask_nrbfn.errors import plural
from dask_nrbfn.report.finished import Confidences, FinishedRun
from dask_nrbfn.report.formats import label_texts
from dask_nrbfn.report.tables import MOST_CLASSES, UNKNOWN

# Names of classes are wrapped at this length, and cut after three lines.
_LINE_LETTERS, _MOST_LETTERS = 16, 48

# With more classes, the cells of a confusion have no text, and a legend is of no use.
_MOST_WRITTEN, _MOST_NAMED = 15, 10

# Number of bars of a histogram, and of drawn targets.
_BARS, _MOST_DRAWN = 50, 4

_LINE: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1}


class Chart(NamedTuple):
    """An image as a data URI, and the text below it."""

    image: str
    caption: str


class Charts:
    """The charts of a run by the title of the section that shows them."""

    def __init__(self, finished: FinishedRun, confidences: Confidences | None) -> None:
        self.by_section: dict[str, list[Chart]] = {}
        self._finished, self._stages = finished, finished.stages
        self._draw_confusions()
        self._draw_reliabilities()
        self._draw_predictions()
        if confidences is not None:
            self._draw_confidence(confidences)
        if finished.run.embeds:
            self._draw_coordinates()

    @contextmanager
    def _axes(self, section: str, caption: str, inches: float = 4.0) -> Iterator[Axes]:
        """Yield axes that become a chart when the block ends."""
        # Settings of the user are ignored, so that the page is always the same.
        with style.context(["default", {"text.parse_math": False, "svg.hashsalt": caption}]):
            figure = Figure(figsize=(max(inches, 4.6), inches), layout="constrained")
            yield figure.add_subplot()
            drawn = BytesIO()
            figure.savefig(drawn, format="svg", metadata={"Date": None})
        image = f"data:image/svg+xml;base64,{b64encode(drawn.getvalue()).decode()}"
        self.by_section.setdefault(section, []).append(Chart(image, caption))

    def _draw_confusions(self) -> None:
        for rows, counts in self._finished.confusions.items():
            own = [*self._finished.labels, UNKNOWN][: len(counts)]
            if len(own) > MOST_CLASSES:
                continue
            totals = counts.sum(axis=1, keepdims=True)
            shares = np.zeros((len(own), len(own)))
            shares[:, : counts.shape[1]] = 100 * counts / np.where(totals > 0, totals, 1.0)
            names = [fill(shorten(name, _MOST_LETTERS), _LINE_LETTERS) for name in own]
            written = len(own) <= _MOST_WRITTEN
            caption = f"{rows}: percent of each true class by predicted label."
            with self._axes("Confused classes", caption, 3.0 + 0.35 * len(own)) as axes:
                ConfusionMatrixDisplay(shares, display_labels=names).plot(
                    ax=axes,
                    cmap="Blues",
                    colorbar=not written,
                    include_values=written,
                    values_format=".0f",
                    xticks_rotation="vertical",
                )

    def _draw_reliabilities(self) -> None:
        labels = self._finished.labels
        event = f"class {labels[1]}" if len(labels) == 2 else "a right label"
        for rows, bins in self._finished.reliabilities.items():
            mean = np.array([each["mean_probability"] for each in bins])
            share = np.array([each["observed_share"] for each in bins])
            caption = f"{rows}: probability of {event}, in bins of equal numbers of rows."
            with self._axes("Probabilities", caption) as axes:
                CalibrationDisplay(share, mean, mean).plot(ax=axes)
                axes.set(xlabel="mean probability", ylabel="observed share")

    def _draw_predictions(self) -> None:
        """Draw the targets with the lowest R2."""
        evaluation = self._finished.evaluation
        if not isinstance(evaluation, NumberEvaluation):
            return
        _, true, predicted = evaluation.sample
        for place in sorted(np.argsort(evaluation.r2, kind="stable")[:_MOST_DRAWN].tolist()):
            rows = plural(len(true), "evaluated row")
            caption = f"{evaluation.target_names[place]}: predicted against true, {rows}."
            with self._axes("Predicted and true numbers", caption) as axes:
                PredictionErrorDisplay(y_true=true[:, place], y_pred=predicted[:, place]).plot(
                    ax=axes, kind="actual_vs_predicted", scatter_kwargs={"s": 9}
                )

    def _draw_confidence(self, confidences: Confidences) -> None:
        threshold = self._finished.params.confidence_threshold
        n_below = self._stages["confidence"]["n_below_threshold"]
        caption = (
            f"Confidence: the weight of the own label among the neighbours. {n_below:,} rows below "
            f"the threshold {threshold:g} may enter the basis; {confidences.n_certain:,} have 1."
        )
        with self._axes("Confidence of the rows", caption) as axes:
            counts = confidences.counts.reshape(_BARS, -1).sum(axis=1)
            axes.stairs(counts, np.linspace(0.0, 1.0, _BARS + 1), fill=True)
            axes.set(xlabel="confidence", ylabel="rows", yscale="symlog", xlim=(0.0, 1.0))
            axes.axvline(threshold, **_LINE)

    def _draw_coordinates(self) -> None:
        """Draw sampled rows of an embedding, coloured by a few classes or by the first target."""
        run, names = self._finished.run, self._finished.names
        x, *others = run.read("model/sample/coordinates").T
        if not others:
            return
        caption = f"The first two coordinates of {plural(len(x), 'row')}, evenly spaced."
        with self._axes("Coordinates of the rows", caption, 5.0) as axes:
            axes.set(xlabel="first coordinate", ylabel="second coordinate")
            axes.scatter(x, others[0], s=9, color="lightgrey")
            if not run.has("model/sample/targets"):
                return
            targets = run.read("model/sample/targets")
            labels = label_texts(run.read("model/sample/classes").tolist()) if not names else ()
            if names:
                drawn = axes.scatter(x, others[0], s=9, c=targets[:, 0])
                axes.figure.colorbar(drawn, label=names[0])
            elif len(labels) <= _MOST_NAMED:
                for place, label in enumerate(labels):
                    own = targets == place
                    # matplotlib leaves names that begin with _ out of a legend.
                    name = f" {shorten(label, _LINE_LETTERS)}"
                    axes.scatter(x[own], others[0][own], s=9, label=name)
                axes.legend()
