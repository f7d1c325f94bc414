"""What a finished run says of itself: tables for the console and one page for the browser."""

from dask_nrbfn.report.console import run_table, tuning_table
from dask_nrbfn.report.page import write_report

__all__ = ["run_table", "tuning_table", "write_report"]
