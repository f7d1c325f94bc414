"""Units of work of a search: its sample, and trials of combinations on some of the rows."""

import logging
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.folds import places_among
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.small_fit import losses_of, target_scales
from dask_nrbfn.numeric.threads import concurrent_map
from dask_nrbfn.numeric.trials import Entry, figures_of, judged_rows, trial_bytes, try_networks
from dask_nrbfn.parts import PartResult
from dask_nrbfn.spec import Combination, Spec
from dask_nrbfn.stages.bases import Chosen, TableRows, basis_of_rows, source_of
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.moments import most_components
from dask_nrbfn.stages.trials import MOST_JUDGED, TrialRows, network_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Prefix of the groups that are deleted after the search.
SCRATCH = "search-"
_SAMPLE = f"{SCRATCH}sample/"

# Prefix of the arrays with rows that are drawn from all rows, with or without labels.
_ALL = "all_"

# Elements of the sample if the number of rows is not given, and the limits of that number.
_SAMPLE_ELEMENTS = 2**25
_MIN_SAMPLE_ROWS, _MAX_SAMPLE_ROWS = 20_000, 100_000

# Most columns of a linear model, whose time grows with their square.
_MOST_LINEAR = 1000

Left = dict[str, Any]
"""The penalties and alphas that are tried with a combination."""


def search_rows(n_rows: int, row_values: float, spec: Spec) -> int:
    """Return the number of rows of the sample, at most all rows."""
    affordable = int(_SAMPLE_ELEMENTS / max(row_values, 1))
    default = max(_MIN_SAMPLE_ROWS, min(affordable, _MAX_SAMPLE_ROWS))
    return min(default if spec.search_rows is None else spec.search_rows, n_rows)


class Request(NamedTuple):
    """A combination to try: with which ridges, on how many rows, with how many basis rows.

    by_source: whether the source of the combination chooses the basis rows; else they are drawn.
    exact: whether alphas that need float64 are tried.
    """

    combination: Combination
    left: Left
    n_rows: int
    n_basis: int
    n_judged: int = MOST_JUDGED
    by_source: bool = False
    exact: bool = True

    @property
    def shared(self) -> tuple[Any, ...]:
        """The values of requests that one unit of work tries: widths, with the same distances."""
        own = self.combination
        return (*asdict(replace(own, width_factor=1.0)).values(), *self[2:])

    @property
    def work(self) -> float:
        """The products of the sums, which decide which units begin."""
        return float(self.n_rows) * self.n_basis**2


def figures(dataset: Dataset) -> tuple[str, str]:
    """Return the names of the figures of a trial, see `figures_of`."""
    return figures_of(of_numbers=dataset.of_numbers)


def write_sample(run: Run, dataset: Dataset) -> int:
    """Store the rows on which combinations are tried; return their number."""
    spec, group = run.spec, run.group(_SAMPLE)
    labelled = dataset.of_labelled()
    n_rows = search_rows(labelled.n_rows, dataset.row_values, spec)
    TrialRows.drawn(labelled, spec, n_rows).rows.write(group)
    if dataset.n_unlabelled:
        n_all = search_rows(dataset.n_rows, dataset.row_values, spec)
        TableRows.drawn(dataset, spec.params, n_all).write(group, _ALL)
    return n_rows


def try_units(run: Run, dataset: Dataset, units: list[list[Request]]) -> PartResult:
    """Try units of work side by side; keep the losses of every held-out row."""
    sample = TrialRows(TableRows.read(run, _SAMPLE), run.spec)
    n_basis = max(unit[0].n_basis for unit in units)
    n_ridges = max(len(each.left["alphas"]) for unit in units for each in unit)
    own = trial_bytes(
        n_basis,
        dataset.n_targets,
        n_networks=max(map(len, units)),
        n_ridges=n_ridges * len(run.spec.components),
    )
    try_unit = partial(_try_unit, run, dataset, sample)
    of_units = [*concurrent_map(own)(try_unit, units)]
    entries = [entry for found in of_units for entry, _ in found]
    losses = [losses for found in of_units for _, losses in found]
    shares = sample.shares(units[0][0].n_judged)
    return PartResult({"tried": entries}, {"losses": np.array(losses), "shares": shares})


