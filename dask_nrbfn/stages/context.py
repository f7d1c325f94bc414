"""The inputs of a fit, with every "auto" resolved once."""

import logging
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Self

from numpy.typing import ArrayLike

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.neighbors.plan import NeighborSearch
from dask_nrbfn.params import FitLimits, FitParams, TuneParams
from dask_nrbfn.stages.bases import asked_size
from dask_nrbfn.stages.trials import Trials, planned_cells, resolve_tuning
from dask_nrbfn.storage.dataset import Dataset, of_same_table
from dask_nrbfn.storage.layout import PartLayout

logger = logging.getLogger(__name__)

# A tuning tries cells only on tables of at least this many rows. With fewer held-out rows the
# comparison depends on chance.
_LEAST_ROWS = 4000

# Default number of coordinates of an embedding: enough for a picture.
_UNASKED_COORDINATES = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class FitContext:
    """A fit, a tuning or an embedding, as every stage sees it."""

    dataset: Dataset
    # Resolved. In a run, with the values that its finished stages have chosen.
    params: FitParams
    engine: Engine
    # Resolved. In a run, without the values that finished stages have chosen.
    tuning: TuneParams | None = None
    # Labelled rows on which networks are compared, instead of folds.
    validation: Dataset | None = None
    # The basis rows (r, p) that `params` name.
    basis: ArrayLike | None = None
    min_recall: float = FitLimits.min_recall
    embeds: bool = False
    layout: PartLayout
    labelled_layout: PartLayout
    # None until it is planned.
    search: NeighborSearch | None = None
    # Number of basis rows that were chosen, or for which costs are computed.
    found_basis: int | None = None

    @classmethod
    def resolve(
        cls,
        dataset: Dataset,
        params: FitParams,
        engine: Engine,
        tuning: TuneParams | None = None,
        *,
        validation: Dataset | None = None,
        embeds: bool = False,
        basis: ArrayLike | None = None,
        min_recall: float = FitLimits.min_recall,
    ) -> Self:
        """Return the context of a fit that begins now, with every "auto" resolved."""
        FitLimits(min_recall=min_recall)
        asked = 1 if embeds else params.cells
        params = _resolve_params(dataset, params, embeds=embeds)
        open_cells = replace(params, cells=asked)
        params = replace(params, cells=_resolve_cells(dataset, open_cells, tuning, validation))
        if tuning is not None:
            if validation is not None:
                validation = of_same_table(dataset, validation).of_labelled()
            shown = None if validation is None else validation.fingerprint
            if tuning.validation not in (None, shown):
                raise ParameterError(
                    "tuning.validation is not the fingerprint of the validation dataset.",
                    "Leave tuning.validation out: the fingerprint is read from the dataset.",
                )
            tuning = resolve_tuning(
                params,
                replace(tuning, validation=shown),
                numbers=dataset.of_numbers,
                sparse=dataset.is_sparse,
                mixed=dataset.is_mixed,
            )
            params = _first_tried(params, tuning)
        layout, labelled_layout = (
            PartLayout.of(
                n_rows, params.n_parts, n_workers=engine.n_workers, gpu=engine.device == "gpu"
            )
            for n_rows in (dataset.n_rows, dataset.of_labelled().n_rows)
        )
        return cls(
            dataset=dataset,
            params=params,
            engine=engine,
            tuning=tuning,
            validation=validation,
            embeds=embeds,
            layout=layout,
            labelled_layout=labelled_layout,
            basis=basis,
            min_recall=min_recall,
        )

    @property
    def tried(self) -> Trials:
        """What the fit tries."""
        return Trials(self.params, self.tuning)

    @cached_property
    def needing_confidence(self) -> FitParams:
        """`params` with a basis that is tried; if possible, a basis chosen by confidence."""
        return self.tried.params_needing_confidence

    @property
    def basis_option(self) -> str:
        """Name of the option that selects the basis of `needing_confidence`."""
        return "basis" if self.needing_confidence.basis == self.params.basis else "bases"

    @property
    def asked_size(self) -> int | None:
        """Requested number of basis rows; None: all that the source finds."""
        return asked_size(self.params, self.dataset)

    @property
    def n_basis(self) -> int:
        """Number of basis rows, chosen or requested; if both are unknown, the smallest possible."""
        return self.found_basis or self.asked_size or self.dataset.n_classes


def _resolve_params(dataset: Dataset, params: FitParams, *, embeds: bool) -> FitParams:
    """Return the parameters with every "auto" resolved; log if rows are too few for neighbours.

    By default an embedding has a "random" basis and two coordinates.
    """
    if embeds:
        basis = "random" if params.basis == "auto" else params.basis
        components = params.components or _UNASKED_COORDINATES
        params = replace(params, basis=basis, components=components)
    numbers = dataset.of_numbers and not embeds
    n_rows = dataset.of_labelled().n_rows if dataset.has_targets else dataset.n_rows
    resolved = params.resolve_auto(numbers=numbers, mixed=dataset.is_mixed, n_rows=n_rows)
    fewer = resolved.n_neighbors != params.resolve_auto(numbers=numbers).n_neighbors
    if fewer and not dataset.of_numbers and not embeds:
        logger.info(
            "fit: so few rows that each row has all others as its %d neighbours",
            resolved.n_neighbors,
        )
    return resolved


def _resolve_cells(
    dataset: Dataset, params: FitParams, tuning: TuneParams | None, validation: Dataset | None
) -> int | str:
    """Return the number of cells of a fit: "auto" for a tuning that may use several cells."""
    if params.cells is not None:
        return params.cells
    if tuning is None or tuning.effort == "quick" or (validation or tuning.validation):
        return 1
    asked = replace(params, cells="auto")
    unfit = any(Trials(asked, tuning).unfit_for_cells(sparse=dataset.is_sparse).values())
    n_rows = dataset.of_labelled().n_rows
    few = n_rows < _LEAST_ROWS or planned_cells(asked, n_rows) == 1
    return 1 if few or unfit else "auto"


def _first_tried(params: FitParams, tuning: TuneParams) -> FitParams:
    """Return parameters with the values of a tuning that tries a single combination."""
    if tuning.losses:
        params = replace(params, loss=tuning.losses[0])
    tried = Trials(params, tuning).combinations
    return replace(params, **asdict(tried[0])) if len(tried) == 1 else params
