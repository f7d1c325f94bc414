"""Tables of the combinations, penalties and losses that a tuning tried."""

from typing import Any

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.errors import MissingDataError, plural
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.report.formats import NO_NUMBER, TextTable, number
from dask_nrbfn.report.results import Results

# Number of the best combinations that are shown.
_MOST_TRIED = 10


def tuning_tables(results: Results) -> list[TextTable]:
    """Return tables of the combinations that were searched, the penalties and the losses."""
    run = results.finished.run
    if run.tuning is None:
        raise MissingDataError(
            f"the run {run.location} was fitted without tuning.", "Give a run that tune made."
        )
    tuned = describe_tuning(run)
    makers = {
        "tried": _combinations,
        "finals": _finals,
        "path": _penalties,
        "losses": _losses,
    }
    return [make(results, tuned[name]) for name, make in makers.items() if tuned[name]]


def _combinations(results: Results, records: list[dict[str, Any]]) -> TextTable:
    search, criterion = results.finished.stages["search"], results.criterion.name
    rounds = search["rounds"]

    def place(record: dict[str, Any]) -> tuple[Any, ...]:
        # Combinations that were tried on most rows come first, those without an error last.
        size = rounds[record["round"]]
        error = record[criterion]
        figures = error or 0.0, record.get("log_loss") or 0.0
        return -size["n_rows"], -size["n_basis"], error is None, *figures

    tried = sorted(records, key=place)
    best = f" ({_MOST_TRIED} best)" if len(tried) > _MOST_TRIED else ""
    on = f"in {len(rounds)} rounds on up to" if len(rounds) > 1 else "on"
    ended = f"; ended: {search['stopped']}" if search["stopped"] else ""
    title = (
        f"{plural(len(tried), 'combination')} tried{best} {on} "
        f"{plural(search['n_rows'], 'row')} with a basis of {search['n_basis']:,}{ended}"
    )
    return _compared(results, title, tried)


def _finals(results: Results, finals: list[dict[str, Any]]) -> TextTable:
    n_rows = results.finished.stages["search"]["n_rows"]
    title = (
        f"{plural(len(finals), 'combination')} compared on {plural(n_rows, 'row')} "
        f"with a basis of {finals[0]['n_basis']:,}"
    )
    ordered = sorted(finals, key=lambda record: record[results.criterion.name])
    return _compared(results, title, ordered)


def _compared(results: Results, title: str, records: list[dict[str, Any]]) -> TextTable:
    """Return a table of the first combinations, with the parameters that vary among all."""
    # A basis size is chosen later.
    chosen = {
        name: value
        for name, value in results.finished.stages["search"]["chosen"].items()
        if name in records[0]
    }
    varied = [name for name in chosen if len({record[name] for record in records}) > 1]
    shown = records[:_MOST_TRIED]
    marked = [all(record[name] == chosen[name] for name in chosen) for record in shown]
    rows = [
        {name.replace("_", " "): _value(record[name]) for name in [*varied, "alpha"]}
        | results.judged_cells(record)
        for record in shown
    ]
    return TextTable.of(title, rows, marked)


def _penalties(results: Results, path: list[dict[str, Any]]) -> TextTable:
    finished = results.finished
    tuning, record = finished.run.tuning, finished.stages["validation"]
    assert tuning is not None
    how = "a validation dataset" if tuning.validation else plural(tuning.folds, "fold")
    tried = {name: {getattr(Ridge.of(each), name) for each in path} for name in Ridge._fields}
    varied = [name for name, values in tried.items() if name != "alpha" and len(values) > 1]
    ridge = Ridge.in_params(finished.params)
    title = (
        f"{plural(len(tried['alpha']), 'alpha')} compared on "
        f"{plural(record['n_rows'], 'held-out row')}, {how}"
    )
    rows = [
        {name: _value(entry[name]) for name in [*varied, "alpha"]}
        | results.judged_cells(entry)
        | {"eps": number(entry["fitting_error"]), "gamma": number(entry["spectral_risk"])}
        for entry in path
    ]
    return TextTable.of(title, rows, [Ridge.of(entry) == ridge for entry in path])


def _losses(results: Results, tried: list[dict[str, Any]]) -> TextTable:
    rows = [
        {
            "loss": record["loss"],
            "passes": number(record["n_passes"]),
            "taken": number(record["taken"]),
            "stopped by": record["stopped"] or NO_NUMBER,
        }
        | results.judged_cells(record)
        for record in tried
    ]
    title = f"{plural(len(tried), 'loss')} compared on the same rows"
    chosen = results.finished.params.loss
    return TextTable.of(title, rows, [record["loss"] == chosen for record in tried])


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
