"""The figures of a finished run, one per line, and tables of the combinations that it tried."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from dask.utils import format_bytes

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import TextTable, count, decimals, number, percent, seconds
from dask_nrbfn.report.results import Fact, Results
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.bases import source_of
from dask_nrbfn.stages.refine import is_refined
from dask_nrbfn.storage.versions import n_rows_held

# Number of the slowest stages that are listed.
_SLOWEST = 3

# Number of the best combinations that are shown.
_MOST_TRIED = 10


def run_facts(results: Results) -> list[Fact]:
    """Return the facts about a run: its data, network, errors, time and memory."""
    finished = results.finished
    return [
        *_data_facts(results),
        *_neighbor_facts(finished),
        *_network_facts(results),
        *_version_facts(results),
        *_accuracy_facts(results),
        *results.evaluation_facts(),
        *_cost_facts(finished),
    ]


def _data_facts(results: Results) -> list[Fact]:
    finished, attributes = results.finished, results.finished.attributes
    return [
        Fact("run", str(finished.run.location)),
        Fact("dataset", ", ".join(member["dataset"] for member in attributes["members"])),
        Fact(
            "rows",
            f"{finished.run.n_rows:,} x {plural(attributes['n_features'], 'feature')}, "
            + results.targets()
            + _unlabelled(finished),
        ),
        *_weight_facts(finished),
        Fact("scale", finished.params.scale),
    ]


def _unlabelled(finished: FinishedRun) -> str:
    n_unlabelled = finished.run.n_rows - finished.n_labelled
    return f"; {n_unlabelled:,} without a label" if n_unlabelled else ""


def _weight_facts(finished: FinishedRun) -> list[Fact]:
    """Return the kind of the row weights.

    Without the dataset, sample weights are recognized by their sum.
    """
    if "moments" not in finished.stages:
        return []
    dataset, weight = finished.dataset(), finished.stages["moments"]["weight"]
    if dataset is None:
        own = not math.isclose(weight, finished.n_labelled, rel_tol=1e-9)
    else:
        own = dataset.has_weights
    kinds = ["their own"] * own + ["balanced classes"] * (finished.params.class_weight is not None)
    weights = f"{' x '.join(kinds)}, {count(weight)} in all" if kinds else "none"
    return [Fact("row weights", weights)]


def _neighbor_facts(finished: FinishedRun) -> list[Fact]:
    if "neighbors" not in finished.stages:
        return []
    search, below = finished.stages["neighbors"], finished.stages["confidence"]["n_below_threshold"]
    of_candidates = ""
    if finished.searched == "candidate":
        of_candidates = f" of {plural(finished.n_searched, 'candidate')}"
    return [
        Fact(
            "neighbours",
            f"{finished.params.n_neighbors}{of_candidates}, {search['method']} search in "
            f"{plural(search['n_partitions'], 'partition')}",
        ),
        Fact("recall", recall_text(finished)),
        Fact(
            "low confidence",
            f"{plural(below, finished.searched)} ({percent(below / finished.n_searched, 1)}) below "
            f"{finished.params.confidence_threshold:g}",
        ),
    ]


def recall_text(finished: FinishedRun) -> str:
    """Return the recall of the neighbour search, and the number of rows it was measured on."""
    audit = finished.stages["recall"]
    if not audit["n_audited"]:
        return "1, by an exact search over all rows"
    return (
        f"{decimals(audit['recall'])} +- {decimals(audit['recall_standard_error'])}, "
        f"{plural(audit['n_audited'], 'row')} audited"
    )


def _network_facts(results: Results) -> list[Fact]:
    finished = results.finished
    if finished.is_of_cells:
        return _cells_facts(results)
    params, width = finished.params, finished.stages["width"]
    return [
        *_compared_facts(results),
        Fact("basis", basis_text(finished)),
        *_pruning_facts(finished),
        Fact("features", f"{params.features}, {params.kernel} kernel"),
        Fact(
            "width",
            f"{number(width['width'])}, {params.width_factor:g} x mean distance "
            f"{number(width['mean_distance'])}",
        ),
        *_component_facts(finished),
        *_weights_facts(results),
    ]


def _cells_facts(results: Results) -> list[Fact]:
    """Return the facts about the cells and their networks."""
    finished = results.finished
    params, record = finished.params, finished.stages["cells"]
    constant = record["n_constant"]
    cells = f"{record['n_cells']:,} of {_range(record['row_range'], count)} rows"
    cells += f", {record['n_learned']:,} with column weights of their own"
    cells += f", {constant:,} with constant scores" if constant else ""
    facts = [
        Fact("cells", cells),
        *_compared_facts(results),
        Fact("basis", f"{record['n_basis']:,} in all, at most {record['largest']:,} in a cell"),
        Fact("features", f"{params.features}, {params.kernel} kernel"),
        Fact("penalty", params.penalty),
    ]
    facts += [
        Fact(name, f"{_range(limits, number)} by cell")
        for name in ("width", "alpha")
        if (limits := record.get(f"{name}_range")) is not None
    ]
    return [
        *facts,
        Fact("fitting error", f"eps {number(record['fitting_error'])}"),
        *results.training_facts(record),
        Fact("spectral risk", f"gamma of at most {number(record['spectral_risk'])} in a cell"),
    ]


def _range(limits: Sequence[float], show: Callable[[float], str]) -> str:
    least, most = limits
    return show(least) if least == most else f"{show(least)} to {show(most)}"


def _compared_facts(results: Results) -> list[Fact]:
    """Return the errors of one network and of drawn cells, if a tuning compared both."""
    compared = results.finished.stages.get("cells", {}).get("compared")
    if compared is None:
        return []
    name = results.criterion.name
    show = percent if name == "error_rate" else number
    one, many = (show(compared[which][name]) for which in ("one", "cells"))
    drawn, judged = (
        plural(compared[each], what)
        for each, what in (("n_cells", "drawn cell"), ("n_rows", "held-out row"))
    )
    figure = name.replace("_", " ")
    return [Fact("compared", f"{figure} {one} of one network, {many} of {drawn}, on {judged}")]


def _component_facts(finished: FinishedRun) -> list[Fact]:
    record, asked = finished.stages.get("components"), finished.params.components
    if record is None:
        return []
    least, n_tried = number(record["least_eigenvalue"]), 0
    if finished.tuning is not None and finished.tuning.components is not None:
        n_tried = len(finished.tuning.components)
    tried = f", of {n_tried} tried" if n_tried else ""
    return [Fact("components", f"{asked}{tried}, eigenvalues down to {least}")]


def _weights_facts(results: Results) -> list[Fact]:
    """Return the penalty and the fitting errors; nothing for an embedding."""
    finished = results.finished
    weights, params = finished.stages.get("weights"), finished.params
    if weights is None:
        return []
    tried = "" if finished.tuning is None else f", of {len(finished.tuning.alphas)} tried"
    beginning = ", of the squared loss at first" if is_refined(params) else ""
    return [
        Fact("penalty", params.penalty),
        Fact("alpha", f"{params.alpha:g}{tried}"),
        *_locality_facts(finished),
        *_loss_facts(finished),
        Fact("fitting error", f"eps {number(weights['fitting_error'])}{beginning}"),
        *results.training_facts(weights),
        Fact("spectral risk", f"gamma {number(weights['spectral_risk'])}{beginning}"),
        *_spectrum_facts(finished),
    ]


def _pruning_facts(finished: FinishedRun) -> list[Fact]:
    record = finished.stages.get("prune")
    if record is None:
        return []
    left = percent(record["unexplained"], 2)
    kept = f"{record['n_kept']:,}, which leave {left} of the targets' squares unexplained"
    return [Fact("pruned to", kept)]


def _locality_facts(finished: FinishedRun) -> list[Fact]:
    record = finished.stages.get("locality")
    if record is None:
        return []
    drawn = f"{record['n_bound']:,} of {plural(record['n_drawn'], 'drawn row')}"
    later = ", all of them of the fit" if finished.versions else ""
    neighbors = f"{plural(record['n_pairs'], 'neighbour')} of {drawn}{later}"
    return [Fact("locality", f"{finished.params.locality:g}, by {neighbors}")]


def _loss_facts(finished: FinishedRun) -> list[Fact]:
    record = finished.stages.get("refine")
    if record is None or not record["path"]:
        return []
    first, least = record["path"][0]["objective"], record["objective"]
    fell = f"objective from {number(first)} to {number(least)}"
    passes = plural(record["n_passes"], "pass")
    taken = f", weights of pass {record['taken']}" if "taken" in record else ""
    stopped = f"stopped by the {record['stopped']}{taken}"
    return [Fact("loss", f"{record['loss']}, {passes}, {fell}, {stopped}")]


def _version_facts(results: Results) -> list[Fact]:
    """Return the figures of the latest version; all other figures describe the fit."""
    finished = results.finished
    if not finished.versions:
        return []
    latest = finished.versions[-1]
    further = "".join(f", {name} {value}" for name, value in results.training_facts(latest))
    return [
        Fact(
            "latest version",
            f"{latest['version']}, {plural(n_rows_held(finished.attributes), 'row')}: "
            f"eps {number(latest['fitting_error'])}, gamma {number(latest['spectral_risk'])}"
            f"{further}",
        )
    ]


def _spectrum_facts(finished: FinishedRun) -> list[Fact]:
    """Return the rank and the attainable risk, if the eigenvalues of the gram matrix are known."""
    path = finished.stages.get("path", {"path": []})["path"]
    chosen = [entry for entry in path if Ridge.of(entry) == finished.ridge]
    if not chosen or chosen[0].get("rank") is None:
        return []
    rank, attainable = chosen[0]["rank"], chosen[0]["attainable"]
    most = "no bound" if attainable["most"] is None else number(attainable["most"])
    return [
        Fact("rank", f"{rank:,} of {finished.stages['basis']['n_basis']:,} in float64"),
        Fact("attainable risk", f"gamma from {number(attainable['least'])} to {most}"),
    ]


def basis_text(finished: FinishedRun) -> str:
    """Return the number of basis rows and the rule that chose them."""
    params, record = finished.params, finished.stages["basis"]
    size, capped = record["n_basis"], record.get("cap") is not None
    share = percent(size / finished.run.n_rows, 1)
    n_below = record.get("n_below_threshold")
    filled = n_below is not None and size > n_below
    rule = source_of(params).described(params, capped, filled)
    return f"{size:,} ({share} of the rows), {rule}"


def _accuracy_facts(results: Results) -> list[Fact]:
    tuning, record = results.finished.tuning, judged_record(results.finished.stages)
    if tuning is None:
        return []
    how = "a validation dataset" if tuning.validation else plural(tuning.folds, "fold")
    if (deviation := record.get("fold_deviation")) is not None:
        shown = decimals(deviation) if results.finished.run.of_numbers else percent(deviation)
        how += f", standard deviation {shown}"
    return results.held_out_facts(record, f"{plural(record['n_rows'], 'row')}, {how}")


def _cost_facts(finished: FinishedRun) -> list[Fact]:
    stages, environment = finished.stages, finished.attributes["environment"]
    slowest = sorted(stages, key=lambda name: -stages[name]["seconds"])[:_SLOWEST]
    peak, predicted = (
        max(stages, key=lambda name: stages[name][key]) for key in ("peak_bytes", "predicted_bytes")
    )
    parts = ", ".join(
        f"{name} {seconds(stages[name]['seconds'])} ({format_bytes(stages[name]['peak_bytes'])})"
        for name in slowest
    )
    return [
        Fact("time", seconds(sum(record["seconds"] for record in stages.values()))),
        Fact("slowest", parts),
        Fact("peak memory", f"{format_bytes(stages[peak]['peak_bytes'])} of a worker, in {peak}"),
        Fact("predicted", f"{format_bytes(stages[predicted]['predicted_bytes'])}, in {predicted}"),
        Fact(
            "workers",
            f"{environment['n_workers']} x {plural(environment['threads'], 'thread')}, "
            f"{format_bytes(environment['memory_bytes'])} for a task",
        ),
    ]


def tuning_tables(results: Results) -> list[TextTable]:
    """Return tables of the combinations that were searched, the penalties and the losses."""
    tuned = results.finished.tuned()
    tables = [_combinations(results)] if tuned["tried"] else []
    if tuned["finals"]:
        tables.append(_finals(results, tuned["finals"]))
    if tuned["path"]:
        tables.append(_penalties(results, tuned["path"]))
    return [*tables, _losses(results, tuned["losses"])] if tuned["losses"] else tables


def _combinations(results: Results) -> TextTable:
    search, criterion = results.finished.stages["search"], results.criterion.name
    rounds = search["rounds"]

    def place(record: dict[str, Any]) -> tuple[Any, ...]:
        # Combinations that were tried on most rows come first, those without an error last.
        size = rounds[record["round"]]
        error = record[criterion]
        figures = error or 0.0, record.get("log_loss") or 0.0
        return -size["n_rows"], -size["n_basis"], error is None, *figures

    tried = sorted(search["tried"], key=place)
    caption = _caption(search, n_shown=min(len(tried), _MOST_TRIED))
    return _compared(results, caption, tried[:_MOST_TRIED], among=tried)


def _finals(results: Results, finals: list[dict[str, Any]]) -> TextTable:
    search, criterion = results.finished.stages["search"], results.criterion.name
    caption = (
        f"{plural(len(finals), 'combination')} compared on {plural(search['n_rows'], 'row')} "
        f"with a basis of {finals[0]['n_basis']:,}"
    )
    ordered = sorted(finals, key=lambda record: record[criterion])
    return _compared(results, caption, ordered, among=ordered)


def _compared(
    results: Results, caption: str, shown: list[dict[str, Any]], *, among: list[dict[str, Any]]
) -> TextTable:
    """Return a table of combinations with the parameters that vary among some."""
    chosen = results.finished.stages["search"]["chosen"]
    # A basis size is chosen later.
    chosen = {name: value for name, value in chosen.items() if name in among[0]}
    varied = [name for name in chosen if len({record[name] for record in among}) > 1]
    return TextTable(
        caption,
        [*(name.replace("_", " ") for name in varied), "alpha", *results.judged_cells(among[0])],
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
    """Return the number of combinations, the rows and basis of the search, and why it ended."""
    n_tried, rounds = len(search["tried"]), search["rounds"]
    best = f" ({n_shown} best)" if n_shown < n_tried else ""
    on = f"in {len(rounds)} rounds on up to" if len(rounds) > 1 else "on"
    ended = f"; ended: {search['stopped']}" if search["stopped"] else ""
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
