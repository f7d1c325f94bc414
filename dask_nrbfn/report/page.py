"""One self-contained HTML page of a finished run."""

import os
from importlib.resources import files
from typing import Any

import jinja2
from dask.utils import format_bytes

from dask_nrbfn.commands.describe import describe_cells
from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.commands.version import read_model
from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.outputs import new_file
from dask_nrbfn.report import charts
from dask_nrbfn.report.concerns import find_concerns
from dask_nrbfn.report.facts import run_facts
from dask_nrbfn.report.finished import Confidences, FinishedRun
from dask_nrbfn.report.formats import (
    NO_NUMBER,
    TextTable,
    count,
    decimals,
    number,
    schema_table,
    seconds,
)
from dask_nrbfn.report.results import NumberResults, Results, results_of
from dask_nrbfn.report.tuning import tuning_tables
from dask_nrbfn.storage.run import Run

# Number of cells that are listed.
_MOST_CELLS = 10


def write_report(
    run: Run,
    path: str | os.PathLike[str],
    *,
    evaluation: Evaluation | NumberEvaluation | None = None,
    overwrite: bool = False,
) -> None:
    """Write a page without scripts or other files; the same run gives the same text."""
    results = results_of(FinishedRun.of(run), evaluation)
    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_text(_page(results), encoding="utf-8")


def _page(results: Results) -> str:
    finished = results.finished
    schema, stages = finished.attributes["schema"], finished.stages
    of_numbers = results if isinstance(results, NumberResults) else None
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = files(__package__).joinpath("page.html.jinja").read_text("utf-8")
    return environment.from_string(template).render(
        name=str(finished.run.location).rstrip("/").rpartition("/")[2],
        started=stages["columns"]["started"],
        facts=run_facts(results),
        concerns=find_concerns(results),
        columns=None if schema is None else schema_table(schema),
        confidence=_confidence(finished),
        tuning=_tuning(results),
        confusions=results.confusions(),
        reliabilities=results.reliabilities(),
        targets=of_numbers and len(of_numbers.names) > 1 and of_numbers.target_table(),
        drawn=charts.prediction_charts(of_numbers) if of_numbers else [],
        features=_features(finished),
        of_cells=_cells(results),
        pruning=charts.pruning_chart(finished.run) if "prune" in stages else None,
        coordinates=charts.coordinates_chart(finished.run) if finished.run.embeds else None,
        stages=_stages(finished),
        params=finished.params.to_dict(),
        environment=finished.attributes["environment"],
    )


def _confidence(finished: FinishedRun) -> dict[str, Any] | None:
    confidences = Confidences.of(finished)
    if confidences is None:
        return None
    rows, threshold = f"{finished.searched}s", finished.params.confidence_threshold
    least = confidences.least
    columns = {
        "row": map(str, least.rows.tolist()),
        "id": least.ids,
        "label": least.labels,
        "confidence": map(decimals, least.values.tolist()),
    }
    shown = {name: values for name, values in columns.items() if values is not None}
    cells = [[*row] for row in zip(*shown.values(), strict=True)]
    return {
        "rows": rows,
        "drawn": count(finished.n_searched) if finished.searched == "candidate" else None,
        "histogram": charts.confidence_chart(confidences.counts, threshold, rows),
        "threshold": threshold,
        "below": count(finished.stages["confidence"]["n_below_threshold"]),
        "certain": count(confidences.n_certain),
        "least": TextTable("The least confident rows", [*shown], cells),
    }


def _tuning(results: Results) -> dict[str, Any] | None:
    finished = results.finished
    if finished.run.tuning is None:
        return None
    search = finished.stages.get("search")
    sizes = search and charts.size_chart(search["curve"], search["chosen"], results.criterion)
    return {"tables": tuning_tables(results), "sizes": sizes}


def _features(finished: FinishedRun) -> dict[str, Any] | None:
    if finished.params.scale != LEARNED:
        return None
    metric = finished.stages["metric"]
    return {
        "table": TextTable(
            "The largest weights in squared distances; the mean of all weights above 0 is 1",
            ["column", "weight"],
            [[name, number(weight)] for name, weight in metric["heaviest"].items()],
        ),
        "round": metric["kept"],
        "rounds": max(len(metric["rounds"]) - 1, 0),
        "unused": count(len(metric["unused"])),
    }


def _cells(results: Results) -> TextTable | None:
    """Return a table of the cells of the fit with the largest errors."""
    finished = results.finished
    if not finished.cells:
        return None
    errors = finished.run.read("cells/errors").tolist()
    cells = describe_cells(read_model(finished.run, ""))
    worst = sorted(zip(errors, cells, strict=True), key=lambda each: -each[0])[:_MOST_CELLS]
    rows = [
        {
            "splits": ", ".join(cell["splits"]) or "all rows",
            "rows": count(cell["n_rows"]),
            "basis rows": count(cell["n_basis"]),
            results.criterion.label: number(results.criterion.factor * error),
        }
        for error, cell in worst
    ]
    return TextTable.of(f"The largest held-out errors of the {plural(len(cells), 'cell')}", rows)


def _stages(finished: FinishedRun) -> TextTable:
    records = finished.stages
    rows = [
        {
            "stage": name,
            "time": seconds(record["seconds"]),
            "measured": format_bytes(record["peak_bytes"]) if record["peak_bytes"] else NO_NUMBER,
            "predicted": format_bytes(record["predicted_bytes"]),
        }
        for name, record in records.items()
    ]
    total = seconds(sum(record["seconds"] for record in records.values()))
    rows.append({"stage": "all", "time": total, "measured": "", "predicted": ""})
    return TextTable.of("Time, and the measured and predicted peak memory of a worker", rows)
