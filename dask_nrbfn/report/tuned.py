"""What tuning tried, as rows of text."""

from typing import Any

from dask_nrbfn.report.formats import Table, count, number, plural
from dask_nrbfn.report.results import Results
from dask_nrbfn.stages.trials import Candidate, Ridge

# Combinations that are shown, the best first.
_MOST_TRIED = 10


def tuning_tables(results: Results) -> list[Table]:
    """Return the combinations, if more than one was tried, the penalties, and so the losses.

    Raises
    ------
    MissingDataError
        If the run was fitted without tuning.
    """
    tuned = results.finished.tuned()
    tables = [_combinations(results)] if tuned["tried"] else []
    tables.append(_penalties(results, tuned["path"]))
    return [*tables, _losses(results, tuned["losses"])] if tuned["losses"] else tables


def _combinations(results: Results) -> Table:
    search, criterion = results.finished.stages["search"], results.criterion.name
    # Those without figures last.
    tried = sorted(
        search["tried"], key=lambda record: (record[criterion] is None, record[criterion] or 0.0)
    )
    shown = tried[:_MOST_TRIED]
    names = list(Candidate.__dataclass_fields__)
    best = f" ({len(shown)} best)" if len(shown) < len(tried) else ""
    return Table(
        f"{plural(len(tried), 'combination')} tried{best} on {plural(search['n_rows'], 'row')} "
        f"with a basis of {search['n_basis']:,}",
        [
            *("features", "kernel", "width factor", "basis rule", "alpha"),
            *results.judged_cells(tried[0]),
        ],
        [
            [
                record["features"],
                record["kernel"],
                f"{record['width_factor']:g}",
                record["basis_rule"],
                number(record["alpha"]),
                *results.judged_cells(record).values(),
            ]
            for record in shown
        ],
        [all(record[name] == search["chosen"][name] for name in names) for record in shown],
    )


def _penalties(results: Results, path: list[dict[str, Any]]) -> Table:
    finished = results.finished
    tuning, record = finished.tuning, finished.stages["validation"]
    assert tuning is not None
    how = "a validation dataset" if tuning.validation else plural(tuning.folds, "fold")
    tried = {name: {getattr(Ridge.of(each), name) for each in path} for name in Ridge._fields}
    varied = [name for name, values in tried.items() if name != "alpha" and len(values) > 1]
    names = [*varied, "alpha"]
    return Table(
        f"{plural(len(tried['alpha']), 'alpha')} compared on "
        f"{plural(record['n_rows'], 'held-out row')}, {how}",
        [*names, *results.judged_cells(path[0]), "eps", "gamma"],
        [
            [
                *(_value(entry[name]) for name in names),
                *results.judged_cells(entry).values(),
                number(entry["fitting_error"]),
                number(entry["spectral_risk"]),
            ]
            for entry in path
        ],
        [Ridge.of(entry) == finished.ridge for entry in path],
    )


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _losses(results: Results, tried: list[dict[str, Any]]) -> Table:
    return Table(
        f"{plural(len(tried), 'loss')} compared on the same rows",
        ["loss", "passes", "taken", "stopped by", *results.judged_cells(tried[0])],
        [
            [
                record["loss"],
                count(record["n_passes"]),
                count(record["taken"]),
                record["stopped"] or "-",
                *results.judged_cells(record).values(),
            ]
            for record in tried
        ],
        [record["loss"] == results.finished.params.loss for record in tried],
    )
