import re

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, fit_dataset
from dask_nrbfn.commands.describe import describe_run
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.report.console import run_table, tuning_table
from dask_nrbfn.stages.refine import read_held_out_confusion
from tests.tables import spirals, write_table

SMALL = {"n_neighbors": 8, "alpha": 1e-6}


def figures(text):
    """Return the first word of each line with what follows it."""
    lines = [line for line in text.splitlines() if line[:1].strip()]
    return dict(line.split(maxsplit=1) for line in lines)


def fit(**options):
    dataset = write_table(MemoryStore(), *spirals(200))
    return fit_dataset(dataset, MemoryStore(), FitParams(**SMALL | options), InlineEngine())


def test_run_table__has_the_error_first_and_the_figures_of_json(tuned):
    known, found = describe_run(tuned), figures(run_table(tuned))
    assert next(iter(found.items())) == ("error_rate", f"{100 * known['error_rate']:.2f} %")
    for name in ("fitting_error", "spectral_risk", "width", "alpha", "log_loss", "temperature"):
        assert found[name] == f"{known[name]:.6g}"
    for name in ("n_rows", "n_features", "n_classes", "n_basis", "n_partitions"):
        assert found[name] == str(known[name])
    assert found["seconds"] == f"{sum(each['seconds'] for each in tuned.stages.values()):.1f} s"


def test_run_table__is_short_and_100_columns_wide(tuned):
    for text in (run_table(tuned), tuning_table(tuned)):
        own = [line for line in text.splitlines() if not line.startswith("options ")]
        assert max(map(len, own)) <= 100
        assert len(text.splitlines()) <= 50


@pytest.mark.parametrize(
    "given",
    [
        {"basis_size": 5, "basis_rule": "uniform", "confidence_threshold": 1.0},
        {"basis_size": 30, "prune": 12, "alpha": 1e-3, "features": "plain"},
        {"basis": "kmeans", "basis_size": 9, "alpha": "auto"},
        {"kernel": "gaussian"},
        {"scale": "none", "components": 6},
    ],
)
def test_run_table__names_the_options_of_the_same_fit(given):
    run, names = fit(**given), FitParams.options()
    options = figures(run_table(run))["options"]
    found = {name.replace("-", "_"): text for name, text in re.findall(r"--(\S+) (\S+)", options)}
    again = {name: names[name].parse(text) for name, text in found.items()}
    assert fit(**SMALL | {"alpha": "auto"} | again).chosen_params == run.chosen_params


def test_tuning_table__marks_what_was_chosen(tuned):
    _, finals, penalties, *_ = tuning_table(tuned).split("\n\n")
    params, validation = tuned.chosen_params, tuned.stages["validation"]
    (marked,) = [line.split() for line in finals.splitlines() if line.startswith("*")]
    last = tuned.stages["search"]["finals"][-1]
    # The source of the basis is compared with drawn rows, with fewer rows below the threshold.
    assert marked[1:4] == ["sknn", f"{last['n_basis']}", f"{last['alpha']:g}"]
    (marked,) = [line.split() for line in penalties.splitlines() if line.startswith("*")]
    assert marked[1:3] == [f"{params.alpha:g}", f"{100 * validation['error_rate']:.2f}"]


def test_tuning_table__compares_with_the_best_of_the_same_round(altered, tuned):
    tried, sizes = [], [{"n_rows": 9, "n_basis": 3}, {"n_rows": 99, "n_basis": 9}]
    for place, each in enumerate(tuned.stages["search"]["tried"]):
        new = {"round": int(each["kernel"] == "gaussian"), "brier_score": place / 100}
        tried.append(each | new | {"n_basis": sizes[new["round"]]["n_basis"]})
    run = altered(tuned, search={"tried": tried, "rounds": sizes})
    lines = [line.strip("* ").split() for line in tuning_table(run).splitlines()[2:6]]
    assert [line[2:4] for line in lines] == [["99", "9"]] * 2 + [["9", "3"]] * 2
    losses = [float(line[4]) for line in lines]
    assert [line[-1] for line in lines] == ["0", f"{losses[1] - losses[0]:g}", "-", "-"]


def test_tuning_table__singular_alphas_have_no_figures(altered, tuned):
    path = tuned.stages["path"]["path"]
    # The smallest alpha is not chosen: its figures go.
    gone = path[-1] | {"fitting_error": None, "spectral_risk": None}
    judged = tuned.stages["validation"]["path"]
    lost = judged[-1] | dict.fromkeys(judged[-1].keys() - {*Ridge._fields})
    run = altered(
        tuned, path={"path": [*path[:-1], gone]}, validation={"path": [*judged[:-1], lost]}
    )
    line = tuning_table(run).split("\n\n")[2].splitlines()[-1]
    assert line.split() == ["1e-06", "-", "-"]


def test_tuning_table__of_the_held_out_rows_of_each_class(tuned):
    *_, confused, of_classes = tuning_table(tuned).split("\n\n")
    best = read_held_out_confusion(tuned)
    supports = [float(line.split()[-1]) for line in of_classes.splitlines()[2:]]
    assert supports == best.sum(axis=1).tolist()
    wrong = np.sort((best * (1 - np.eye(3))).ravel())[::-1]
    counts = [float(line.split()[-3]) for line in confused.splitlines()[2:]]
    assert counts == wrong[wrong > 0].tolist()
