"""Stage "svd": the singular vectors that turn rows into coordinates for all later stages.

Two passes compute the same sum; the second multiplies rows by the result of the first. The parts
depend on the number of rows alone, not on the parts of the run. Rows are drawn by hashes of their
coordinates, which depend on the last bits of the singular vectors, and a draw must not depend on
the parts of the run.
"""

import logging
from dataclasses import asdict, dataclass

import numpy as np

from dask_nrbfn.engine.memory import PROCESS_BYTES
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.svd import (
    Sketch,
    decomposition,
    first_directions,
    orthonormal,
    sketch_columns,
)
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts, run_task
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.chunks import check_finite
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, narrow_block_rows
from dask_nrbfn.storage.projection import STAGE, VECTORS
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

logger = logging.getLogger(__name__)

_PASSES = 2

# The prefix of the scratch stages, one for each pass, with its directions and sums.
_SCRATCH = f"{STAGE}-"


@dataclass(frozen=True)
class SvdRecord:
    """Figures of the decomposition.

    Attributes
    ----------
    singular_values : list of float
        In descending order.
    explained : float
        Lower bound of the share of the sum of squares that the coordinates explain.
    """

    singular_values: list[float]
    explained: float


def _check(context: FitContext) -> None:
    """Raise ParameterError if the rows cannot become `svd` coordinates."""
    dataset, params = context.dataset, context.params
    assert params.svd is not None
    most = min(dataset.n_features, dataset.n_rows) - 1
    if params.svd > most:
        raise ParameterError(
            f"`svd` is {params.svd}, but X is {dataset.n_rows} x {dataset.n_features}.",
            f"Set `svd` to at most {most}, or leave `svd` out." if most else "Leave `svd` out.",
        )
    if dataset.is_mixed:
        raise ParameterError(
            f"`svd` is {params.svd}, but the columns of {dataset.location} are of several kinds: "
            "the columns with the largest numbers would decide the coordinates.",
            "Leave `svd` out, or give only numeric columns.",
        )
    if params.basis_is_given:
        raise ParameterError(
            f"`svd` is {params.svd}, but the given basis rows are not coordinates.",
            "Give a source of the basis, such as kmeans, or leave `svd` out.",
        )


def read_components(run: Run) -> Floats | None:
    """Return the singular vectors, float64 (p, D); None without `svd`."""
    return None if run.chosen_params.svd is None else run.read(VECTORS)


def _compute(job: StageJob) -> SvdRecord:
    """Store the singular vectors.

    Every chunk is read, so a missing or damaged chunk and a NaN are found before the long stages.
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    # Recorded, so that the run continues with this layout even if the defaults change.
    run.decide(STAGE, asdict(PartLayout.of(run.n_rows)))
    for number in range(_PASSES):
        run_task(engine, _write_directions, run, number, label=STAGE)
        reduce_parts(run, dataset, engine, _reduction(run, number))
    record = run_task(engine, _decompose, run, label=STAGE)
    asked, found = len(record.singular_values), np.count_nonzero(record.singular_values)
    logger.info("svd: %d coordinates hold %.1f %% of the squares", found, 100 * record.explained)
    if found < asked:
        logger.warning("svd: only %d of %d coordinates are not always 0", found, asked)
    return record


def _reduction(run: Run, number: int) -> Reduction:
    layout = PartLayout(**run.decisions[STAGE])
    return Reduction(f"{_SCRATCH}{number}", _SvdPass, {"": Sketch}, layout, (number,))


def _write_directions(run: Run, number: int) -> None:
    """Store the directions that a pass multiplies by the rows."""
    if number:
        directions = orthonormal(_read_sketch(run, number - 1).products)
    else:
        p, params = run.attributes["n_features"], run.chosen_params
        assert params.svd is not None
        size = sketch_columns(params.svd, p)
        directions = first_directions(p, size, seed=params.random_state)
    group = run.group(f"{_SCRATCH}{number}")
    write_array(group, "directions", directions, "feature", "direction")


def _read_directions(run: Run, number: int) -> Floats:
    return run.read(f"{_SCRATCH}{number}/directions")


def _read_sketch(run: Run, number: int) -> Sketch:
    sketch: Sketch = read_total(run, _reduction(run, number))
    if not (np.isfinite(sketch.products).all() and np.isfinite(sketch.squares)):
        raise DataError(
            "the values of X are too large to be squared in float64.",
            "Divide X by its largest value.",
        )
    return sketch


def _decompose(run: Run) -> SvdRecord:
    last = _PASSES - 1
    assert run.chosen_params.svd is not None
    sketch = _read_sketch(run, last)
    found = decomposition(_read_directions(run, last), sketch, run.chosen_params.svd)
    write_array(run.group(STAGE), "components", found.vectors, "feature", "component")
    return SvdRecord(found.singular_values.tolist(), found.explained)


class _SvdPass:
    """The sketch of the rows of a part; checks that their values are finite."""

    def __init__(self, run: Run, dataset: Dataset, start: int, stop: int, number: int) -> None:
        self.reading = Reading(
            block_rows=narrow_block_rows(dataset.row_width), weighting=RowWeights(None)
        )
        self._directions = _read_directions(run, number)
        self._sketch = Sketch.zeros(self._directions.shape)

    def add(self, block: FoldedBlock) -> None:
        check_finite(block.X, first_row=block.start)
        self._sketch += Sketch.from_block(block.X, self._directions)

    def sums(self) -> Sums:
        return {"": self._sketch}


def _cost(s: FitSizes) -> StageCost:
    assert s.params.svd is not None
    size, rows = sketch_columns(s.params.svd, s.p), narrow_block_rows(s.width)
    n_parts = PartLayout.of(s.n).n_parts
    sketch = 8 * s.p * size
    flops = _PASSES * 4 * s.n * s.row_values * size
    # The directions, the sketch, and the sketch of a block, or of another part, read and decoded.
    passing = 5 * sketch + s.reading_bytes + 8 * rows * (2 * s.width + size)
    # The directions, the sketch, a factor and its vectors, and LAPACK's copy and space.
    solving = 8 * sketch
    return StageCost(
        flops=flops,
        read_bytes=_PASSES * (s.rows_bytes + 2 * n_parts * sketch),
        written_bytes=_PASSES * (n_parts + 1) * sketch,
        held_bytes=PROCESS_BYTES + max(passing, solving),
        n_tasks=_PASSES * n_parts,
        work={
            # Reading rows includes making coordinates of them, half as many as the directions. For
            # rows in CSR, whose products run at the speed of memory, that is a fifth of the work.
            "read_bytes": _PASSES * s.rows_bytes * (5 if s.dataset.is_sparse else 1),
            "moments_flops": 0.0 if s.dataset.is_sparse else flops,
            "scratch_bytes": _PASSES * 3 * n_parts * sketch,
        },
        alone={"moments_flops": 20.0 * s.p * size**2, "scratch_bytes": 6 * sketch},
    )


SVD = Stage(
    name=STAGE,
    record=SvdRecord,
    compute=_compute,
    cost=_cost,
    wanted=lambda params, tuning, numbers: params.svd is not None,
    check=_check,
    of_stored=True,
    remedy=lambda params: "Give a smaller `svd`, or ingest with a smaller `chunk_rows`",
    passes=(VECTORS,),
    scratch=(_SCRATCH,),
)
