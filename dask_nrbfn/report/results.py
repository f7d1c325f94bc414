"""Results of a run by the kind of its targets: classes, numbers or none."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.errors import ParameterError, plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.report.confusion import ConfusionTable
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import (
    TextTable,
    count,
    decimals,
    label_texts,
    listed,
    number,
    percent,
)
from dask_nrbfn.report.reliability import reliability_table
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.refine import guess_as_good, read_held_out_confusion

# Above this fitting error, the squared residuals are larger than the squared scores.
_LARGE_FITTING_ERROR = 2.0

# Below this recall, most rows of a class get the label of another class.
_LOW_RECALL = 0.5

# Below this R2, less than half of the variance of a target is fitted.
_SMALL_R2 = 0.5

# Maximum number of targets that are drawn: the targets with the lowest R2.
_MOST_DRAWN = 4


class Fact(NamedTuple):
    """A figure and its name."""

    name: str
    value: str


@dataclass(frozen=True)
class Concern:
    """A problem of a run and its remedy."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


class Criterion(NamedTuple):
    """The figure by which models are compared.

    ``name`` is the name in records. Charts multiply the figure by ``factor`` on an axis ``label``.
    """

    name: str
    label: str
    factor: float


class DrawnTarget(NamedTuple):
    """``true`` and ``predicted`` numbers of some rows, float64 (m,), and the R2 of all rows."""

    name: str
    true: Floats
    predicted: Floats
    r2: float


class DrawnCoordinates(NamedTuple):
    """Coordinates (m, 2) of some rows, and the targets (m,) that colour them.

    The targets are indices in `labels`, or numbers of a `name`.
    """

    coordinates: Floats
    targets: NDArray[Any] | None
    labels: list[str]
    name: str


