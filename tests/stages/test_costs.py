"""What stages state of their work and memory: figures that are worked out by hand.

The table has n = 10^6 rows of p = 5 float64 and K = 3 classes. A fit has r = 200 basis rows, k = 7
neighbours and 10 parts. The rows are 40 MB, all lists of neighbours 112 MB, a packed gram matrix
160 kB, and the rows in use 10 MiB. `held` are the bytes next to the process, which test_held_bytes
compares with the measured peak.
"""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.sparse import random_array
from zarr.storage import MemoryStore

from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.memory import NNDESCENT_PROCESS_BYTES, PROCESS_BYTES, process_bytes
from dask_nrbfn.fit import planned, stages_of
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.cost import Clock, Rates, StageCost, expected_s
from tests.tables import spirals, write_table

GIVEN = FitParams(
    kernel="gaussian", scale="none", basis_size=200, alpha=1e-6, n_neighbors=7, n_parts=10,
    candidates="all",
)  # fmt: skip
EXACT = replace(GIVEN, neighbors="exact", n_partitions=1)
ENGINE = InlineEngine(memory_bytes=2**40, threads=2)
OF_ONE = TuneParams(
    folds=3, alphas=(0.1,), width_factors=(1.0,), features=("plain",), kernels=("gaussian",),
    scales=("none",), bases=("random",), penalties=("kernel",),
)  # fmt: skip
# Two scales, eight widths and two bases are tried, and 3 alphas of each.
SEARCHED = TuneParams(
    folds=4, alphas=(0.1, 1e-3, 1e-5), search_rows=30_000, search_basis=150,
    scales=("none", "standard"), kernels=("gaussian",), features=("normalized",),
    bases=("random", "kmeans"), penalties=("weights",),
)  # fmt: skip


def large(n_features=5):
    return write_table(MemoryStore(), *spirals(60, n_features=n_features)).with_n_rows(10**6)


@pytest.fixture(scope="module")
def table():
    return large()


def costs(dataset, params, tuning=None, **options):
    """Return the costs of the stages of a fit by name."""
    context = planned(FitContext.resolve(dataset, params, ENGINE, tuning, **options))
    return {stage.name: stage.cost_in(context) for stage in stages_of(context.spec)}


def states(cost, *, held, process=PROCESS_BYTES, **work):
    """Assert all that a stage states; work that is left out is nothing, in one task."""
    found = {each.name: getattr(cost, each.name) for each in fields(StageCost)}
    assert dict(found.pop("systems")) == work.pop("systems", {})
    nothing = dict.fromkeys(found, 0) | {"n_tasks": 1}
    assert found == pytest.approx(nothing | work | {"held_bytes": process + held}, rel=1e-9)


def test_costs__of_a_fit(table):
    of, on_parts = costs(table, EXACT), {"n_tasks": 10}
    states(of["columns"], read_bytes=40e6, held=12_943_760, **on_parts)
    # All pairs of rows; each part reads all rows, and 16 bytes are written of each neighbour.
    searched = {"pairs": 1e12, "pair_flops": 10, "read_bytes": 400e6, "written_bytes": 112e6}
    states(of["neighbors"], **searched, held=638_868_992, **on_parts)
    states(of["recall"], held=0)
    states(of["confidence"], read_bytes=152e6, written_bytes=16e6, held=75_287_360, **on_parts)
    states(of["basis"], read_bytes=56e6, written_bytes=8000, held=95_675_280)
    # 2 n r p; a root of each distance takes half as long as an exponential.
    distances = {"products": 2e9, "exponentials": 1e8}
    states(of["width"], **distances, read_bytes=40e6, held=15_021_360, **on_parts)
    # n r^2 + 2 n r p. Ten sums are written, and nine of them read to be added.
    sums = {"read_bytes": 41_440_000, "written_bytes": 1_600_000}
    work = {"products": 42e9, "exponentials": 2e8}
    states(of["moments"], **work, **sums, held=15_639_680, **on_parts)
    states(of["weights"], systems={200: 1}, held=681_000)
    states(of["model"], read_bytes=12_800, written_bytes=12_800, held=10_536_960)


