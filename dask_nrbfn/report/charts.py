"""Charts of a report, as images that a page contains."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from textwrap import fill, shorten
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import ConfusionMatrixDisplay, PredictionErrorDisplay

from dask_nrbfn.commands.evaluate import NumberEvaluation
from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.report.facts import KIND, MOST_CLASSES, SURENESS, UNKNOWN
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import label_texts
from dask_nrbfn.stages.model import COORDINATES, SAMPLED_CLASSES, SAMPLED_CODES, SAMPLED_TARGETS

# Names of classes are wrapped at this length, and cut after three lines.
_LINE_LETTERS, _MOST_LETTERS = 16, 48

_BARS_OF_HISTOGRAM = 50

# Charts of targets, and named classes in the legend of coordinates.
_MOST_DRAWN, _MOST_NAMED = 4, 10


class Chart(NamedTuple):
    """An image as a data URI, and the text below it."""

    image: str
    caption: str


class Charts:
    """The charts of a run by the title of the section that shows them."""

    def __init__(self, finished: FinishedRun) -> None:
        self.by_section: dict[str, list[Chart]] = {}
        self._finished = finished
        for rows, record in finished.judged_rows.items():
            if 0 < len(record.get("confusion", ())) <= MOST_CLASSES:
                self._draw_confusion(rows, record["confusion"])
            if record.get("reliability"):
                self._draw_reliability(rows, record["reliability"])
        if isinstance(finished.evaluation, NumberEvaluation):
            self._draw_predictions(finished.evaluation)
        search = finished.stages.get("search", {"curve": ()})
        if len(search["curve"]) > 1:
            self._draw_search(search)
        if finished.confidences is not None:
            self._draw_confidence(finished.confidences)
        if finished.unlike is not None:
            self._draw_unlike(*finished.unlike)
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

    def _draw_confusion(self, rows: str, confusion: ArrayLike) -> None:
        counts = np.asarray(confusion, dtype=np.float64)
        own = [*self._finished.labels, UNKNOWN][: len(counts)]
        totals = counts.sum(axis=1, keepdims=True)
        shares = np.zeros((len(own), len(own)))
        shares[:, : counts.shape[1]] = 100 * counts / np.where(totals > 0, totals, 1.0)
        names = [fill(shorten(name, _MOST_LETTERS), _LINE_LETTERS) for name in own]
        options = {"cmap": "Blues", "colorbar": False, "values_format": ".0f"}
        caption = f"{rows}: percent of each true class by predicted label."
        with self._axes("Confused classes", caption, 3.0 + 0.35 * len(own)) as axes:
            display = ConfusionMatrixDisplay(shares, display_labels=names)
            display.plot(ax=axes, xticks_rotation="vertical", **options)

    def _draw_reliability(self, rows: str, bins: Sequence[Mapping[str, float]]) -> None:
        labels = self._finished.labels
        event = f"class {labels[1]}" if len(labels) == 2 else "a right label"
        mean = np.array([each["mean_probability"] for each in bins])
        share = np.array([each["observed_share"] for each in bins])
        caption = f"{rows}: probability of {event}, in bins of equal numbers of rows."
        with self._axes("Probabilities", caption) as axes:
            CalibrationDisplay(share, mean, mean).plot(ax=axes)
            axes.set(xlabel="mean probability", ylabel="observed share")

    def _draw_predictions(self, evaluation: NumberEvaluation) -> None:
        """Draw the targets with the lowest R2."""
        true, predicted = evaluation.sample
        for place in sorted(np.argsort(evaluation.r2, kind="stable")[:_MOST_DRAWN].tolist()):
            rows = plural(len(true), "evaluated row")
            caption = f"{evaluation.target_names[place]}: predicted against true, {rows}."
            with self._axes("Predicted and true numbers", caption) as axes:
                display = PredictionErrorDisplay(y_true=true[:, place], y_pred=predicted[:, place])
                display.plot(ax=axes, kind="actual_vs_predicted", scatter_kwargs={"s": 9})

    def _draw_search(self, search: Mapping[str, Any]) -> None:
        """Draw the learning curve, and the compared combinations to its right."""
        error, chosen = self._finished.criterion, search["chosen"]["basis_size"]
        name = error.replace("_", " ")
        # The place on the horizontal axis, the name in the legend, and the loss.
        drawn: list[tuple[Any, str, float]] = sorted(
            (each["n_basis"], each["basis"], each[error]) for each in search["curve"]
        )
        for each in search["finals"]:
            combination = " ".join(each[part] for part in KIND)
            drawn.append((combination, "compared", each[error]))
        places = list(dict.fromkeys(place for place, _, _ in drawn))
        caption = f"The {name} on the sample, by basis size ({chosen:,} is chosen) and combination."
        with self._axes("Tuning", caption, 5.0) as axes:
            axes.set(xlabel="basis size, and compared combinations", ylabel=name)
            axes.set_xticks(range(len(places)), [str(place) for place in places], rotation=90)
            for label in dict.fromkeys(legend for _, legend, _ in drawn):
                own = [each for each in drawn if each[1] == label]
                x, losses = [places.index(each[0]) for each in own], [each[2] for each in own]
                axes.plot(x, losses, "kx" if label == "compared" else "o-", label=label)
            axes.axvline(places.index(chosen), color="black", linestyle="--", linewidth=1)
            if "linear" in search:
                axes.axhline(search["linear"], color="grey", linestyle=":", label="linear model")
            axes.legend()

    def _draw_confidence(self, values: Floats) -> None:
        threshold = self._finished.params.threshold
        n_below = self._finished.stages["confidence"]["n_below_threshold"]
        caption = "Confidence: the weight of the own label among the neighbours. "
        caption += f"{n_below:,} rows below the threshold {threshold:g} may enter the basis."
        with self._axes("Confidence of the rows", caption) as axes:
            axes.hist(values, _BARS_OF_HISTOGRAM, range=(0.0, 1.0))
            axes.set(xlabel="confidence", ylabel="rows", yscale="symlog", xlim=(0.0, 1.0))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.axvline(threshold, color="black", linestyle="--", linewidth=1)

    def _draw_unlike(self, values: Floats, weights: Floats) -> None:
        shares = 100 * weights / weights.sum()
        caption = f"Distances of {plural(len(values), 'held-out row')} from the basis. Above 1, "
        caption += "a row is farther than 99.9 % of them: the column `unlike` of predict."
        with self._axes(SURENESS, caption) as axes:
            most = max(1.25, float(values.max()))
            axes.hist(values, _BARS_OF_HISTOGRAM, range=(0.0, most), weights=shares)
            axes.set(xlabel="unlike", ylabel="percent of the rows", yscale="log", xlim=(0.0, most))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.axvline(1.0, color="black", linestyle="--", linewidth=1)

    def _draw_coordinates(self) -> None:
        """Draw sampled rows of an embedding, coloured by a few classes or by the first target."""
        run, names = self._finished.run, self._finished.names
        x, *others = COORDINATES.read(run).T
        if not others:
            return
        caption = f"The first two coordinates of {plural(len(x), 'row')}, evenly spaced."
        with self._axes("Coordinates of the rows", caption, 5.0) as axes:
            axes.set(xlabel="first coordinate", ylabel="second coordinate")
            axes.scatter(x, others[0], s=9, color="lightgrey")
            if SAMPLED_TARGETS.is_in(run):
                shown = SAMPLED_TARGETS.read(run)[:, 0]
            elif SAMPLED_CODES.is_in(run):
                codes = SAMPLED_CODES.read(run)
                shown = np.where(codes < 0, np.nan, codes)
            else:
                return
            drawn = axes.scatter(x, others[0], s=9, c=shown)
            bar = axes.figure.colorbar(drawn, label=names[0] if names else "class")
            labels = [] if names else label_texts(SAMPLED_CLASSES.read(run).tolist())
            if 0 < len(labels) <= _MOST_NAMED:
                bar.set_ticks(range(len(labels)), labels=[shorten(each, 16) for each in labels])
