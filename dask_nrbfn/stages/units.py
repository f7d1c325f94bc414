"""Units of work of a search: its sample, and trials of combinations on some of the rows."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dask_nrbfn.numeric.folds import places_among
from dask_nrbfn.numeric.penalties import Ridge
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

# Prefix of the groups that are deleted after the search.
SCRATCH = "search-"
_SAMPLE = f"{SCRATCH}sample/"

# Prefix of the arrays with rows that are drawn from all rows, with or without labels.
_ALL = "all_"

# Elements of the sample if the number of rows is not given, and the limits of that number.
_SAMPLE_ELEMENTS = 2**25
_MIN_SAMPLE_ROWS, _MAX_SAMPLE_ROWS = 20_000, 100_000

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


def read_sample(run: Run) -> TrialRows:
    """Return the rows that `write_sample` has stored."""
    return TrialRows(TableRows.read(run, _SAMPLE), run.spec)


def try_units(run: Run, dataset: Dataset, units: list[list[Request]]) -> PartResult:
    """Try units of work side by side; keep the losses of every held-out row."""
    sample = read_sample(run)
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
    none = dict.fromkeys((*Ridge._fields, *figures_of(of_numbers=dataset.of_numbers)))
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