def _try_unit(
    run: Run, dataset: Dataset, sample: TrialRows, unit: list[Request]
) -> list[tuple[Entry, Any]]:
    """Return the entries and the losses of combinations that differ in the width."""
    first = unit[0]
    specs = [run.spec.narrowed({"chosen": asdict(c), "narrowed": left}) for c, left, *_ in unit]
    params = specs[0].params
    scaling = read_scaling(run, params.scale)
    if first.by_source or params.basis_is_given:
        basis = _basis_by_source(run, dataset, sample, specs[0], first)
    else:
        basis = sample.basis(first.n_basis)
    table = sample.table(dataset, basis, first.n_rows, first.n_judged)
    n_judged = len(judged_rows(table, range(sample.folds.n_folds)))
    tried = try_networks(
        table,
        scaling,
        [network_of(each) for each in specs],
        folds=range(sample.folds.n_folds),
        n_components=most_components(run),
        exact=first.exact,
    )
    none = dict.fromkeys((*Ridge._fields, *figures(dataset)))
    return [
        (
            {**(trial.entry if trial else none), "n_basis": len(basis.rows)},
            trial.losses if trial else np.full(n_judged, np.nan),
        )
        for trial in tried
    ]


def _basis_by_source(
    run: Run, dataset: Dataset, sample: TrialRows, spec: Spec, request: Request
) -> Chosen:
    """Return a basis that the source of a combination chooses from the rows outside a single fold.

    From several folds it chooses all rows, so their labels have a part in the choice.
    """
    params = spec.params
    if run.spec.chooses_size:
        params = params.with_checked(basis_size=request.n_basis)
    seen = sample.rows.take(sample.folds.basis_order(len(sample.rows.targets)))
    rows, n_all = seen.take(np.argsort(seen.numbers)), dataset.of_labelled().n_rows
    if dataset.n_unlabelled and not source_of(params.basis).by_confidence:
        rows, n_all = TableRows.read(run, _SAMPLE + _ALL), dataset.n_rows
        rows = rows._replace(numbers=places_among(dataset.labelled_rows(), rows.numbers))
    scaling, size = read_scaling(run, params.scale), request.n_basis
    return basis_of_rows(run, dataset, rows, params, size, scaling=scaling, n_all=n_all)


def has_linear_model(dataset: Dataset) -> bool:
    """Return whether linear functions of the columns are computed in little time."""
    return not dataset.is_sparse and dataset.n_features <= _MOST_LINEAR


def linear_flops(dataset: Dataset, n_rows: int) -> float:
    """Return the products of linear functions of the columns; 0 if there are none."""
    return n_rows * float(dataset.n_features) ** 2 if has_linear_model(dataset) else 0.0


def try_linear(run: Run, dataset: Dataset, n_judged: int) -> PartResult:
    """Return the losses of linear functions of the columns on the rows that judge trials."""
    sample = TrialRows(TableRows.read(run, _SAMPLE), run.spec)
    figure, losses = _linear(run, dataset, sample, n_judged)
    shares = sample.shares(n_judged)
    return PartResult({"figure": figure}, {"losses": losses, "shares": shares})


def judge_linear(run: Run, dataset: Dataset, n_rows: int) -> tuple[float, int]:
    """Return the figure of linear functions of drawn rows, and the number of held-out rows."""
    sample = TrialRows.drawn(dataset, run.spec, n_rows)
    figure, losses = _linear(run, dataset, sample, MOST_JUDGED)
    return figure, len(losses)


def _linear(
    run: Run, dataset: Dataset, sample: TrialRows, n_judged: int
) -> tuple[float, NDArray[Any]]:
    """Return the figure and the losses of linear functions of the columns on held-out rows."""
    n_rows = len(sample.rows.targets)
    table = sample.table(dataset, sample.basis(1), n_rows, n_judged)
    n_folds, targets = sample.folds.n_folds, table.targets
    rows = judged_rows(table, range(n_folds))
    scores = table.linear_scores(read_scaling(run, "standard"), range(n_folds))
    found = losses_of(targets, scores[:, None], table.y[rows], target_scales(table, rows))
    losses, shown = (each[:, 0] for each in found)
    return float((sample.shares(n_judged) @ shown).mean()), losses


def advise_linear(figure: str, linear: float, network: float, remedy: str) -> None:
    """Warn that linear functions of the columns do better than a network, by a figure."""
    logger.warning(
        "A linear model of the same columns does better on held-out rows: %s %.4g, that of the "
        "network is %.4g. Use the linear model, or %s.",
        figure.replace("_", " "),
        linear,
        network,
        remedy,
    )
