"""Results of a run by the kind of its targets: classes, numbers or none."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.errors import ParameterError, plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.report.classes import ConfusionTables, confusion_tables, reliability_table
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import (
    Fact,
    TextTable,
    count,
    decimals,
    listed,
    number,
    percent,
    target_names_text,
)
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.refine import guess_as_good, read_held_out_confusion

# Above this fitting error, the squared residuals are larger than the squared scores.
_LARGE_FITTING_ERROR = 2.0

# Below this recall, most rows of a class get the label of another class.
_LOW_RECALL = 0.5

# Below this R2, less than half of the variance of a target is fitted.
_SMALL_R2 = 0.5


class Concern(NamedTuple):
    """A problem of a run and its remedy."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


class Criterion(NamedTuple):
    """The figure by which models are compared: in records, and times `factor` on a chart."""

    name: str
    label: str
    factor: float


@dataclass(frozen=True, eq=False)
class Results:
    """Results of a run; this class is for embeddings, which have no targets."""

    finished: FinishedRun
    # An `Evaluation` for classes, a `NumberEvaluation` for numbers, None without an evaluation.
    evaluation: Any = None

    criterion: ClassVar[Criterion] = Criterion("", "", 1.0)

    def targets(self) -> str:
        """Return the number of classes or coordinates, or the names of numbers, as text."""
        return plural(self.finished.run.array("model/weights").shape[0], "coordinate")

    def training_facts(self, record: Mapping[str, Any]) -> list[Fact]:
        """Return figures of the training rows by the record of the weights or of a version."""
        return []

    def judged_facts(self, rows: str, record: Mapping[str, Any], of: str) -> list[Fact]:
        """Return the figures of "held-out" or "evaluation" rows, which `of` counts."""
        return []

    def evaluation_facts(self) -> list[Fact]:
        """Return the figures of the evaluated rows, if there are any."""
        if (evaluation := self.evaluation) is None:
            return []
        of = plural(evaluation.n_rows, "row")
        if n_unknown := getattr(evaluation, "n_unknown_labels", 0):
            of += f", {count(n_unknown)} of them with labels unknown to the model, "
            of += "which the log loss leaves out"
        if evaluation.n_unlabelled:
            of += f"; {count(evaluation.n_unlabelled)} more have no label"
        return self.judged_facts("evaluation", evaluation.figures(), of)

    def judged_cells(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the held-out figures of a combination or a penalty by the name of a column."""
        return {}

    def concerns(self) -> Iterator[Concern]:
        """Yield concerns about the errors."""
        return iter(())

    def confusions(self) -> list[ConfusionTables]:
        """Return the confusion of held-out and of evaluated rows."""
        return []

    def reliabilities(self) -> list[TextTable]:
        """Return the reliability of the probabilities of held-out and of evaluated rows."""
        return []


@dataclass(frozen=True, eq=False)
class ClassResults(Results):
    """Results of a run whose targets are classes."""

    criterion = Criterion("error_rate", "held-out error, %", 100.0)

    def targets(self) -> str:
        """Return the number of classes."""
        return f"{len(self.finished.labels):,} classes"

    def judged_facts(self, rows: str, record: Mapping[str, Any], of: str) -> list[Fact]:
        """Return the error, the log loss and the calibration error."""
        loss = decimals(record["log_loss"])
        if "temperature" in record:
            biases = " with biases" if record.get("biases") else ""
            loss += f" at temperature {number(record['temperature'])}{biases}"
        for name in ("expected_calibration_error", "roc_auc"):
            if record.get(name) is not None:
                title = name.replace("_", " ").replace("roc auc", "ROC AUC")
                loss += f", {title} {decimals(record[name])}"
        return [
            Fact(f"{rows} error", f"{percent(record['error_rate'])} of {of}"),
            Fact("log loss" if rows == "held-out" else f"{rows} log loss", loss),
        ]

    def judged_cells(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Return the error and the log loss, for penalties also the temperature."""
        cells = {"error": percent(record["error_rate"]), "log loss": decimals(record["log_loss"])}
        # The search does not calibrate.
        if "temperature" in record:
            cells["temperature"] = number(record["temperature"])
        return cells

    def concerns(self) -> Iterator[Concern]:
        """Yield concerns about guessing, missed classes, the fitting error and unknown labels."""
        if (guess := guess_as_good(self.finished.run)) is not None:
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
        for rows, confusion in self._counts().items():
            missed = [
                f"{each['class']} ({percent(each['recall'])})"
                for each in class_figures(self.finished.labels, confusion)
                if each["recall"] is not None and each["recall"] < _LOW_RECALL
            ]
            if missed:
                yield Concern(
                    f"Less than half of the {rows.lower()} of these classes get the right label: "
                    f"{listed(missed)}.",
                    'Try class_weight="balanced" for classes with few rows, and scale="standard" '
                    "for columns in different units.",
                )
        if (error := self.finished.fitted["fitting_error"]) > _LARGE_FITTING_ERROR:
            yield Concern(
                f"The fitting error eps is {number(error)}: the residuals exceed the scores.",
                "Try a smaller alpha, a larger basis, or another width_factor.",
            )
        evaluation = self.evaluation
        if evaluation is not None and (unknown := evaluation.n_unknown_labels):
            yield Concern(
                f"{count(unknown)} of {plural(evaluation.n_rows, 'evaluated row')} have labels "
                "that the model does not know.",
                "Rows with unknown labels count as errors. Train on rows of these classes too.",
            )

    def _counts(self) -> dict[str, Any]:
        """Return the confusion by the name of the rows."""
        counts = {
            "Held-out rows": read_held_out_confusion(self.finished.run),
            "Evaluated rows": self.evaluation and self.evaluation.confusion,
        }
        return {rows: confusion for rows, confusion in counts.items() if confusion is not None}

    def confusions(self) -> list[ConfusionTables]:
        """Return the tables of held-out and of evaluated rows."""
        labels = self.finished.labels
        return [confusion_tables(rows, labels, each) for rows, each in self._counts().items()]

    def reliabilities(self) -> list[TextTable]:
        """Return the tables of held-out and of evaluated rows."""
        labels = self.finished.labels
        bins = {
            "Held-out rows": judged_record(self.finished.stages).get("reliability"),
            "Evaluated rows": self.evaluation and self.evaluation.reliability,
        }
        return [reliability_table(rows, labels, each) for rows, each in bins.items() if each]


@dataclass(frozen=True, eq=False)
class NumberResults(Results):
    """Results of a run whose targets are numbers."""

    criterion = Criterion("relative_error", "held-out 1 - R2", 1.0)

    @property
    def names(self) -> list[str]:
        """Names of the targets."""
        names: list[str] = self.finished.attributes["target_names"]
        return names

    def targets(self) -> str:
        """Return the names."""
        return target_names_text(self.names)

    def training_facts(self, record: Mapping[str, Any]) -> list[Fact]:
        """Return R2 of the training rows."""
        return [Fact("training R2", self._r2(record["training_r2"]))]

    def judged_facts(self, rows: str, record: Mapping[str, Any], of: str) -> list[Fact]:
        """Return R2 and the mean errors."""
        return [
            Fact(f"{rows} R2", self._r2(record["r2"], f" of {of}")),
            Fact(f"{rows} RMSE", self._each(record["rmse"], number)),
            Fact(f"{rows} MAE", self._each(record["mae"], number)),
        ]

    def _r2(self, r2: list[float], of: str = "") -> str:
        """Return R2 as text, for several targets also the mean, because R2 has no unit."""
        if len(r2) == 1:
            return f"{decimals(r2[0])}{of}"
        return f"{decimals(fmean(r2))} on average{of}, {self._each(r2, decimals)}"

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
            "R2" if len(self.names) == 1 else "mean R2": decimals(r2 if r2 is None else fmean(r2)),
        }

    def concerns(self) -> Iterator[Concern]:
        """Yield concerns about targets that are predicted or fitted badly."""
        judged = judged_record(self.finished.stages)
        if missed := self._below(judged["r2"] if judged else [], 0.0):
            yield Concern(
                f"Always predicting the mean is as good on held-out rows: {missed}.",
                'Check scale first: columns in different units need "standard".',
            )
        if missed := self._below(self.finished.fitted["training_r2"], _SMALL_R2):
            yield Concern(
                f"Less than half of the variance of the training rows is fitted: {missed}.",
                "Unless the rest is noise, try a smaller alpha, a larger basis, or another "
                "width_factor.",
            )

    def _below(self, r2: list[float], limit: float) -> str:
        pairs = zip(self.names, r2, strict=False)
        return listed([f"{name} (R2 {decimals(value)})" for name, value in pairs if value <= limit])

    def target_table(self) -> TextTable:
        """Return R2 of training, held-out and evaluated rows, and the mean errors."""
        judged = {"held-out": judged_record(self.finished.stages)}
        if self.evaluation is not None:
            judged["evaluated"] = self.evaluation.figures()
        training = self.finished.fitted["training_r2"]
        rows = []
        for place, name in enumerate(self.names):
            row = {"target": name, "training R2": decimals(training[place])}
            for which, record in judged.items():
                if record:
                    row[f"{which} R2"] = decimals(record["r2"][place])
                    row[f"{which} RMSE"] = number(record["rmse"][place])
                    row[f"{which} MAE"] = number(record["mae"][place])
            rows.append(row)
        return TextTable.of("Each target", rows)


def results_of(
    finished: FinishedRun, evaluation: Evaluation | NumberEvaluation | None = None
) -> Results:
    """Return the results of a run, and of an evaluation of its model on other rows."""
    names = finished.attributes["target_names"]
    if finished.run.embeds:
        kind, learnt = Results, "no targets: it is an embedding"
    elif names is None:
        kind, learnt = ClassResults, f"{len(finished.labels)} classes"
    else:
        kind, learnt = NumberResults, f"the targets {', '.join(names)}"
    if isinstance(evaluation, NumberEvaluation):
        evaluated = f"the targets {', '.join(evaluation.target_names)}"
    else:
        evaluated = learnt if evaluation is None else f"{len(evaluation.confusion[0])} classes"
    if evaluated != learnt:
        raise ParameterError(
            f"the evaluation has {evaluated}, but the run has {learnt}.",
            "Give the evaluation of this run's model.",
        )
    return kind(finished, evaluation)
