"""What tuning tried, as rows of text."""

from dataclasses import dataclass
from typing import Any

from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import decimals, number, percent, plural
from dask_nrbfn.stages.trials import Candidate, Ridge

# Combinations that are shown, the best first.
_MOST_TRIED = 10


@dataclass(frozen=True)
class Table:
    """Cells of text under a header.

    Attributes
    ----------
    title : str
    header : list of str
    rows : list of list of str
    marked : list of bool
        Rows that stand out.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    marked: list[bool]


def tuning_tables(finished: FinishedRun) -> list[Table]:
    """Return the combinations, if more than one was tried, and the penalties.

    Raises
    ------
    MissingDataError
        If the run was fitted without tuning.
    """
    tuned = finished.tuned()
    tables = [_combinations(finished)] if tuned["tried"] else []
    return [*tables, _penalties(finished, tuned["path"])]


def by_error(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return combinations with the fewest errors first, those without figures last."""
    return sorted(
        tried, key=lambda record: (record["error_rate"] is None, record["error_rate"] or 0.0)
    )


def _combinations(finished: FinishedRun) -> Table:
    search = finished.stages["search"]
    tried = by_error(search["tried"])
    shown = tried[:_MOST_TRIED]
    names = list(Candidate.__dataclass_fields__)
    best = f" ({len(shown)} best)" if len(shown) < len(tried) else ""
    return Table(
        f"{plural(len(tried), 'combination')} tried{best} on {plural(search['n_rows'], 'row')} "
        f"with a basis of {search['n_basis']:,}",
        ["features", "kernel", "width factor", "basis rule", "alpha", "error", "log loss"],
        [
            [
                record["features"],
                record["kernel"],
                f"{record['width_factor']:g}",
                record["basis_rule"],
                number(record["alpha"]),
                percent(record["error_rate"]),
                decimals(record["log_loss"]),
            ]
            for record in shown
        ],
        [all(record[name] == search["chosen"][name] for name in names) for record in shown],
    )


def _penalties(finished: FinishedRun, path: list[dict[str, Any]]) -> Table:
    tuning, record = finished.tuning, finished.stages["validation"]
    assert tuning is not None
    how = "a validation dataset" if tuning.validation else plural(tuning.folds, "fold")
    compared = {Ridge.of(entry).penalty for entry in path}
    named = len(compared) > 1
    return Table(
        f"{plural(len(path) // len(compared), 'alpha')} compared on "
        f"{plural(record['n_rows'], 'held-out row')}, {how}",
        [*["penalty"] * named, "alpha", "error", "log loss", "temperature", "eps", "gamma"],
        [
            [
                *[entry["penalty"]] * named,
                f"{entry['alpha']:g}",
                percent(entry["error_rate"]),
                decimals(entry["log_loss"]),
                number(entry["temperature"]),
                number(entry["fitting_error"]),
                number(entry["spectral_risk"]),
            ]
            for entry in path
        ],
        [Ridge.of(entry) == finished.ridge for entry in path],
    )
