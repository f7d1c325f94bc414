"""Tables for the console."""

import textwrap
from dataclasses import replace

from dask.utils import format_bytes

from dask_nrbfn.commands.evaluate import Evaluation
from dask_nrbfn.commands.plan import Plan
from dask_nrbfn.errors import plural
from dask_nrbfn.report.classes import ConfusionTables, confusion_tables, reliability_table
from dask_nrbfn.report.concerns import find_concerns
from dask_nrbfn.report.facts import run_facts
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import Fact, TextTable, label_texts
from dask_nrbfn.report.results import results_of
from dask_nrbfn.report.tuning import tuning_tables
from dask_nrbfn.storage.run import Run

_WIDTH = 100
_NAME_WIDTH = 16

# Wider columns do not fit side by side.
_HEADING_LETTERS = 10


def run_table(run: Run) -> str:
    """Return the results and the costs of a finished run, some twenty lines of text."""
    results = results_of(FinishedRun.of(run))
    facts = run_facts(results)
    facts += [Fact("warning", str(concern)) for concern in find_concerns(results)]
    return "\n".join(map(_line, facts))


def tuning_table(run: Run) -> str:
    """Return tables of the tried values, with stars at the chosen ones, and of held-out classes."""
    results = results_of(FinishedRun.of(run))
    of_classes = [table for each in results.confusions() for table in _fitting(each)]
    return _text(*tuning_tables(results), *of_classes)


def class_tables(evaluation: Evaluation) -> str:
    """Return tables of the reliability, of the figures of each class and of the confusion."""
    labels = label_texts(evaluation.classes)
    reliability = reliability_table("Evaluated rows", labels, evaluation.reliability)
    tables = confusion_tables("Evaluated rows", labels, evaluation.confusion)
    return _text(reliability, *_fitting(tables))


def _fitting(tables: ConfusionTables) -> list[TextTable]:
    """Return the figures of each class, and the confusion in a form that fits the console."""
    if tables.matrix is None:
        return [tables.classes, tables.pairs]
    headings = [
        label if len(label) <= _HEADING_LETTERS else f"{label[: _HEADING_LETTERS - 2]}.."
        for label in tables.matrix.header
    ]
    matrix = replace(tables.matrix, header=headings)
    fits = max(map(len, matrix.text.splitlines())) <= _WIDTH
    return [tables.classes, matrix if fits else tables.pairs]


def _text(*tables: TextTable) -> str:
    return "\n\n".join(f"{textwrap.fill(table.title, _WIDTH)}\n{table.text}" for table in tables)


def _line(fact: Fact) -> str:
    return textwrap.fill(
        fact.value,
        width=_WIDTH,
        initial_indent=fact.name.ljust(_NAME_WIDTH),
        subsequent_indent=" " * _NAME_WIDTH,
        break_on_hyphens=False,
    )


def plan_table(plan: Plan) -> str:
    """Return a plan as text, a line for each stage."""
    searched = "" if plan.n_candidates is None else f" of {plan.n_candidates} candidates"
    network = (
        f"{plan.n_basis} basis rows; {plan.method} neighbours{searched} in "
        f"{plural(plan.n_partitions, 'partition')}"
    )
    if plan.n_cells > 1:
        network = f"{plan.n_basis:,} basis rows in {plural(plan.n_cells, 'cell')}"
    lines = [
        f"{plural(plan.n_workers, 'worker')} x {plural(plan.threads, 'thread')}, "
        f"{format_bytes(plan.memory_bytes)} for a task; {network}",
        f"{'stage':<12}{'GFLOP':>12}{'read':>12}{'written':>12}{'held':>12}{'seconds':>10}",
    ]
    for planned in plan.stages:
        cost = planned.cost
        sizes = (cost.read_bytes, cost.written_bytes, cost.held_bytes)
        shown = "".join(f"{format_bytes(size):>12}" for size in sizes)
        over = "  more than a worker has" if cost.held_bytes > plan.memory_bytes else ""
        lines.append(
            f"{planned.name:<12}{cost.flops / 1e9:>12,.1f}{shown}{planned.seconds:>10.1f}{over}"
        )
    lines.append(f"{'all':<60}{sum(stage.seconds for stage in plan.stages):>10.1f}")
    return "\n".join(lines)
