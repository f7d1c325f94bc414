"""What stages state of their work and memory, next to a count of loops, and of arrays by shape."""

import math
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.sparse import random_array
from zarr.storage import MemoryStore

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.memory import NNDESCENT_PROCESS_BYTES, PROCESS_BYTES
from dask_nrbfn.fit import planned, stages_of
from dask_nrbfn.neighbors import plan
from dask_nrbfn.neighbors.exact import SPARE, buffer_bytes
from dask_nrbfn.neighbors.partition import MAX_IMBALANCE
from dask_nrbfn.numeric.calibration import MOST_SCORES
from dask_nrbfn.numeric.cell_solution import STEPS, STEPS_OF_ROUND, trial_size
from dask_nrbfn.numeric.forward import selection_bytes
from dask_nrbfn.numeric.held_out import INVERSE_TEMPERATURES
from dask_nrbfn.numeric.locality import locality_bytes
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.numeric.small_fit import try_bytes
from dask_nrbfn.numeric.threads import concurrent_bytes
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import bases, cells, columns, moments, search
from dask_nrbfn.stages.bases import MOST_SCORED
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.cost import Clock, Rates, StageCost, expected_s
from dask_nrbfn.storage.layout import block_rows, narrow_block_rows
from tests.tables import spirals, write_table

