"""What tuning tried, as rows of text."""

from typing import Any

from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.report.formats import TextTable, count, number, plural
from dask_nrbfn.report.results import Results

# Combinations that are shown, the best first.
_MOST_TRIED = 10


def tuning_tables(results: Results) -> list[TextTable]:
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


def _combinations(results: Results) -> TextTable:
    search, criterion = results.finished.stages["search"], results.criterion.name
    rounds = search.get("rounds") or [search]

    def place(record: dict[str, Any]) -> tuple[Any, ...]:
        # Those of most rows first, and those without figures last.
        size = rounds[record.get("round", 0)]
        error = record[criterion]
        figures = error or 0.0, record.get("log_loss") or 0.0
        return -size["n_rows"], -size["n_basis"], error is None, *figures

    tried = sorted(search["tried"], key=place)
    shown, chosen = tried[:_MOST_TRIED], search["chosen"]
    # Versions before have tried fewer things.
    varied = [name for name in chosen if len({record[name] for record in tried}) > 1]
    return TextTable(
        _caption(search, n_shown=len(shown)),
        [*(name.replace("_", " ") for name in varied), "alpha", *results.judged_cells(tried[0])],
        [
            [
                *(_value(record[name]) for name in varied),
                number(record["alpha"]),
                *results.judged_cells(record).values(),
            ]
            for record in shown
        ],
        [all(record[name] == chosen[name] for name in chosen) for record in shown],
    )


def _caption(search: dict[str, Any], *, n_shown: int) -> str:
    """Return what a search tried, on how much, and why it ended."""
    n_tried, rounds = len(search["tried"]), search.get("rounds") or []
    best = f" ({n_shown} best)" if n_shown < n_tried else ""
    on = f"in {len(rounds)} rounds on up to" if len(rounds) > 1 else "on"
    ended = f"; ended by {search['stopped']}" if search.get("stopped") else ""
    return (
        f"{plural(n_tried, 'combination')} tried{best} {on} "
        f"{plural(search['n_rows'], 'row')} with a basis of {search['n_basis']:,}{ended}"
    )


def _penalties(results: Results, path: list[dict[str, Any]]) -> TextTable:
    finished = results.finished
    tuning, record = finished.tuning, finished.stages["validation"]
    assert tuning is not None
    how = "a validation dataset" if tuning.validation else plural(tuning.folds, "fold")
    tried = {name: {getattr(Ridge.of(each), name) for each in path} for name in Ridge._fields}
    varied = [name for name, values in tried.items() if name != "alpha" and len(values) > 1]
    names = [*varied, "alpha"]
    return TextTable(
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


def _losses(results: Results, tried: list[dict[str, Any]]) -> TextTable:
    return TextTable(
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
