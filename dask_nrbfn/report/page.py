"""One self-contained HTML page of a finished run."""

import os
from importlib.resources import files

import jinja2

from dask_nrbfn.commands.evaluate import Evaluation, NumberEvaluation
from dask_nrbfn.outputs import new_file
from dask_nrbfn.report.charts import Charts
from dask_nrbfn.report.facts import details, summary
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import shown
from dask_nrbfn.storage.run import Run


def write_report(
    run: Run,
    path: str | os.PathLike[str],
    *,
    evaluation: Evaluation | NumberEvaluation | None = None,
    overwrite: bool = False,
) -> None:
    """Write a page without scripts or other files; the same run gives the same text."""
    finished = FinishedRun.of(run, evaluation)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["shown"] = lambda value, name: shown(name, value)
    template = files(__package__).joinpath("page.html.jinja").read_text("utf-8")
    page = environment.from_string(template).render(
        name=str(run.location).rstrip("/").rpartition("/")[2],
        started=finished.stages["columns"]["started"],
        sections=[*summary(finished), *details(finished)],
        charts=Charts(finished).by_section,
        params=finished.params.to_dict(),
        environment=finished.run.attributes["environment"],
    )
    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
