"""Reports as text."""

import textwrap
from typing import Any

from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.commands.plan import Plan
from dask_nrbfn.errors import plural
from dask_nrbfn.report.facts import (
    confused,
    confusion_tables,
    importance_tables,
    interval_tables,
    summary,
    tuning_tables,
)
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import Table, label_texts, line, readable_bytes
from dask_nrbfn.storage.run import Run

_WIDTH = 100


def run_table(run: Run) -> str:
    """Return the results of a finished run, what to do next, its network and its cost."""
    lines = []
    for section in summary(FinishedRun.of(run), lambda name: f"--{name.replace('_', '-')}"):
        if section.title == "For the method":
            lines.append("for the method:")
        lines += [_line(name, value) for name, value in section.figures.items()]
        lines += [_line("warning", " ".join(concern)) for concern in section.concerns]
    return "\n".join(lines)


def tuning_table(run: Run) -> str:
    """Return tables of what a tuning tried, with stars at the choices, and of held-out classes."""
    finished = FinishedRun.of(run)
    of_classes = [table for tables in confused(finished).values() for table in tables]
    return _text(*tuning_tables(finished), *of_classes)


def evaluation_tables(evaluation: Evaluation | NumberEvaluation) -> str:
    """Return tables of confusions, of the figures of each class, of intervals and importances."""
    tables = interval_tables(evaluation) + importance_tables(evaluation)
    if isinstance(evaluation, Evaluation):
        labels = label_texts(evaluation.classes)
        tables += confusion_tables("Evaluated rows", labels, evaluation.figures())
    return _text(*tables)


def plan_table(plan: Plan) -> str:
    """Return a plan as text, a line for each stage."""
    searched = "" if plan.n_candidates is None else f" of {plan.n_candidates} candidates"
    partitions = plural(plan.n_partitions, "partition")
    network = f"{plan.n_basis} basis rows; {plan.method} neighbours{searched} in {partitions}"
    if plan.n_cells > 1:
        network = f"{plan.n_basis:,} basis rows in {plural(plan.n_cells, 'cell')}"
    machines = f"{plural(plan.n_workers, 'worker')} x {plural(plan.threads, 'thread')}"
    rows: list[dict[str, Any]] = [
        {
            "stage": planned.name,
            "systems": f"{sum(planned.cost.systems.values()):,.0f}",
            "GFLOP": f"{planned.cost.flops / 1e9:,.1f}",
            "Gexp": f"{planned.cost.exponentials / 1e9:,.2f}",
            "read": readable_bytes(planned.cost.read_bytes),
            "written": readable_bytes(planned.cost.written_bytes),
            "held": readable_bytes(planned.cost.held_bytes),
            "seconds": planned.seconds,
            "": "more than a worker has" if planned.cost.held_bytes > plan.memory_bytes else "",
        }
        for planned in plan.stages
    ]
    total = sum(planned.seconds for planned in plan.stages)
    rows.append({**dict.fromkeys(rows[0], ""), "stage": "all", "seconds": total})
    title = f"{machines}, {readable_bytes(plan.memory_bytes)} for a task; {network}"
    return _text(Table(title, rows))


def _text(*tables: Table) -> str:
    return "\n\n".join(
        f"{textwrap.fill(table.title, _WIDTH)}\n{table.text}" for table in tables if table.rows
    )


def _line(name: str, value: Any) -> str:
    """Return a figure after its name; long texts take several lines, options to copy one."""
    text, indent = line(name, value), " " * (len(line("", "")))
    width = len(text) if name == "options" else _WIDTH
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
