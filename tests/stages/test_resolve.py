"""The kernel and the scale of a fit that names neither."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from zarr.storage import MemoryStore

from dask_nrbfn import NRBFNClassifier
from dask_nrbfn.params import MOST_FEATURES, FitParams, TuneParams
from dask_nrbfn.stages.resolve import resolve
from dask_nrbfn.storage.model import Model
from tests.stages.fits import fit_table
from tests.tables import spirals, surfaces, write_table

OF_TABLES, OF_THE_PAPER = ("laplace-l1", "standard"), ("gaussian", "none")


def chosen_for(X, targets=None, params=None, tuning=None, **options):
    """Return the kernel and the scale of a fit of rows in memory."""
    kind = "y" if targets is None or np.ndim(targets) == 1 else "target"
    targets = np.arange(X.shape[0]) % 2 if targets is None else targets
    dataset = write_table(MemoryStore(), X, **{kind: targets})
    params = resolve(dataset, params or FitParams(), tuning, **options).params
    return params.kernel, params.scale


@pytest.mark.parametrize(
    ("n_features", "expected"),
    [(1, OF_TABLES), (MOST_FEATURES, OF_TABLES), (MOST_FEATURES + 1, OF_THE_PAPER)],
)
def test_auto__depends_on_the_number_of_features(n_features, expected):
    X = np.random.default_rng(0).normal(size=(12, n_features))
    assert chosen_for(X) == expected


def test_auto__numbers_and_cells_have_the_kernel_of_tables():
    X, Y = surfaces(60)
    assert chosen_for(X, Y) == OF_TABLES
    assert chosen_for(X, Y, FitParams(cells=2, basis_size=5)) == OF_TABLES


def test_auto__other_fits_have_the_kernel_of_the_paper():
    X, _ = spirals(60)
    assert chosen_for(csr_array(X)) == OF_THE_PAPER
    assert chosen_for(X, params=FitParams(components=5)) == OF_THE_PAPER
    assert chosen_for(X, tuning=TuneParams(width_factors=(0.5,), effort="quick")) == OF_THE_PAPER
    assert chosen_for(X, embeds=True) == OF_THE_PAPER


@pytest.mark.parametrize("given", [{"kernel": "gaussian"}, {"scale": "none"}, {"scale": "unit"}])
def test_auto__does_not_replace_what_is_given(given):
    names = dict(zip(("kernel", "scale"), OF_TABLES, strict=True)) | given
    assert chosen_for(spirals(60)[0], params=FitParams(**given)) == (*names.values(),)


@pytest.mark.parametrize(
    ("n_numbers", "expected"), [(2, OF_TABLES), (MOST_FEATURES, ("gaussian", "standard"))]
)
def test_auto__counts_the_columns_of_categories(n_numbers, expected):
    X = np.random.default_rng(0).normal(size=(20, n_numbers))
    table = pd.DataFrame(X, columns=[f"x{place}" for place in range(n_numbers)])
    table["city"] = [*"ab"] * 10
    params = NRBFNClassifier(alpha=1e-3).fit(table, np.arange(20) // 10)._model.params
    assert (params.kernel, params.scale) == expected


def test_auto__the_network_is_that_of_the_values_it_has():
    X, y = spirals(200)
    auto = fit_table(X, y, FitParams())
    given = fit_table(X, y, FitParams(kernel=OF_TABLES[0], scale=OF_TABLES[1]))
    models = [Model.load(run.location) for run in (auto, given)]
    assert models[0].digest() == models[1].digest()
    assert auto.chosen_params == given.chosen_params


def test_auto__a_tuning_tries_other_kernels():
    X, y = spirals(60)
    dataset, tuning = write_table(MemoryStore(), X, y), TuneParams(effort="quick")
    params = FitParams(basis_size=20, n_neighbors=8)
    assert resolve(dataset, params, tuning).kernels == ("gaussian", "laplace-l1")
    other = replace(params, kernel="matern32")
    assert resolve(dataset, other, tuning).kernels == ("matern32",)
