"""Trials of combinations on drawn rows: the rows, the units of work, and paired losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.folds import places_among
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.small_fit import SmallNetwork, SmallTable
from dask_nrbfn.numeric.threads import concurrent_map, n_threads
from dask_nrbfn.numeric.trials import Trial, trial_bytes, try_networks
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.bases import Chosen, TableRows
from dask_nrbfn.storage.dataset import Dataset

# Held-out rows that are enough to rank networks by losses of the same rows. A fifth of a table is
# held out. Of small tables several fifths are, one after another; a quick tuning holds out one
# part, up to a third.
MOST_JUDGED, _SHARE_JUDGED, _SHARE_QUICK = 3000, 5, 3
_ENOUGH_JUDGED, _FEW_JUDGED = 1000, 250

# Seconds of products, systems and exponentials of float32 over those of float64.
SINGLE = 0.6


class Folds(NamedTuple):
    """The held-out rows of a table in drawn order: the first rows, fold after fold."""

    n_folds: int
    n_judged: int

    @classmethod
    def of(cls, n_rows: int, spec: Spec) -> "Folds":
        """Return the folds of a table of `n_rows`."""
        n_judged = max(1, min(MOST_JUDGED, n_rows // _SHARE_JUDGED))
        if spec.is_quick and n_judged >= _FEW_JUDGED:
            n_judged = max(n_judged, min(_ENOUGH_JUDGED, n_rows // _SHARE_QUICK))
            return cls(1, n_judged)
        if n_judged >= _ENOUGH_JUDGED:
            return cls(1, n_judged)
        return cls(min(2 if n_judged >= _FEW_JUDGED else _SHARE_JUDGED, n_rows), n_judged)

    def basis_order(self, n_rows: int) -> NDArray[np.intp]:
        """Return the rows that may be in a basis, first those that are never held out.

        Rows of several folds alternate, so that a basis loses as much without each of them.
        """
        n_held_out = self.n_folds * self.n_judged
        never = np.arange(n_held_out, n_rows)
        if self.n_folds == 1:
            return never
        held_out = np.arange(n_held_out).reshape(self.n_folds, self.n_judged)
        return np.concatenate([never, held_out.T.ravel()])


@dataclass(frozen=True, eq=False)
class TrialRows:
    """Drawn rows of a dataset, in drawn order, on which networks are fitted and judged."""

    rows: TableRows
    spec: Spec

    @classmethod
    def drawn(cls, dataset: Dataset, spec: Spec, n_rows: int) -> "TrialRows":
        """Return `n_rows` drawn rows of a dataset."""
        rows = TableRows.drawn(dataset, spec.params, n_rows)
        order = np.random.default_rng([spec.params.random_state, 1]).permutation(n_rows)
        return cls(rows.take(order), spec)

    @property
    def folds(self) -> Folds:
        """The held-out rows."""
        return Folds.of(len(self.rows.targets), self.spec)

    def shares(self, n_judged: int) -> Floats:
        """Return the shares of held-out rows in their weight, in the order of the losses."""
        n_folds, most = self.folds
        weights = self.rows.weights[: min(n_judged, most) if n_folds == 1 else n_folds * most]
        return weights / weights.sum()

    def basis(self, size: int) -> Chosen:
        """Return the first `size` distinct rows that may be in a basis; fewer if there are."""
        places = self.folds.basis_order(len(self.rows.targets))
        hashes = hash_rows(self.rows.X[places], seed=self.spec.params.random_state)
        _, firsts = np.unique(hashes, return_index=True)
        places = places[np.sort(firsts)[:size]]
        return Chosen(self.rows.X[places], self.rows.numbers[places])

    def table(self, dataset: Dataset, basis: Chosen, n_seen: int, n_judged: int) -> SmallTable:
        """Return rows with a basis of some of the rows.

        A single fold has `n_judged` rows, and there are `n_seen` others; several folds have all.
        """
        own, places = self.folds, np.arange(len(self.rows.targets))
        folds = np.minimum(places // own.n_judged, own.n_folds)
        used = places
        if own.n_folds == 1:
            used = np.concatenate(
                [places[: own.n_judged][:n_judged], places[own.n_judged :][:n_seen]]
            )
        order = np.argsort(self.rows.numbers)
        places = places_among(self.rows.numbers[order], basis.rows)
        basis_folds = np.where(places < 0, -1, folds[order[places]])
        targets = self.rows.targets_of(dataset)
        return self.rows.take(used).with_basis(basis, targets, folds[used], basis_folds)


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """The losses (n,) of held-out rows, see `Trial.losses`, and the shares (n,) of the rows."""

    losses: Floats
    shares: Floats

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.losses @ self.shares)

    def gain_over(self, other: "JudgedRows") -> tuple[float, float]:
        """Return by how much the mean loss is less than another, and its standard error."""
        less = other.losses - self.losses
        gain = float(less @ self.shares)
        # For n equal weights this is the unbiased variance, with the divisor n - 1.
        unbiased = np.sqrt(max(1.0 - float(self.shares @ self.shares), 0.0)) or 1.0
        return gain, float(np.linalg.norm(self.shares * (less - gain)) / unbiased)

    def is_close_to(self, best: "JudgedRows", n_errors: float = 1.0) -> bool:
        """Return whether the best gains at most so many standard errors."""
        gain, error = best.gain_over(self)
        return gain <= n_errors * error


def network_of(spec: Spec) -> SmallNetwork:
    """Return the network of the parameters, with all ridges that are tried but no locality."""
    params = spec.params
    return SmallNetwork(
        params.kernel,
        params.width_factor,
        params.normalized,
        tuple(spec.trying(localities=(0.0,)).ridges),
    )


def try_side_by_side(
    table: SmallTable, scaling: Scaling, networks: Sequence[SmallNetwork]
) -> list[Trial | None]:
    """Return the result of `try_networks`; each thread tries some of the networks."""
    n_groups = min(n_threads(), len(networks))
    groups = [networks[first::n_groups] for first in range(n_groups)]
    n_basis, n_targets = table.basis.shape[0], table.targets.n_targets
    own = trial_bytes(n_basis, n_targets, n_networks=len(groups[0]))
    of_groups = concurrent_map(own)(partial(try_networks, table, scaling), groups)
    tried: list[Trial | None] = [None] * len(networks)
    for first, trials in enumerate(of_groups):
        tried[first::n_groups] = trials
    return tried