@dataclass(frozen=True, eq=False)
class Results(ABC):
    """Results of a run, and of an evaluation; the defaults are for a run without targets."""

    finished: FinishedRun

    criterion: ClassVar[Criterion] = Criterion("", "", 1.0)

    @abstractmethod
    def targets(self) -> str:
        """Return the number of classes or coordinates, or the names of numbers, as text."""

    def training_facts(self, record: Mapping[str, Any]) -> list[Fact]:
        """Return figures of the training rows by the record of the weights or of a version."""
        return []

    def held_out_facts(self, record: Mapping[str, Any], judged: str) -> list[Fact]:
        """Return the figures of held-out rows, which `judged` counts, by the record of a stage."""
        return []

    def evaluation_facts(self) -> list[Fact]:
        """Return the figures of the evaluated rows, if there are any."""
        return []

    def judged_cells(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the held-out figures of a combination or a penalty by the name of a column."""
        return {}

    def guessing(self) -> Iterator[Concern]:
        """Yield a concern if predictions that ignore all features are as good."""
        return iter(())

    def poor_fit(self) -> Iterator[Concern]:
        """Yield a concern if the training rows are fitted badly."""
        return iter(())

    def unknown_labels(self) -> Iterator[Concern]:
        """Yield a concern if evaluated rows have labels that the model does not know."""
        return iter(())

    def missed_classes(self) -> Iterator[Concern]:
        """Yield a concern if most rows of a class get other labels."""
        return iter(())

    def confusions(self) -> list[ConfusionTable]:
        """Return the confusion tables."""
        return []

    def reliabilities(self) -> list[TextTable]:
        """Return the reliability of the probabilities of held-out and of evaluated rows."""
        return []

    def target_table(self) -> TextTable | None:
        """Return a table of the figures of several targets."""
        return None

    def drawn_targets(self) -> list[DrawnTarget]:
        """Return evaluated rows of the targets that are drawn."""
        return []

    def drawn_coordinates(self) -> DrawnCoordinates | None:
        """Return rows in their first two coordinates; None without coordinates."""
        return None


@dataclass(frozen=True, eq=False)
class ClassResults(Results):
    """Results of a run whose targets are classes."""

    evaluation: Evaluation | None

    criterion = Criterion("error_rate", "held-out error, %", 100.0)

    def targets(self) -> str:
        """Return the number of classes."""
        return f"{len(self.finished.labels):,} classes"

    def held_out_facts(self, record: Mapping[str, Any], judged: str) -> list[Fact]:
        """Return the error and the log loss."""
        loss, temperature = decimals(record["log_loss"]), number(record["temperature"])
        biases = " with biases" if record.get("biases") else ""
        return [
            Fact("held-out error", f"{percent(record['error_rate'])} of {judged}"),
            Fact(
                "log loss",
                f"{loss} at temperature {temperature}{biases}{_calibration_error(record)}",
            ),
        ]

    def evaluation_facts(self) -> list[Fact]:
        """Return the error, the log loss and other figures in one line."""
        evaluation = self.evaluation
        if evaluation is None:
            return []
        area = "" if evaluation.roc_auc is None else f", ROC AUC {decimals(evaluation.roc_auc)}"
        unknown = f", {count(evaluation.n_unknown_labels)} of them with labels unknown to the model"
        return [
            Fact(
                "evaluation",
                f"{percent(evaluation.error_rate)} wrong of {plural(evaluation.n_rows, 'row')}"
                f"{unknown if evaluation.n_unknown_labels else ''}, log loss "
                f"{'of the others ' if evaluation.n_unknown_labels else ''}"
                f"{decimals(evaluation.log_loss)}{_calibration_error(vars(evaluation))}{area}"
                f"{_left_out(evaluation)}",
            )
        ]

    def judged_cells(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the error and the log loss, for penalties also the temperature."""
        cells = {"error": percent(record["error_rate"]), "log loss": decimals(record["log_loss"])}
        if "temperature" in record:
            cells["temperature"] = number(record["temperature"])
        return cells

    def guessing(self) -> Iterator[Concern]:
        """Yield a concern if predicting the largest class is as good."""
        if (guess := guess_as_good(self.finished.run)) is None:
            return
        remedy = 'Check scale first: columns in different units need "standard".'
        if self.finished.params.class_weight is None:
            remedy += (
                " To find the rows of small classes, pass --class-weight balanced "
                '(class_weight="balanced" in Python).'
            )
        yield Concern(
            f"The held-out error is {percent(guess.error_rate)}; always predicting the largest "
            f"class has an error of {percent(guess.guessing)}.",
            remedy,
        )

    def poor_fit(self) -> Iterator[Concern]:
        """Yield a concern if the fitting error is large."""
        error = self.finished.fitted["fitting_error"]
        if error > _LARGE_FITTING_ERROR:
            yield Concern(
                f"The fitting error eps is {number(error)}: the residuals exceed the scores.",
                "Try a smaller alpha, a larger basis, or another width_factor.",
            )

    def unknown_labels(self) -> Iterator[Concern]:
        """Yield a concern with the number of rows with unknown labels."""
        evaluation = self.evaluation
        if evaluation is not None and (unknown := evaluation.n_unknown_labels):
            yield Concern(
                f"{count(unknown)} of {plural(evaluation.n_rows, 'evaluated row')} have labels "
                "that the model does not know.",
                "Rows with unknown labels count as errors. Train on rows of these classes too.",
            )

    def missed_classes(self) -> Iterator[Concern]:
        """Yield a concern with the classes whose recall is below a half."""
        held_out, labels = read_held_out_confusion(self.finished.run), self.finished.labels
        counts = {"held-out": held_out}
        if self.evaluation is not None:
            counts["evaluated"] = np.asarray(self.evaluation.confusion)
        for rows, confusion in counts.items():
            if confusion is None:
                continue
            missed = [
                f"{each['class']} ({percent(each['recall'])})"
                for each in class_figures(labels, confusion)
                if each["recall"] is not None and each["recall"] < _LOW_RECALL
            ]
            if missed:
                yield Concern(
                    f"Less than half of the {rows} rows of these classes get the right label: "
                    f"{listed(missed)}.",
                    'Try class_weight="balanced" for classes with few rows, and scale="standard" '
                    "for columns in different units.",
                )

    def confusions(self) -> list[ConfusionTable]:
        """Return the tables of held-out and of evaluated rows."""
        tables, labels = [], self.finished.labels
        held_out = read_held_out_confusion(self.finished.run)
        if held_out is not None:
            tables.append(ConfusionTable.of("Held-out rows", labels, held_out))
        if self.evaluation is not None:
            tables.append(ConfusionTable.of("Evaluated rows", labels, self.evaluation.confusion))
        return tables

    def reliabilities(self) -> list[TextTable]:
        """Return the reliability of held-out and of evaluated rows."""
        labels, judged = self.finished.labels, judged_record(self.finished.stages)
        bins = {"Held-out rows": judged.get("reliability")}
        if self.evaluation is not None:
            bins["Evaluated rows"] = self.evaluation.reliability
        return [reliability_table(title, labels, each) for title, each in bins.items() if each]


def _calibration_error(figures: Mapping[str, Any]) -> str:
    """Return the expected calibration error as a part of a line; empty if there is none."""
    error = figures.get("expected_calibration_error")
    return "" if error is None else f", expected calibration error {decimals(error)}"


@dataclass(frozen=True, eq=False)
class NumberResults(Results):
    """Results of a run whose targets are numbers with `names`."""

    names: list[str]
    evaluation: NumberEvaluation | None

    criterion = Criterion("relative_error", "held-out 1 - R2", 1.0)

    def targets(self) -> str:
        """Return the names."""
        return f"target{'' if len(self.names) == 1 else 's'} {listed(self.names)}"

    def training_facts(self, record: Mapping[str, Any]) -> list[Fact]:
        """Return R2 of the training rows."""
        return [Fact("training R2", self._r2(record["training_r2"]))]

    def held_out_facts(self, record: Mapping[str, Any], judged: str) -> list[Fact]:
        """Return R2 and the mean errors."""
        return [
            Fact("held-out R2", self._r2(record["r2"], f" of {judged}")),
            Fact("held-out RMSE", self._each(record["rmse"], number)),
            Fact("held-out MAE", self._each(record["mae"], number)),
        ]

    def evaluation_facts(self) -> list[Fact]:
        """Return R2 and the mean errors."""
        evaluation = self.evaluation
        if evaluation is None:
            return []
        rows = plural(evaluation.n_rows, "row") + _left_out(evaluation)
        return [
            Fact("evaluation", f"R2 {self._r2(evaluation.r2, f' of {rows}')}"),
            Fact("evaluation RMSE", self._each(evaluation.rmse, number)),
            Fact("evaluation MAE", self._each(evaluation.mae, number)),
        ]

    def _r2(self, r2: list[float], of: str = "") -> str:
        """Return R2 as text, for several targets also the mean, because R2 has no unit."""
        if len(r2) == 1:
            return f"{decimals(r2[0])}{of}"
        return f"{decimals(_average(r2))} on average{of}, {self._each(r2, decimals)}"

    def _each(self, values: list[float], show: Callable[[float], str]) -> str:
        if len(values) == 1:
            return show(values[0])
        pairs = zip(self.names, values, strict=True)
        return listed([f"{name} {show(value)}" for name, value in pairs])

    def judged_cells(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the relative error and R2."""
        r2 = record["r2"]
        return {
            "relative error": number(record["relative_error"]),
            "R2" if len(self.names) == 1 else "mean R2": decimals(
                r2 if r2 is None else _average(r2)
            ),
        }

    def guessing(self) -> Iterator[Concern]:
        """Yield a concern if predicting the mean of a target is as good."""
        judged = judged_record(self.finished.stages)
        missed = self._below(judged["r2"], 0.0) if judged else []
        if missed:
            yield Concern(
                f"Always predicting the mean is as good on held-out rows: {listed(missed)}.",
                'Check scale first: columns in different units need "standard".',
            )

    def poor_fit(self) -> Iterator[Concern]:
        """Yield a concern about targets with less than half of their variance fitted."""
        missed = self._below(self.finished.fitted["training_r2"], _SMALL_R2)
        if missed:
            yield Concern(
                f"Less than half of the variance of the training rows is fitted: {listed(missed)}.",
                "Unless the rest is noise, try a smaller alpha, a larger basis, or another "
                "width_factor.",
            )

    def _below(self, r2: list[float], limit: float) -> list[str]:
        pairs = zip(self.names, r2, strict=True)
        return [f"{name} (R2 {decimals(value)})" for name, value in pairs if value <= limit]

    def target_table(self) -> TextTable | None:
        """Return R2 of training, held-out and evaluated rows, and the mean errors."""
        if len(self.names) == 1:
            return None
        columns: dict[str, Iterable[str]] = {
            "training R2": map(decimals, self.finished.fitted["training_r2"])
        }
        if judged := judged_record(self.finished.stages):
            columns |= _judged_columns("held-out", judged)
        if self.evaluation is not None:
            columns |= _judged_columns("evaluated", self.evaluation.figures())
        rows = [list(cells) for cells in zip(self.names, *columns.values(), strict=True)]
        return TextTable("Each target", ["target", *columns], rows)

    def drawn_targets(self) -> list[DrawnTarget]:
        """Return sampled rows of the targets with the lowest R2, in the order of the targets."""
        evaluation = self.evaluation
        if evaluation is None:
            return []
        sample, worst = evaluation.sample, np.argsort(evaluation.r2, kind="stable")[:_MOST_DRAWN]
        return [
            DrawnTarget(
                self.names[place],
                sample.true[:, place],
                sample.predicted[:, place],
                evaluation.r2[place],
            )
            for place in sorted(worst.tolist())
        ]


@dataclass(frozen=True, eq=False)
class EmbeddingResults(Results):
    """Results of an embedding, which has no targets."""

    def targets(self) -> str:
        """Return the number of coordinates."""
        return plural(self.finished.run.array("model/weights").shape[0], "coordinate")

    def drawn_coordinates(self) -> DrawnCoordinates | None:
        """Return the sampled rows, with their class or the first of their numbers."""
        finished = self.finished
        run, names = finished.run, finished.attributes["target_names"]
        coordinates = run.read("model/sample/coordinates")[:, :2]
        if coordinates.shape[1] < 2:
            return None
        if not run.has("model/sample/targets"):
            return DrawnCoordinates(coordinates, None, [], "")
        targets = run.read("model/sample/targets")
        if names is not None:
            return DrawnCoordinates(coordinates, targets[:, 0], [], names[0])
        labels = label_texts(run.read("model/sample/classes").tolist())
        return DrawnCoordinates(coordinates, targets, labels, "")


def _left_out(evaluation: Evaluation | NumberEvaluation) -> str:
    n_unlabelled = evaluation.n_unlabelled
    return f"; {count(n_unlabelled)} more have no label" if n_unlabelled else ""


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _judged_columns(rows: str, record: Mapping[str, Any]) -> dict[str, Iterable[str]]:
    return {
        f"{rows} R2": map(decimals, record["r2"]),
        f"{rows} RMSE": map(number, record["rmse"]),
        f"{rows} MAE": map(number, record["mae"]),
    }


def results_of(
    finished: FinishedRun, evaluation: Evaluation | NumberEvaluation | None = None
) -> Results:
    """Return the results of a run and of an evaluation of its model on other rows.

    Raises ParameterError if the evaluation is of a model with other targets.
    """
    if finished.run.embeds:
        if evaluation is not None:
            raise _of_another_model("targets", "none: it is an embedding")
        return EmbeddingResults(finished)
    names = finished.attributes["target_names"]
    if names is None:
        n_classes = len(finished.labels)
        if isinstance(evaluation, NumberEvaluation):
            raise _of_another_model("numbers", f"{n_classes} classes")
        if evaluation is not None and len(evaluation.confusion[0]) != n_classes:
            raise _of_another_model(f"{len(evaluation.confusion[0])} classes", f"{n_classes}")
        return ClassResults(finished, evaluation)
    learnt = f"the targets {', '.join(names)}"
    if isinstance(evaluation, Evaluation):
        raise _of_another_model(f"{len(evaluation.confusion[0])} classes", learnt)
    if evaluation is not None and list(evaluation.target_names) != names:
        raise _of_another_model(f"the targets {', '.join(evaluation.target_names)}", learnt)
    return NumberResults(finished, names, evaluation)


def _of_another_model(evaluated: str, learnt: str) -> ParameterError:
    return ParameterError(
        f"the evaluation has {evaluated}, but the run has {learnt}.",
        "Give the evaluation of this run's model.",
    )