# Of a table that is only planned. Products of these sizes have one factorization.
N, P, K, R, NEIGHBORS, PARTS = 1_000_003, 5, 3, 211, 7, 13
PART_ROWS = -(-N // PARTS)
GIVEN = FitParams(basis_size=R, alpha=1e-6, n_neighbors=NEIGHBORS, n_parts=PARTS, candidates="all")
EXACT = replace(GIVEN, neighbors="exact", n_partitions=1)
ENGINE = InlineEngine(memory_bytes=2**40, threads=2)
# Row number and distance of a neighbour.
LIST_BYTES = 8 + 8
ROWS_BYTES, LISTS_BYTES = 8 * N * P, LIST_BYTES * N * NEIGHBORS
SEARCHED_BYTES = PROCESS_BYTES + NNDESCENT_PROCESS_BYTES
TRIANGLE_BYTES = 4 * R**2


@pytest.fixture(scope="module")
def table():
    return write_table(MemoryStore(), *spirals(60, n_features=P)).with_n_rows(N)


@pytest.fixture(scope="module")
def csr():
    X = random_array((60, 1000), density=0.02, format="csr", rng=0)
    return write_table(MemoryStore(), X, np.arange(60) % K).with_n_rows(N)


def costs(dataset, params, tuning=None, **options):
    """Return the costs of the stages of a fit by name."""
    context = FitContext.resolve(dataset, params, ENGINE, tuning, **options)
    context = planned(context)
    return {stage.name: stage.cost_in(context) for stage in stages_of(context.spec)}


def floats(*shapes):
    return 8 * sum(math.prod(shape) for shape in shapes)


def holds(*steps, reads=None, share=1.25, process=PROCESS_BYTES):
    """Return the bytes of a process that does one step after the other."""
    reading = 0 if reads is None else reads.reading_bytes
    return process + reading + round(share * max(steps, default=0))


def expect(cost, **stated):
    """Assert all that a stage states; what is left out is nothing, in one task."""
    found = {each.name: getattr(cost, each.name) for each in fields(StageCost)}
    assert dict(found.pop("systems")) == stated.pop("systems", {})
    nothing = dict.fromkeys(found, 0) | {"n_tasks": 1}
    assert found == pytest.approx(nothing | stated, rel=1e-12)


def of_basis(copies, r=R, p=P):
    return floats((copies, r, p))


def test_passes__of_a_fit(table):
    of = costs(table, EXACT)
    rows = narrow_block_rows(P)
    held = holds(floats((rows, 3, P), (8, P)), reads=table)
    expect(of["columns"], read_bytes=ROWS_BYTES, held_bytes=held, n_tasks=PARTS)
    rows = block_rows(R)
    held = holds(floats((rows, R), (4, rows, P)) + of_basis(3), reads=table)
    expect(
        of["width"],
        products=2 * N * R * P,
        exponentials=N * R / 2,
        read_bytes=ROWS_BYTES,
        held_bytes=held,
        n_tasks=PARTS,
    )
    summing = moments.moments_bytes(R, width=P, n_targets=K, n_folds=1) + of_basis(4)
    expect(
        of["moments"],
        products=N * R * R + 2 * N * R * P,
        exponentials=N * R,
        read_bytes=ROWS_BYTES + (PARTS - 1) * TRIANGLE_BYTES,
        written_bytes=PARTS * TRIANGLE_BYTES,
        held_bytes=holds(summing, reads=table),
        n_tasks=PARTS,
    )
    expect(of["weights"], systems={R: 1}, held_bytes=holds(solve_bytes(R, K, in_place=True)))
    model = floats((R, P), (R, K))
    held = holds(4 * model, reads=table, share=1)
    expect(of["model"], read_bytes=model, written_bytes=model, held_bytes=held)


def test_moments__two_sums_and_a_copy_of_a_large_basis_are_added(table):
    r = 40_000
    of = costs(table, replace(EXACT, basis_size=r))
    adding = floats((3, r * (r + 1) // 2), (3, r, 1 + K))
    assert of["moments"].held_bytes == holds(adding, reads=table)


def test_neighbors__of_all_rows_and_their_confidence(table):
    of = costs(table, EXACT)
    search = floats((2, N, P)) + N * (40 * (NEIGHBORS + 1) + 24 * SPARE)
    search += buffer_bytes(P, NEIGHBORS, threads=2)
    read = narrow_block_rows(P) * P * (8 + 2 * 8 + 8)
    expect(
        of["neighbors"],
        pairs=N**2,
        pair_flops=2 * P,
        read_bytes=PARTS * ROWS_BYTES,
        written_bytes=LISTS_BYTES,
        held_bytes=holds(search + read, reads=table, share=1),
        n_tasks=PARTS,
    )
    expect(of["recall"], held_bytes=PROCESS_BYTES)
    # The codes of all rows, lists while they are sorted, rows while they are hashed.
    lists = 4 * 16 * of_block(table, EXACT) * NEIGHBORS
    held = 4 * N + lists + floats((3, narrow_block_rows(P), P))
    expect(
        of["confidence"],
        read_bytes=LISTS_BYTES + ROWS_BYTES,
        written_bytes=floats((2, N)),
        held_bytes=holds(held, reads=table),
        n_tasks=PARTS,
    )
    pool = bases.pool_bytes(N, K, R, 0)
    expect(
        of["basis"],
        read_bytes=floats((2, N)) + ROWS_BYTES,
        written_bytes=of_basis(1),
        held_bytes=holds(pool + of_basis(2), reads=table),
    )


def test_basis__of_centres_holds_copies_of_them_and_a_sample(table):
    cost = costs(table, replace(EXACT, basis="kmeans"))["basis"]
    n_sampled = bases.source_of("kmeans").n_sampled(N, P, R)
    centres = floats((3, R, P))
    assert n_sampled > R
    assert cost.written_bytes == centres
    pool = bases.pool_bytes(N, K, R, n_sampled)
    held = pool + 2 * centres + floats((3, n_sampled, P))
    assert cost.held_bytes == holds(held, reads=table)


def of_block(dataset, params):
    """Return the rows of a block of a search: of whole chunks, at most a part."""
    layout = FitContext.resolve(dataset, params, ENGINE).layout
    rows = bases.search_block_rows(layout.chunk_rows, dataset.row_width, params)
    return min(rows, layout.part_rows)


def test_neighbors__in_partitions(table):
    overlap, n_partitions, width = 2, 32, P
    params = replace(GIVEN, neighbors="approximate", n_partitions=n_partitions, overlap=overlap)
    cost, entries = costs(table, params)["neighbors"], N * overlap
    context = planned(FitContext.resolve(table, params, ENGINE))
    searched = bases.searched_in(table, context.spec.params)
    largest = math.ceil(MAX_IMBALANCE * entries / n_partitions)
    search = searched.search_bytes(largest, "approximate") + 16 * largest
    search += buffer_bytes(width, NEIGHBORS, threads=2)
    merging = 4 * LIST_BYTES * of_block(table, params) * NEIGHBORS * (overlap + 2)
    scratch = entries * (4 * width + floats((2,)) + LIST_BYTES * NEIGHBORS)
    updates = plan.candidate_updates(entries, P, P, n_neighbors=NEIGHBORS)
    expect(
        cost,
        products=2 * N * n_partitions * P,
        pair_flops=2 * P,
        read_bytes=2 * ROWS_BYTES + scratch,
        written_bytes=scratch + LISTS_BYTES,
        held_bytes=holds(search, merging, reads=table, share=1, process=SEARCHED_BYTES),
        n_tasks=n_partitions,
        other_s=plan.COMPILATION_S + updates / plan.update_rate(2),
    )


def test_neighbors__in_partitions_that_are_searched_exactly(table):
    cost = costs(table, replace(GIVEN, neighbors="exact", n_partitions=8, overlap=3))["neighbors"]
    assert cost.pairs == (3 * N) ** 2 / 8
    assert (cost.n_tasks, cost.other_s) == (8, 0)


def test_recall__searches_a_thousand_rows(table):
    params = replace(GIVEN, neighbors="approximate", n_partitions=1)
    targets = 1000
    found = targets * (floats((P,)) + 6 * LIST_BYTES * (NEIGHBORS + 1))
    block = of_block(table, params) * P * (8 + 8 + 8 + 4 + 4)
    step = found + buffer_bytes(P, NEIGHBORS, threads=2) + block
    of = costs(table, params)
    updates = plan.candidate_updates(N, P, P, n_neighbors=NEIGHBORS)
    assert of["neighbors"].other_s == plan.COMPILATION_S + updates / plan.update_rate(2)
    assert of["neighbors"].n_tasks == 1
    expect(
        of["recall"],
        pairs=N * targets,
        pair_flops=2 * P,
        read_bytes=2 * ROWS_BYTES,
        held_bytes=holds(step, reads=table, process=SEARCHED_BYTES),
        n_tasks=PARTS,
    )


def test_neighbors__of_candidates(table):
    n_candidates = 5000
    params = replace(GIVEN, candidates=n_candidates)
    of = costs(table, params)
    lists = n_candidates * (floats((P,)) + 6 * LIST_BYTES * (NEIGHBORS + 1))
    row = P * (8 + 8 + 8 + 8 + 8)
    searching = lists + buffer_bytes(P, NEIGHBORS, threads=2) + of_block(table, params) * row
    drawing = bases.pool_bytes(N, K, n_candidates, 0) + n_candidates * row
    own = LIST_BYTES * n_candidates * NEIGHBORS
    expect(
        of["neighbors"],
        pairs=N * n_candidates,
        pair_flops=2 * P,
        read_bytes=3 * ROWS_BYTES,
        written_bytes=(PARTS + 2) * own,
        held_bytes=holds(drawing, searching, reads=table),
        n_tasks=PARTS,
    )
    assert of["confidence"].read_bytes == own + ROWS_BYTES
    assert of["confidence"].written_bytes == floats((2, n_candidates))
    assert of["confidence"].n_tasks == math.ceil(n_candidates / PART_ROWS)


def test_tuning_of_alpha__solves_without_each_fold(table):
    n_alphas, folds = 7, 100
    of = costs(table, replace(EXACT, alpha=FitParams.alpha))
    # One of a hundred folds is enough rows, and so are two sums.
    triangle = 2 * TRIANGLE_BYTES
    assert of["moments"].written_bytes == PARTS * triangle
    judged = math.ceil(N / folds)
    weights = floats((n_alphas, K, R))
    held = solve_bytes(R, K, in_place=True) + 2 * TRIANGLE_BYTES + 2 * weights
    held += concurrent_bytes(n_alphas, floats((R, R)))
    expect(of["path"], systems={R: n_alphas}, held_bytes=holds(held))
    rows, scores = block_rows(R), n_alphas * K
    block = floats((rows, R), (5, rows, P), (5, rows, scores), (2, 2, scores, R))
    # The second pass calibrates.
    expect(
        of["validation"],
        products=2 * (2 * judged * R * P) + 2 * judged * R * scores,
        exponentials=2 * judged * R + judged * len(INVERSE_TEMPERATURES) * scores,
        read_bytes=2 * ROWS_BYTES,
        held_bytes=holds(of_basis(4) + block + 12 * floats((judged, K)), reads=table),
        n_tasks=2 * PARTS,
    )
    held = solve_bytes(R, K, in_place=True) + 2 * weights
    expect(of["weights"], systems={R: 1}, held_bytes=holds(held))


def test_path__of_a_tuning_with_penalties_and_eigenfunctions(table):
    # All rows, and all rows without each of three folds.
    alphas, n_solved = (0.1, 1e-3), 4
    tuning = TuneParams(
        folds=3,
        alphas=alphas,
        penalties=("weights", "kernel"),
        features=("plain",),
        kernels=("gaussian",),
        width_factors=(1.0,),
        scales=("none",),
        bases=("random",),
    )
    of = costs(table, EXACT, tuning)
    n_ridges = 2 * len(alphas)
    weights = floats((n_ridges, K, R))
    solving = of_basis(4) + solve_bytes(R, K, penalty_axes=2)
    held = solving + TRIANGLE_BYTES + 2 * weights + concurrent_bytes(n_ridges, floats((R, R)))
    expect(
        of["path"],
        products=4 * R**3 / 3,
        systems={R: n_solved * n_ridges},
        held_bytes=holds(held),
        n_tasks=n_solved,
    )
    expect(of["weights"], held_bytes=holds(solving + 2 * weights))
    tuning = replace(tuning, components=(9, 20), penalties=None, features=("normalized",))
    of = costs(table, replace(EXACT, basis="random"), tuning)
    n_ridges = 2 * len(alphas)
    spanned = floats((5, R, R)) + of_basis(4)
    held = solve_bytes(R, K, n_components=20) + TRIANGLE_BYTES + floats((2, n_ridges, K, R))
    held += spanned + concurrent_bytes(n_ridges, floats((3, R, R)))
    expect(
        of["path"],
        products=n_solved * 10 * R**3 + 4 * R**3 / 3,
        systems={R: n_solved * n_ridges},
        held_bytes=holds(held),
        n_tasks=n_solved,
    )
    expect(of["components"], products=10 * R**3, held_bytes=holds(spanned + floats((2, R, 20))))


def test_refine__passes_with_and_without_folds(table):
    kept = 90
    of = costs(table, replace(EXACT, loss="logistic", features="plain", prune=kept))
    expect(
        of["prune"],
        products=kept * kept * R,
        held_bytes=holds(solve_bytes(R, K) + selection_bytes(R, K, kept)),
    )
    square, weights, passes, rows = floats((kept, kept)), floats((K, kept)), 10, block_rows(kept)
    assert of["weights"].systems == {kept: 1}
    passing = of_basis(4, kept) + 5 * weights
    passing += floats((rows, kept), (4, rows, P), (7, rows, K))
    expect(
        of["refine"],
        products=passes * N * (2 * kept * P + 4 * kept * K),
        exponentials=passes * N * kept,
        read_bytes=passes * (ROWS_BYTES + square),
        written_bytes=square,
        held_bytes=holds(passing, reads=table),
        n_tasks=PARTS,
    )
    tuning = TuneParams(folds=3, alphas=(0.1,), losses=("squared", "logistic", "squared-hinge"))
    tuning = replace(tuning, kernels=("gaussian",), scales=("none",), width_factors=(1.0,))
    tuning = replace(tuning, penalties=("kernel",), features=("plain",), bases=("random",))
    cost = costs(table, replace(EXACT, penalty="kernel"), tuning)["refine"]
    # Each loss by itself, and the last pass calibrates.
    passes, n_models = 2 * 20 + 1, 4
    stored, weights, rows = 2 * n_models * floats((R, R)), n_models * floats((K, R)), block_rows(R)
    passing = of_basis(4) + 5 * weights + 12 * 8 * MOST_SCORES
    passing += floats((rows, R), (4, rows, P), (7, rows, n_models, K))
    expect(
        cost,
        products=passes * N * (2 * R * P + 4 * R * K * n_models),
        exponentials=passes * N * R,
        read_bytes=passes * (ROWS_BYTES + stored),
        written_bytes=2 * stored,
        held_bytes=holds(passing, reads=table),
        n_tasks=PARTS,
    )


def test_locality__sums_the_neighbours_of_drawn_rows(table):
    cost = costs(table, replace(EXACT, features="plain", locality=0.1))["locality"]
    drawn = 10 * R
    part_rows = 1024
    n_parts = math.ceil(drawn / part_rows)
    n_pairs = block_rows(R) // NEIGHBORS * NEIGHBORS
    summing = 2 * part_rows * (NEIGHBORS + 1) * floats((P,)) + of_basis(4)
    summing += locality_bytes(R, P, n_pairs=n_pairs)
    found = drawn * (floats((P,)) + 6 * LIST_BYTES * (NEIGHBORS + 1))
    found += buffer_bytes(P, NEIGHBORS, threads=2) + of_block(table, EXACT) * P * 5 * 8
    rows = drawn * (NEIGHBORS + 1)
    expect(
        cost,
        products=rows * (R * R + 2 * R * P),
        exponentials=rows * R,
        pairs=N * drawn,
        pair_flops=2 * P,
        read_bytes=n_parts * (ROWS_BYTES + TRIANGLE_BYTES),
        written_bytes=(n_parts + 1) * TRIANGLE_BYTES,
        held_bytes=holds(found, summing, reads=table),
        n_tasks=n_parts,
    )


def test_locality__of_many_basis_rows_holds_their_sums(table):
    for r, largest in ((2000, "summing"), (40_000, "adding")):
        params = replace(EXACT, features="plain", locality=0.1, basis_size=r)
        n_pairs = block_rows(r) // NEIGHBORS * NEIGHBORS
        summing = 2 * 1024 * (NEIGHBORS + 1) * floats((P,)) + of_basis(4, r)
        steps = {
            "summing": summing + locality_bytes(r, P, n_pairs=n_pairs),
            "adding": floats((3, r * (r + 1) // 2)),
        }
        assert costs(table, params)["locality"].held_bytes == holds(steps[largest], reads=table)


def test_embedding__samples_two_thousand_rows(table):
    size = 6
    cost = costs(table, FitParams(basis_size=R, components=size), embeds=True)["model"]
    held = of_basis(4) + floats((2000, R), (2, 2000, P), (4, R, size)) + N
    expect(
        cost,
        read_bytes=ROWS_BYTES,
        written_bytes=floats((R, size), (R, P)),
        held_bytes=holds(held, reads=table),
    )


def test_sparse_rows__count_their_values(csr):
    of = costs(csr, replace(GIVEN, basis="random"))
    values = csr.row_values
    assert of["columns"].read_bytes == round(N * values * (8 + 4))
    assert of["basis"].written_bytes == round(R * values * (8 + 4))


def test_metric__tries_networks_and_learns_from_them(table):
    params = replace(EXACT, scale="learned", metric_rounds=3)
    # Six widths of one kernel and five of the other, then three widths in each round.
    rows, r, n_firsts, n_rounds = 20_000, 1000, 6 + 5, 3
    n_tried = n_firsts + 3 * n_rounds
    own = columns.tried_bytes(r, K, n_held_out=1, n_ridges=7)
    held = 4 * rows * (floats((P,)) + floats((3,))) + try_bytes(rows, r) + own
    held += concurrent_bytes(n_firsts, own) + floats((block_rows(r), 2 * r + 8 * P))
    expect(
        costs(table, params)["metric"],
        products=n_tried * rows * (r * r + 3 * 2 * r * P) + n_rounds * rows * 2 * (K + 2) * r * P,
        systems={r: n_tried * 7},
        exponentials=2 * (n_tried + n_rounds) * rows * r,
        held_bytes=holds(held, reads=table),
    )


SEARCHED = TuneParams(
    **{"folds": 4, "alphas": (0.1, 1e-3, 1e-5), "search_rows": 30_000, "search_basis": 150},
    **{"scales": ("none", "standard"), "kernels": ("gaussian",), "features": ("normalized",)},
    **{"bases": ("random", "kmeans"), "penalties": ("weights",)},
)


@pytest.mark.parametrize("components", [None, (9, 20)])
def test_search__tries_every_combination_in_rounds(table, components):
    rows, n_bases, n_ridges = 30_000, 2 + 2 + 2, 3 * len(components or [None])
    cost = costs(table, EXACT, replace(SEARCHED, components=components))["search"]
    n_tried = 2 * 2 * len(KERNELS["gaussian"].width_factors)
    rounds = search.planned_rounds(n_tried, rows, 150, 4)
    # Three kinds and one with equal weights, and two widths in each of two refinements.
    finals = search.Round(3 + 1 + 2 * 2, rows, R, 2)
    products, exponentials, systems = 0, 0, Counter()
    for place, each in enumerate([*rounds, finals]):
        n_left = min(n_ridges, 7 * len(components or [None])) if place else n_ridges
        for _ in range(each.n_tried):
            products += each.n_rows * (each.n_basis**2 + 3 * 2 * each.n_basis * P)
            exponentials += 2 * each.n_rows * each.n_basis
            systems[each.n_basis] += each.n_folds * n_left
            if components:
                products += each.n_folds * 10 * each.n_basis**3
    products += n_bases * min(rows, MOST_SCORED) ** 2 * 2 * P + 2 * rows * P**2
    exponentials += n_bases * 12 * rows * R
    sample = rows * (floats((P,)) + floats((3,)))
    network = columns.tried_bytes(R, K, n_held_out=4, n_ridges=n_ridges)
    if components:
        network += floats((5, R, R), (4, 20, R + 20))
    n_all = sum(each.n_tried for each in rounds)
    networks = try_bytes(rows, R) + network + concurrent_bytes(n_all, network)
    expect(
        cost,
        products=products,
        systems=systems,
        exponentials=exponentials,
        read_bytes=ROWS_BYTES + len(rounds) * 2 * sample,
        written_bytes=sample,
        held_bytes=holds(3 * sample + floats((2, rows, P)) + of_basis(3) + networks, reads=table),
        n_tasks=2,
    )


def test_cells__have_a_network_each(table):
    n_cells, r, folds = 50, 90, TuneParams().folds
    cost = costs(table, replace(EXACT, cells=n_cells, basis_size=r, scale="learned"))["cells"]
    mean, size = math.ceil(N / n_cells), trial_size(r)
    n_tried = len(STEPS) + 2 * (len(STEPS_OF_ROUND) + 1)
    products = exponentials = 0
    # What is tried sees eight rows for each basis row; the folds and all rows see all.
    for n, each in ((n_tried * n_cells * 8 * size, size), (N, r), (N, r)):
        products += n * (each**2 + 2 * 2 * each * P)
        exponentials += 2 * n * each
    systems = Counter({size: n_cells * n_tried * 7})
    systems[r] += n_cells * (2 * folds + 1)
    row = floats((P,), (K,), (3,))
    networks = n_cells * floats((r, P), (r, K), (P,), (K,))
    expect(
        cost,
        products=products,
        systems=systems,
        exponentials=exponentials,
        read_bytes=ROWS_BYTES + N * row,
        written_bytes=N * row + 2 * networks + n_cells * 4 * r**2,
        held_bytes=holds(
            cells.cell_bytes(table, replace(EXACT, basis_size=r), 2 * mean), reads=table
        ),
        n_tasks=n_cells,
    )


def test_cells__of_a_tuning_are_compared_with_one_network(table):
    n_searched, folds, n_cells = 400_000, 4, 1024
    tuning = replace(SEARCHED, search_rows=n_searched)
    cost = costs(table, replace(EXACT, cells="auto"), tuning)["cells"]
    mean = math.ceil(N / n_cells)
    # Eight of the largest cells are drawn.
    n_compared, row = n_searched + 8 * 2 * mean, floats((P,), (K,), (3,))
    products = exponentials = 0
    for n in (4 * N, N, N, n_compared):
        products += n * (R**2 + 2 * 2 * R * P)
        exponentials += 2 * n * R
    compared = 4 * n_compared * row + columns.tried_bytes(R, K, n_held_out=folds, n_ridges=7)
    networks = n_cells * floats((R, P), (R, K), (P,), (K,))
    expect(
        cost,
        products=products,
        systems={R: n_cells * 4 * 7 + n_cells * (2 * folds + 1) + 7},
        exponentials=exponentials,
        read_bytes=ROWS_BYTES + N * row,
        written_bytes=N * row + 2 * networks + n_cells * 4 * R**2,
        held_bytes=holds(compared, reads=table),
        n_tasks=n_cells,
    )


def test_cells__of_wide_rows_hold_the_sample_of_the_tree():
    wide = write_table(MemoryStore(), *spirals(60, n_features=500)).with_n_rows(N)
    cost = costs(wide, FitParams(cells=900, basis_size=10, n_parts=PARTS, alpha=1e-6))["cells"]
    assert cost.held_bytes == holds(floats((3, 2**25 // 500, 500)), reads=wide)


def test_cells__that_are_small_hold_their_networks(table):
    n_cells, r = 20_000, 40
    cost = costs(table, replace(EXACT, cells=n_cells, basis_size=r))["cells"]
    networks = n_cells * floats((r, P), (r, K), (P,), (K,))
    assert cost.held_bytes == holds(3 * networks, reads=table)


RATES = Rates(products=3e9, exponentials=7e8, pairs=5e8, bytes=2e8)


def test_expected_s__adds_what_each_rate_takes():
    cost = StageCost(
        **{"products": 6e9, "exponentials": 7e9, "pairs": 1e9, "read_bytes": 3 * 10**8},
        **{"written_bytes": 10**8, "held_bytes": 1, "other_s": 4.0, "systems": {3000: 2.0}},
    )
    # A third of r^3 products, two hundred r^2, and a ten-thousandth of a second.
    system_s = (3000**3 / 3 + 200 * 3000**2) / 3e9 + 1e-4
    own_s = 6 / 3 + 70 / 7 + 10 / 5 + 4 / 2 + 2 * system_s + 4.0
    assert cost.all_products == 6e9 + 2 * 3000**3 / 3
    assert replace(cost, pair_flops=3.0).flops == cost.all_products + 3e9
    assert expected_s(cost, RATES, 1) == pytest.approx(own_s + 0.06)
    # Seven tasks on three workers take three rounds, the last on one of them.
    shared = expected_s(replace(cost, n_tasks=7), RATES, 3)
    assert shared == pytest.approx(own_s * 3 / 7 + 3 * 0.06)
    clock = Clock(ends=math.inf, rates=RATES, n_workers=3)
    assert clock.needed_s([cost, cost]) == pytest.approx(2 * (own_s + 0.06))
    assert Clock().needed_s([cost]) == 0