def test_costs__of_the_defaults_are_those_of_l1_distances(table):
    of = costs(table, replace(EXACT, kernel=FitParams.kernel, scale=FitParams.scale))
    l1, work = {"process": process_bytes(l1=True)}, {"exponentials": 2e8, "n_tasks": 10}
    # A difference takes as long as three flops: n r^2 + 3 n r p.
    sums = {"read_bytes": 41_440_000, "written_bytes": 1_600_000}
    states(of["moments"], products=43e9, **work, **sums, **l1, held=15_639_680)
    states(of["weights"], systems={200: 1}, **l1, held=681_000)


def test_costs__of_very_many_basis_rows_are_those_of_adding_two_sums(table):
    params = replace(EXACT, basis_size=40_000)
    moments = costs(table, params)["moments"]
    # Three packed matrices and their products with four columns of targets, with a quarter more.
    held = 1.25 * 3 * 8 * (40_000 * 40_001 // 2 + 40_000 * 4)
    assert moments.held_bytes == PROCESS_BYTES + table.reading_bytes + held
    locality = costs(table, replace(params, features="plain", locality=0.1))["locality"]
    assert locality.held_bytes == moments.held_bytes - 1.25 * 3 * 8 * 40_000 * 4


def test_costs__of_centres_hold_copies_of_them_and_a_sample(table):
    basis = costs(table, replace(EXACT, basis="kmeans"))["basis"]
    states(basis, read_bytes=56e6, written_bytes=24_000, held=99_683_280)


def test_costs__of_neighbours_in_partitions(table):
    process = PROCESS_BYTES + NNDESCENT_PROCESS_BYTES
    params = replace(GIVEN, neighbors="approximate", n_partitions=32, overlap=2)
    # Of each of 2 n entries a row in float32, its numbers, and its neighbours: 148 bytes.
    states(
        costs(table, params)["neighbors"],
        products=320e6, pair_flops=10, read_bytes=376e6, written_bytes=408e6,
        n_tasks=32, other_s=42.955, held=193_986_560, process=process,
    )  # fmt: skip
    exact = costs(table, replace(params, neighbors="exact", n_partitions=8, overlap=3))["neighbors"]
    # (3 n / 8)^2 in each partition.
    assert (exact.pairs, exact.n_tasks, exact.other_s) == (1.125e12, 8, 0)
    of = costs(table, replace(params, n_partitions=1))
    assert (of["neighbors"].other_s, of["neighbors"].n_tasks) == (pytest.approx(33.9775), 1)
    # A thousand rows are searched exactly.
    audit = {"pairs": 1e9, "pair_flops": 10, "read_bytes": 80e6, "n_tasks": 10}
    states(of["recall"], **audit, held=74_178_000, process=process)


def test_costs__of_candidates(table):
    of = costs(table, replace(GIVEN, candidates=5000))
    # Twelve times the lists of 5,000 rows: of ten parts, of one, and the result.
    work = {"pairs": 5e9, "pair_flops": 10, "read_bytes": 120e6, "written_bytes": 6_720_000}
    states(of["neighbors"], **work, held=97_673_280, n_tasks=10)
    states(of["confidence"], read_bytes=40_560_000, written_bytes=80_000, held=75_287_360)


def test_costs__of_a_tuned_alpha(table):
    of = costs(table, replace(EXACT, alpha=FitParams.alpha))
    # One fold of a hundred, so two sums, and seven alphas.
    assert of["moments"].written_bytes == 3_200_000
    states(of["path"], systems={200: 7}, held=3_565_000)
    # Two passes over 10^4 rows, the second of which calibrates; linear functions of 20,000 rows,
    # which are drawn from all.
    states(
        of["validation"],
        products=2 * 20e6 + 84e6 + 500_000, exponentials=2 * 2e6 + 5.25e6, read_bytes=120e6,
        n_tasks=20, held=25_252_910,
    )  # fmt: skip
    states(of["weights"], systems={200: 1}, held=765_000)


def test_costs__of_tuned_penalties_and_eigenfunctions(table):
    tuning = replace(OF_ONE, alphas=(0.1, 1e-3), penalties=("weights", "kernel"))
    of = costs(table, EXACT, tuning)
    # All rows and all but those of the only fold that is held out, with four ridges.
    systems, copies = {200: 2 * 4}, 4 * 200**3 / 3
    states(of["path"], products=copies, systems=systems, held=3_729_000, n_tasks=2)
    states(of["weights"], held=2_329_000)
    tuning = replace(tuning, components=(9, 20), penalties=None, features=("normalized",))
    of = costs(table, replace(EXACT, basis="random"), tuning)
    products = 2 * 10 * 200**3 + copies
    states(of["path"], products=products, systems=systems, held=7_905_000, n_tasks=2)
    states(of["components"], products=10 * 200**3, held=2_120_000)


def test_costs__of_other_losses(table):
    of = costs(table, replace(EXACT, loss="logistic", features="plain", prune=90))
    states(of["prune"], products=90 * 90 * 200, held=2_039_000)
    states(of["weights"], systems={90: 1}, held=1_841_000)
    # Ten passes of 2 n r p + 4 n r K, each of which reads the rows and a matrix of 64,800 bytes.
    work = {"products": 19.8e9, "exponentials": 900e6}
    read = {"read_bytes": 400_648_000, "written_bytes": 64_800}
    states(of["refine"], **work, **read, held=13_200_140, n_tasks=10)
    tuning = replace(OF_ONE, losses=("squared", "logistic", "squared-hinge"))
    # Twenty passes of each loss for two models, and one that calibrates.
    states(
        costs(table, replace(EXACT, penalty="kernel"), tuning)["refine"],
        products=41 * 6.8e9, exponentials=41 * 200e6, read_bytes=41 * 41_280_000,
        written_bytes=2_560_000, held=135_951_760, n_tasks=10,
    )  # fmt: skip


def test_costs__of_locality(table):
    params = replace(EXACT, features="plain", locality=0.1)
    # 2,000 rows and seven neighbours of each, in two parts.
    states(
        costs(table, params)["locality"],
        products=16_000 * 42_000, exponentials=3_200_000, pairs=2e9, pair_flops=10,
        read_bytes=80_320_000, written_bytes=480_000, held=80_308_000, n_tasks=2,
    )  # fmt: skip
    many = costs(table, replace(params, basis_size=2000))["locality"]
    assert many.held_bytes == PROCESS_BYTES + 215_633_760


def test_costs__of_an_embedding(table):
    cost = costs(table, FitParams(basis_size=200, components=6), embeds=True)["model"]
    states(cost, read_bytes=40e6, written_bytes=17_600, held=16_023_760)


def test_costs__of_sparse_rows_count_their_values():
    X = random_array((60, 1000), density=0.02, format="csr", rng=0)
    csr = write_table(MemoryStore(), X, np.arange(60) % 3).with_n_rows(10**6)
    of, of_centres = (costs(csr, replace(GIVEN, basis=name)) for name in ("random", "kmeans"))
    # 20 values of a row, with 8 bytes and 4 for the column.
    assert of["columns"].read_bytes == 240e6
    assert of["basis"].written_bytes == 48_000
    # Two rows take 250 products and 0.4 times as many more; a row and a centre 30 for each value.
    assert of["width"].products == 350 * 200e6
    assert of_centres["width"].products == 30 * 20 * 200e6


def test_costs__of_ranks(table):
    # 100,000 rows, twice while they are gathered, twelve numbers of each value of one column, and
    # four times 256 knots of each.
    states(
        costs(table, replace(EXACT, scale="rank"))["ranks"], read_bytes=40e6, other_s=0.1025,
        held=32_536_960,
    )  # fmt: skip


def test_costs__of_a_learned_scale(table):
    # 20 networks of 6,000 rows and 512 basis rows, seven alphas of each, and three gradients of
    # 5,000 rows; 22 of 2,500 rows and 250 basis rows. Single precision takes 0.6 times as long.
    states(
        costs(table, replace(EXACT, scale="learned", metric_rounds=3))["metric"],
        products=0.6 * 20 * 6000 * (512**2 + 10 * 512) + 3 * 5000 * 2 * 5 * 512 * 5
        + 0.6 * 22 * 2500 * (250**2 + 10 * 250),
        exponentials=0.6 * (23 * 6000 * 512 + 22 * 2500 * 250),
        systems={512: pytest.approx(84), 250: pytest.approx(92.4)}, held=197_719_040,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("components", "spanning", "systems", "held"),
    [
        (None, 0, {150: 46}, 55_609_180),
        # The eigenfunctions of 25 matrices, and two numbers of them.
        ((9, 20), 25 * 10 * 150**3, {150: 90}, 61_728_600),
    ],
)
def test_costs__of_a_search(table, components, spanning, systems, held):
    search = costs(table, EXACT, replace(SEARCHED, components=components))["search"]
    # A sample of 30,000 rows of 64 bytes, which each of three steps reads.
    read = {"read_bytes": 45_760_000, "written_bytes": 1_920_000}
    # 16 combinations, then three kinds and four widths, then two bases, with 3,000 rows judged.
    # Centres move twelve times.
    n_rows = 16 * 8000 + 7 * 15_000 + 2 * 30_000
    products = 0.6 * n_rows * (150**2 + 10 * 150) + spanning + 30_000 * 5**2
    exponentials = 0.6 * n_rows * 150 + 12 * 30_000 * 150
    states(search, products=products, exponentials=exponentials, systems=systems, held=held, **read)


def test_costs__of_cells(table):
    params = replace(EXACT, cells=50, basis_size=90, scale="learned")
    # Twelve networks of each cell with seven alphas; then five folds twice, and all rows.
    states(
        costs(table, params)["cells"],
        products=24_076_800_000, systems={90: 50 * (12 * 7 + 11)}, n_tasks=50,
        exponentials=437_760_000, read_bytes=128e6, written_bytes=90_202_400,
        held=73_891_840,
    )  # fmt: skip
    # Of a tuning, eight cells are compared with one network.
    tuned = costs(table, replace(EXACT, cells="auto"), replace(SEARCHED, search_rows=400_000))
    states(
        tuned["cells"],
        products=274_972_676_000, systems={200: 1024 * (4 * 7 + 9) + 4}, n_tasks=1024,
        exponentials=2_499_751_600, read_bytes=128e6, written_bytes=278_185_472,
        held=212_525_760,
    )  # fmt: skip


def test_costs__of_cells_hold_the_sample_of_the_tree_or_all_networks(table):
    wide, params = large(500), FitParams(cells=900, basis_size=10, n_parts=10, alpha=1e-6)
    sampled = costs(wide, params)["cells"].held_bytes - wide.reading_bytes
    assert sampled == PROCESS_BYTES + 1.25 * 3 * 8 * (2**25 // 500) * 500
    small = costs(table, replace(EXACT, cells=20_000, basis_size=40))["cells"]
    assert small.held_bytes == PROCESS_BYTES + table.reading_bytes + 196_800_000


RATES = Rates(products=3e9, exponentials=7e8, pairs=5e8, bytes=2e8)


def test_expected_s__adds_what_each_rate_takes():
    cost = StageCost(
        products=6e9, exponentials=7e9, pairs=1e9, read_bytes=3 * 10**8,
        written_bytes=10**8, held_bytes=1, other_s=4.0, systems={3000: 2.0},
    )  # fmt: skip
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
