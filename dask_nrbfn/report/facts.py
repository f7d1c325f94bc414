"""The figures of a finished run, one per line."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dask.utils import format_bytes

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.report.formats import Fact, count, decimals, number, percent, seconds
from dask_nrbfn.report.results import Results
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.bases import source_of
from dask_nrbfn.stages.refine import is_refined
from dask_nrbfn.storage.versions import n_rows_held

# Number of the slowest stages that are listed.
_SLOWEST = 3


def run_facts(results: Results) -> list[Fact]:
    """Return the facts about a run: its data, network, errors, time and memory."""
    return [
        *_data_facts(results),
        *_neighbor_facts(results.finished),
        *_basis_facts(results),
        *_weights_facts(results),
        *_version_facts(results),
        *_held_out_facts(results),
        *results.evaluation_facts(),
        *_cost_facts(results.finished),
    ]


def _data_facts(results: Results) -> Iterator[Fact]:
    finished, attributes = results.finished, results.finished.attributes
    n_unlabelled = finished.run.n_rows - finished.n_labelled
    unlabelled = f"; {n_unlabelled:,} without a label" if n_unlabelled else ""
    shape = f"{finished.run.n_rows:,} x {plural(attributes['n_features'], 'feature')}"
    yield Fact("run", str(finished.run.location))
    yield Fact("dataset", ", ".join(member["dataset"] for member in attributes["members"]))
    yield Fact("rows", f"{shape}, {results.targets()}{unlabelled}")
    if "moments" in finished.stages:
        yield Fact("row weights", _row_weights(finished))
    yield Fact("scale", finished.params.scale)


def _row_weights(finished: FinishedRun) -> str:
    """Return the kind of the row weights; without the dataset, they are recognized by their sum."""
    dataset, weight = finished.dataset(), finished.stages["moments"]["weight"]
    if dataset is None:
        own = not math.isclose(weight, finished.n_labelled, rel_tol=1e-9)
    else:
        own = dataset.has_weights
    kinds = ["their own"] * own + ["balanced classes"] * (finished.params.class_weight is not None)
    return f"{' x '.join(kinds)}, {count(weight)} in all" if kinds else "none"


def _neighbor_facts(finished: FinishedRun) -> Iterator[Fact]:
    if "neighbors" not in finished.stages:
        return
    search, audit = finished.stages["neighbors"], finished.stages["recall"]
    n_searched, searched, params = finished.n_searched, finished.searched, finished.params
    n_below = finished.stages["confidence"]["n_below_threshold"]
    drawn = f" of {plural(n_searched, 'candidate')}" if searched == "candidate" else ""
    where = f"{search['method']} search in {plural(search['n_partitions'], 'partition')}"
    recall = "1, by an exact search over all rows"
    if audit["n_audited"]:
        recall = (
            f"{decimals(audit['recall'])} +- {decimals(audit['recall_standard_error'])}, "
            f"{plural(audit['n_audited'], 'row')} audited"
        )
    low = f"{plural(n_below, searched)} ({percent(n_below / n_searched, 1)})"
    yield Fact("neighbours", f"{params.n_neighbors}{drawn}, {where}")
    yield Fact("recall", recall)
    yield Fact("low confidence", f"{low} below {params.confidence_threshold:g}")


def _basis_facts(results: Results) -> Iterator[Fact]:
    finished = results.finished
    stages, params, cells = finished.stages, finished.params, finished.cells
    if cells:
        n_constant = cells["n_constant"]
        yield Fact(
            "cells",
            f"{cells['n_cells']:,} of {_range(cells['row_range'], count)} rows, "
            f"{cells['n_learned']:,} with column weights of their own"
            + (f", {n_constant:,} with constant scores" if n_constant else ""),
        )
    if (compared := stages.get("cells", {}).get("compared")) is not None:
        yield Fact("compared", _compared(results, compared))
    yield Fact("basis", basis_text(finished))
    if pruned := stages.get("prune"):
        left = percent(pruned["unexplained"])
        kept = f"{pruned['n_kept']:,}, which leave {left} of the targets' squares unexplained"
        yield Fact("pruned to", kept)
    yield Fact("features", f"{params.features}, {params.kernel} kernel")
    if not cells:
        width, mean = number(stages["width"]["width"]), number(stages["width"]["mean_distance"])
        yield Fact("width", f"{width}, {params.width_factor:g} x mean distance {mean}")
    elif (limits := cells.get("width_range")) is not None:
        yield Fact("width", f"{_range(limits, number)} by cell")
    if components := stages.get("components"):
        tried = (
            f", of {len(finished.run.tuning.components or ())} tried" if finished.run.tuning else ""
        )
        least = number(components["least_eigenvalue"])
        yield Fact("components", f"{params.components}{tried}, eigenvalues down to {least}")


def _compared(results: Results, compared: dict[str, Any]) -> str:
    """Return the errors of one network and of drawn cells, which a tuning compared."""
    name = results.criterion.name
    show = percent if name == "error_rate" else number
    one, many = (show(compared[which][name]) for which in ("one", "cells"))
    drawn, judged = plural(compared["n_cells"], "drawn cell"), compared["n_rows"]
    figure = f"{name.replace('_', ' ')} {one} of one network, {many} of {drawn}"
    return f"{figure}, on {plural(judged, 'held-out row')}"


def basis_text(finished: FinishedRun) -> str:
    """Return the number of basis rows and the rule that chose them."""
    if cells := finished.cells:
        return f"{cells['n_basis']:,} in all, at most {cells['largest']:,} in a cell"
    params, record = finished.params, finished.stages["basis"]
    size, n_below = record["n_basis"], record.get("n_below_threshold")
    share = percent(size / finished.run.n_rows, 1)
    filled = n_below is not None and size > n_below
    rule = source_of(params).described(params, record.get("cap") is not None, filled)
    return f"{size:,} ({share} of the rows), {rule}"


def _weights_facts(results: Results) -> Iterator[Fact]:
    """Yield the penalty and the fitting errors; nothing for an embedding."""
    finished, params = results.finished, results.finished.params
    record, cells = finished.fitted, finished.cells
    if not record:
        return
    yield Fact("penalty", params.penalty)
    if not cells:
        tried = f", of {len(finished.run.tuning.alphas)} tried" if finished.run.tuning else ""
        yield Fact("alpha", f"{params.alpha:g}{tried}")
    elif (limits := cells.get("alpha_range")) is not None:
        yield Fact("alpha", f"{_range(limits, number)} by cell")
    if locality := finished.stages.get("locality"):
        later = ", all of them of the fit" if finished.versions else ""
        drawn = f"{locality['n_bound']:,} of {plural(locality['n_drawn'], 'drawn row')}{later}"
        neighbors = f"{plural(locality['n_pairs'], 'neighbour')} of {drawn}"
        yield Fact("locality", f"{params.locality:g}, by {neighbors}")
    loss = finished.stages.get("refine", {})
    if loss.get("path"):
        first, least = number(loss["path"][0]["objective"]), number(loss["objective"])
        taken = f", weights of pass {loss['taken']}" if "taken" in loss else ""
        passes = f"{plural(loss['n_passes'], 'pass')}, objective from {first} to {least}"
        yield Fact("loss", f"{loss['loss']}, {passes}, stopped by the {loss['stopped']}{taken}")
    note = ", of the squared loss at first" if not cells and is_refined(params) else ""
    yield Fact("fitting error", f"eps {number(record['fitting_error'])}{note}")
    yield from results.training_facts(record)
    risk = number(record["spectral_risk"])
    yield Fact(
        "spectral risk", f"gamma of at most {risk} in a cell" if cells else f"gamma {risk}{note}"
    )
    yield from _spectrum_facts(finished)


def _range(limits: Sequence[float], show: Callable[[float], str]) -> str:
    least, most = limits
    return show(least) if least == most else f"{show(least)} to {show(most)}"


def _spectrum_facts(finished: FinishedRun) -> Iterator[Fact]:
    """Yield the rank and the attainable risk, if the eigenvalues of the gram matrix are known."""
    path = finished.stages.get("path", {"path": []})["path"]
    ridge = Ridge.in_params(finished.params)
    chosen: dict[str, Any] = next((entry for entry in path if Ridge.of(entry) == ridge), {})
    if chosen.get("rank") is not None:
        attainable, n_basis = chosen["attainable"], finished.stages["basis"]["n_basis"]
        most = "no bound" if attainable["most"] is None else number(attainable["most"])
        yield Fact("rank", f"{chosen['rank']:,} of {n_basis:,} in float64")
        yield Fact("attainable risk", f"gamma from {number(attainable['least'])} to {most}")


def _version_facts(results: Results) -> Iterator[Fact]:
    """Yield the figures of the latest version; all other figures describe the fit."""
    finished = results.finished
    if finished.versions:
        latest = finished.versions[-1]
        further = "".join(f", {name} {value}" for name, value in results.training_facts(latest))
        yield Fact(
            "latest version",
            f"{latest['version']}, {plural(n_rows_held(finished.attributes), 'row')}: "
            f"eps {number(latest['fitting_error'])}, gamma {number(latest['spectral_risk'])}"
            f"{further}",
        )


def _held_out_facts(results: Results) -> list[Fact]:
    tuning, record = results.finished.run.tuning, judged_record(results.finished.stages)
    if tuning is None:
        return []
    how = "a validation dataset" if tuning.validation else plural(tuning.folds, "fold")
    if (deviation := record.get("fold_deviation")) is not None:
        shown = decimals(deviation) if results.finished.run.of_numbers else percent(deviation)
        how += f", standard deviation {shown}"
    return results.judged_facts("held-out", record, f"{plural(record['n_rows'], 'row')}, {how}")


def _cost_facts(finished: FinishedRun) -> Iterator[Fact]:
    stages, environment = finished.stages, finished.attributes["environment"]
    slowest = sorted(stages, key=lambda name: -stages[name]["seconds"])[:_SLOWEST]
    parts = [
        f"{name} {seconds(stages[name]['seconds'])} ({format_bytes(stages[name]['peak_bytes'])})"
        for name in slowest
    ]
    yield Fact("time", seconds(sum(record["seconds"] for record in stages.values())))
    yield Fact("slowest", ", ".join(parts))
    for title, key, of in (
        ("peak memory", "peak_bytes", " of a worker"),
        ("predicted", "predicted_bytes", ""),
    ):
        most = max(stages, key=lambda name: stages[name][key])
        yield Fact(title, f"{format_bytes(stages[most][key])}{of}, in {most}")
    workers = f"{environment['n_workers']} x {plural(environment['threads'], 'thread')}"
    yield Fact("workers", f"{workers}, {format_bytes(environment['memory_bytes'])} for a task")
