"""One self-contained HTML page of a finished run."""

import os
from importlib.resources import files
from typing import Any

import jinja2
from dask.utils import format_bytes

from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.commands.version import read_model
from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.outputs import new_file
from dask_nrbfn.report import charts
from dask_nrbfn.report.concerns import find_concerns
from dask_nrbfn.report.facts import run_facts, tuning_tables
from dask_nrbfn.report.finished import Confidences, FinishedRun, NamedRows
from dask_nrbfn.report.formats import (
    TextTable,
    count,
    decimals,
    schema_table,
    seconds,
)
from dask_nrbfn.report.results import Results, results_of
from dask_nrbfn.storage.run import Run


def write_report(
    run: Run,
    path: str | os.PathLike[str],
    *,
    evaluation: Evaluation | NumberEvaluation | None = None,
    overwrite: bool = False,
) -> None:
    """Write a page about the data, the results and the costs of a run.

    The page is self-contained: it loads no other file and runs no script. The same run always gives
    the same text.

    run: A finished run.
    evaluation: figures of the model on other rows, as returned by `evaluate_dataset`.
    overwrite: replace the file at `path`, once the page is complete.
    """
    results = results_of(FinishedRun.of(run), evaluation)
    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_text(_page(results), encoding="utf-8")


def _page(results: Results) -> str:
    finished = results.finished
    schema = finished.attributes["schema"]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = files(__package__).joinpath("page.html.jinja").read_text("utf-8")
    return environment.from_string(template).render(
        name=str(finished.run.location).rstrip("/").rpartition("/")[2],
        started=finished.stages["columns"]["started"],
        facts=run_facts(results),
        concerns=find_concerns(results),
        columns=None if schema is None else schema_table(schema),
        confidence=_confidence(finished),
        tuning=_tuning(results),
        confusions=results.confusions(),
        reliabilities=results.reliabilities(),
        targets=results.target_table(),
        drawn=_drawn(results),
        features=_features(finished),
        of_cells=_cells(results),
        pruning=_pruning(finished),
        coordinates=_coordinates(results),
        stages=_stages(finished),
        params=finished.params.to_dict(),
        environment=finished.attributes["environment"],
    )


def _confidence(finished: FinishedRun) -> dict[str, Any] | None:
    confidences = Confidences.of(finished)
    if confidences is None:
        return None
    threshold = finished.params.confidence_threshold
    n_below = finished.stages["confidence"]["n_below_threshold"]
    return {
        "rows": confidences.rows,
        "drawn": count(finished.n_searched) if finished.searched == "candidate" else None,
        "histogram": charts.confidence_chart(confidences, threshold),
        "threshold": threshold,
        "below": count(n_below),
        "certain": count(confidences.n_certain),
        "least": _named(confidences.least),
    }


def _named(named: NamedRows) -> TextTable:
    columns = {
        "row": map(str, named.rows.tolist()),
        **({} if named.ids is None else {"id": named.ids}),
        "label": named.labels,
        "confidence": map(decimals, named.values.tolist()),
    }
    cells = [[*row] for row in zip(*columns.values(), strict=True)]
    return TextTable("The least confident rows", [*columns], cells)


def _tuning(results: Results) -> dict[str, Any] | None:
    finished, criterion = results.finished, results.criterion
    if finished.tuning is None:
        return None
    search = finished.stages.get("search")
    return {
        "tables": tuning_tables(results),
        "sizes": search and charts.size_chart(search["curve"], search["chosen"], criterion),
    }


def _drawn(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "name": target.name,
            "rows": plural(len(target.true), "evaluated row"),
            "predictions": charts.prediction_chart(target, place),
        }
        for place, target in enumerate(results.drawn_targets(), start=1)
    ]


def _features(finished: FinishedRun) -> dict[str, Any] | None:
    if finished.params.scale != LEARNED:
        return None
    metric = finished.stages["metric"]
    return {
        "chart": charts.feature_chart(metric["heaviest"]),
        "round": metric["kept"],
        "rounds": max(len(metric["rounds"]) - 1, 0),
        "unused": count(len(metric["unused"])),
    }


def _cells(results: Results) -> str | None:
    """Return the chart of the cells of the fit."""
    finished = results.finished
    if not finished.is_of_cells:
        return None
    model = read_model(finished.run, "")
    assert model.cells is not None
    errors = finished.run.read("cells/errors")
    criterion = results.criterion
    return charts.cells_chart(
        model.cells.tree, model.cells.n_rows, criterion.factor * errors, criterion.label
    )


def _pruning(finished: FinishedRun) -> str | None:
    if "prune" not in finished.stages:
        return None
    return charts.pruning_chart(finished.run.read("prune/unexplained"))


def _coordinates(results: Results) -> dict[str, str] | None:
    drawn = results.drawn_coordinates()
    if drawn is None:
        return None
    rows = plural(len(drawn.coordinates), "row")
    return {"chart": charts.coordinates_chart(drawn), "rows": rows}


def _stages(finished: FinishedRun) -> dict[str, Any]:
    records = finished.stages
    total = sum(record["seconds"] for record in records.values()) or 1.0
    most = max(max(record["peak_bytes"], record["predicted_bytes"]) for record in records.values())
    return {
        "rows": [
            {
                "name": name,
                "seconds": seconds(record["seconds"]),
                "share_of_seconds": round(record["seconds"] / total, 3),
                "measured": format_bytes(record["peak_bytes"]) if record["peak_bytes"] else "-",
                "share_of_bytes": round(record["peak_bytes"] / most, 3),
                "predicted": format_bytes(record["predicted_bytes"]),
            }
            for name, record in records.items()
        ],
        "seconds": seconds(total),
    }
