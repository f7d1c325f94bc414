import re

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset, tune_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import MissingDataError
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.report import run_table, tuning_table
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.stages.refine import read_held_out_confusion
from tests.tables import spirals, write_table

SMALL = {"n_neighbors": 8, "alpha": 1e-6}


def figures(text):
    """Return the first words of each line with what stands beside them."""
    return {line[:16].strip(): line[16:] for line in text.splitlines() if line[:16].strip()}


def fit(**options):
    X, y = spirals(200)
    weights = options.pop("weights", None)
    dataset = write_table(MemoryStore(), X, y, weights=weights)
    return fit_dataset(dataset, MemoryStore(), FitParams(**SMALL | options), InlineEngine())


def test_run_table__of_a_tuned_run(tuned):
    found, stages = figures(run_table(tuned)), tuned.stages
    assert found["run"] == str(tuned.location)
    assert found["rows"] == "300 x 4 features, 3 classes"
    assert found["row weights"] == "none"
    assert found["neighbours"] == "8, exact search in 1 partition"
    assert found["recall"].startswith("1, by an exact search")
    n_basis = stages["basis"]["n_basis"]
    assert (
        found["basis"] == f"{n_basis} ({n_basis / 3:.1f} % of the rows), all below confidence 0.95"
    )
    params = tuned.chosen_params
    assert found["features"] == f"{params.features}, {params.kernel} kernel"
    width = stages["width"]
    assert found["width"].startswith(f"{width['width']:.4g}, {params.width_factor:g} x mean")
    assert found["alpha"] == f"{params.alpha:g}, of 3 tried"
    assert found["fitting error"] == f"eps {stages['weights']['fitting_error']:.4g}"
    assert found["spectral risk"] == f"gamma {stages['weights']['spectral_risk']:.4g}"
    error, deviation = (stages["validation"][name] for name in ("error_rate", "fold_deviation"))
    of_folds = f"3 folds, standard deviation {100 * deviation:.2f} %"
    assert found["held-out error"] == f"{100 * error:.2f} % of 300 rows, {of_folds}"
    assert f"at temperature {stages['validation']['temperature']:.4g}" in found["log loss"]
    total = sum(record["seconds"] for record in stages.values())
    assert found["time"] == f"{total:.1f} s"
    slowest = max(stages, key=lambda name: stages[name]["seconds"])
    assert found["slowest"].startswith(f"{slowest} ")
    assert {"peak memory", "predicted", "workers"} <= found.keys()


def test_run_table__about_twenty_lines_of_100_columns(tuned):
    confusion = "\n\nHeld-out rows of each class (down)"
    for text in (run_table(tuned), tuning_table(tuned)):
        assert max(map(len, text.splitlines())) <= 100
        # Warnings depend on the memory that the process held before.
        shown = text.partition("\nwarning")[0].partition(confusion)[0]
        assert 8 <= len(shown.splitlines()) <= 30


def test_run_table__of_a_fit_without_neighbours():
    found = figures(run_table(fit(basis="random", basis_size=20)))
    assert found["basis"] == "20 (10.0 % of the rows), drawn evenly"
    absent = {"neighbours", "recall", "low confidence", "held-out error", "log loss"}
    assert not absent & found.keys()
    assert found["alpha"] == "1e-06"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"basis": "kmeans", "basis_size": 20},
            "20 (10.0 % of the rows), k-means centres",
        ),
        ({"basis_size": 20}, "20 (10.0 % of the rows), the least confident"),
        (
            {"basis_size": 5, "basis_rule": "uniform", "confidence_threshold": 1},
            "a draw below confidence 1",
        ),
    ],
)
def test_run_table__says_where_the_basis_is_from(options, words):
    assert figures(run_table(fit(**options)))["basis"].endswith(words)


def test_run_table__of_a_given_basis():
    X, y = spirals(200)
    params = given_basis(FitParams(**SMALL), X[:15])
    dataset = write_table(MemoryStore(), X, y)
    run = fit_dataset(dataset, MemoryStore(), params, InlineEngine(), basis=X[:15])
    assert figures(run_table(run))["basis"] == "15 (7.5 % of the rows), given"


