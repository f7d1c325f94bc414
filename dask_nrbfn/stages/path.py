"""Stage "path": the weights of every penalty, for all rows and without each fold."""

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.ridge import solve_path
from dask_nrbfn.numeric.risk import gram_eigenvalues, spectral_bounds
from dask_nrbfn.stages.moments import read_moments
from dask_nrbfn.stages.parts import PartResult, run_parts
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

# Basis rows up to which eigenvalues are computed: with 4,096 they take as long as ten of the
# factorizations of a penalty, and that grows.
LARGEST_SPECTRUM = 4096


def compute_path(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Solve for all penalties; return the error and risk of the fits to all rows.

    The parts of the stage are those without one fold each, and last all rows.
    """
    folds: list[int | None] = [*held_out_folds(run), None]
    records = run_parts(
        run, dataset, engine, stage="path", task=_path_part, units=[(fold,) for fold in folds]
    )
    return {"path": records[-1]["path"]}


def held_out_folds(run: Run) -> list[int]:
    """Return the folds that are held out: none where there is a validation dataset."""
    return list(range(run.n_folds)) if run.n_folds > 1 else []


def read_path_weights(run: Run, fold: int | None) -> NDArray[np.float64]:
    """Return the weights of all penalties without one fold, or for all rows, (A, K, r).

    Those of a penalty that left the system singular are NaN.
    """
    index = len(held_out_folds(run)) if fold is None else fold
    return run.read_part("path", index, "weights")


def solve_all(moments: Moments, alphas: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the weights of all penalties, float64 (A, K, r), NaN where there are none."""
    gram, cross = moments.gram(), moments.cross
    weights = np.full((len(alphas), *cross.shape), np.nan)
    for place, solved in enumerate(solve_path(gram, cross, alphas=alphas)):
        if solved is not None:
            weights[place] = solved
    return weights


def path_of_risks(
    moments: Moments,
    weights: NDArray[np.float64],
    alphas: tuple[float, ...],
    *,
    normalized: bool,
    least_weight: float,
) -> list[dict[str, Any]]:
    """Return error, risk and bounds of every penalty; None where it has no weights."""
    gram, path = moments.gram(), []
    eigenvalues = gram_eigenvalues(gram) if len(gram) <= LARGEST_SPECTRUM else None
    for alpha, of_alpha in zip(alphas, weights, strict=True):
        entry: dict[str, Any] = {"alpha": alpha, "fitting_error": None, "spectral_risk": None}
        if np.isfinite(of_alpha).all():
            bounds = asdict(
                spectral_bounds(
                    of_alpha,
                    gram,
                    moments.cross,
                    class_weights=moments.class_weights,
                    alpha=alpha,
                    eigenvalues=eigenvalues,
                    normalized=normalized,
                    least_weight=least_weight,
                )
            )
            entry |= {**bounds.pop("relative"), **bounds}
        path.append(entry)
    return path


def _path_part(run: Run, dataset: Dataset, fold: int | None) -> PartResult:
    assert run.tuning is not None
    alphas = tuple(run.tuning.alphas)
    moments = read_moments(run, without=fold)
    weights = solve_all(moments, alphas)
    path = []
    if fold is None:
        path = path_of_risks(
            moments,
            weights,
            alphas,
            normalized=run.params.features == "normalized",
            least_weight=run.stages["moments"]["least_weight"],
        )
    return PartResult({"path": path}, {"weights": weights})
