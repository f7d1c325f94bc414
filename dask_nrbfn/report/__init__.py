"""Reports of plans and finished runs: tables for the console and an HTML page."""

from typing import TYPE_CHECKING

from dask_nrbfn.lazy import lazy_names

if TYPE_CHECKING:
    from dask_nrbfn.report.console import class_tables, plan_table, run_table, tuning_table
    from dask_nrbfn.report.page import write_report
else:
    # The tables need neither matplotlib nor jinja2.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "console": ["class_tables", "plan_table", "run_table", "tuning_table"],
            "page": ["write_report"],
        },
    )

__all__ = ["class_tables", "plan_table", "run_table", "tuning_table", "write_report"]