def test_run_table__says_what_weighs_the_rows():
    balanced = figures(run_table(fit(class_weight="balanced")))["row weights"]
    assert balanced == "balanced classes, 200 in all"
    own = figures(run_table(fit(weights=np.full(200, 1.5))))["row weights"]
    assert own == "their own, 300 in all"


def test_tuning_table__marks_what_was_chosen(tuned):
    text = tuning_table(tuned)
    combinations, finals, penalties, _, _ = text.split("\n\n")
    assert combinations.startswith("8 combinations tried on 300 rows with a basis of 15\n")
    assert penalties.startswith("3 alphas compared on 300 held-out rows, 3 folds\n")
    assert finals.startswith("3 combinations compared on 300 rows with a basis of 15\n")
    (marked,) = [line for line in finals.splitlines() if line.startswith("*")]
    params = tuned.chosen_params
    assert marked.split()[1:4] == [params.features, params.kernel, f"{params.width_factor:g}"]
    (marked,) = [line for line in penalties.splitlines() if line.startswith("*")]
    validation, weights = tuned.stages["validation"], tuned.stages["weights"]
    (judged,) = [each for each in validation["path"] if each["alpha"] == params.alpha]
    assert marked.split() == [
        "*",
        f"{params.alpha:g}",
        f"{100 * validation['error_rate']:.2f}",
        "%",
        f"{judged['log_loss']:.4f}",
        f"{judged['temperature']:.4g}",
        f"{weights['fitting_error']:.4g}",
        f"{weights['spectral_risk']:.4g}",
    ]


def test_tuning_table__shows_the_ten_best(altered, tuned):
    tried = tuned.stages["search"]["tried"] * 3
    shown = tuning_table(altered(tuned, search={"tried": tried})).split("\n\n")[0].splitlines()
    assert shown[0].startswith("24 combinations tried (10 best)")
    assert len(shown) == 12
    errors = [float(re.search(r"([\d.]+) %", line)[1]) for line in shown[2:]]
    assert errors == sorted(errors)


def test_tuning_table__singular_alphas_have_no_figures(altered, tuned):
    path = tuned.stages["path"]["path"]
    # The largest penalty is not chosen: its figures go.
    gone = path[0] | {"fitting_error": None, "spectral_risk": None}
    judged = tuned.stages["validation"]["path"]
    lost = judged[0] | dict.fromkeys(judged[0].keys() - {*Ridge._fields})
    run = altered(tuned, path={"path": [gone, *path[1:]]}, validation={"path": [lost, *judged[1:]]})
    line = tuning_table(run).split("\n\n")[2].splitlines()[2]
    assert line.split() == ["0.01", "-", "-", "-", "-", "-"]
    assert "singular at alpha=0.01" in run_table(run)


def test_tuning_table__of_a_validation_dataset(dataset, tmp_path):
    tuning = TuneParams(
        effort="quick", alphas=(1e-3, 1e-5), width_factors=(1.0,), features=("plain",)
    )
    params = FitParams(**SMALL, basis="random", basis_size=20)
    place = tmp_path / "run.zarr"
    run = tune_dataset(dataset, place, params, tuning, InlineEngine(), validation=dataset)
    assert "300 held-out rows, a validation dataset\n" in tuning_table(run)


def test_tuning_table__of_a_run_that_was_not_tuned(fitted):
    with pytest.raises(MissingDataError, match="fitted without tuning"):
        tuning_table(fitted)


def test_tuning_table__of_the_held_out_rows_of_each_class(tuned):
    of_classes, confusion = tuning_table(tuned).split("\n\n")[-2:]
    title, header, *lines = of_classes.splitlines()
    assert title == "Held-out rows: precision, recall and F1 of each class"
    assert header.split() == ["class", "precision", "recall", "F1", "rows"]
    rows = tuned.read("validation/confusion")[0].sum(axis=1)
    assert [line.split()[-1] for line in lines] == [f"{n_rows:.0f}" for n_rows in rows]
    title, header, *lines = confusion.splitlines()
    assert title == "Held-out rows of each class (down) by predicted label (across)"
    shown = [[int(cell) for cell in line.split()[-3:]] for line in lines]
    best = read_held_out_confusion(tuned)
    assert best is not None
    np.testing.assert_array_equal(shown, best)
    assert best.sum() == 300
