"""Name the types of cells: from an AnnData store in Zarr, and back into it.

Some thousand cells are drawn, with sparse counts of genes, principal components and a type for
most. The components stay where they are, a network learns the types that are known, and every cell
gets one:

    python workflows/arrays/cells.py
"""

import argparse
import sys
import warnings
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from dask_nrbfn import (
    EngineOptions,
    FitParams,
    NRBFNError,
    TuneParams,
    connect,
    ingest_file,
    tune_dataset,
)
from dask_nrbfn.commands.files import opened_rows
from dask_nrbfn.commands.predict import predict_obs

TYPES = ("B cell", "T cell", "monocyte", "NK cell", "platelet")
N_GENES, N_COMPONENTS = 500, 20
UNLABELLED = 0.1


def main() -> int:
    """Run the example; return 0, or 2 if it cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=3000, help="how many are drawn")
    parser.add_argument("--output", type=Path, default=Path("cells-output"), metavar="DIR")
    options = parser.parse_args()
    store = options.output / "cells.zarr"
    if options.output.exists():
        print(f"{options.output} exists. Remove it, or give another.", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True)
    with warnings.catch_warnings():
        # Of AnnData about its next version.
        warnings.simplefilter("ignore")
        drawn_cells(options.cells).write_zarr(store)
    try:
        n_bytes, accuracy = named_types(store, options.output)
    except NRBFNError as error:
        print(error.problem, error.remedy, sep="\n", file=sys.stderr)
        return 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        obs = anndata.read_zarr(store).obs
    none = obs["cell_type"].isna()
    print(f"cells         {len(obs)}, {none.sum()} of them without a type")
    print(f"dataset       {n_bytes / 2**10:.0f} KiB beside {store}")
    print(f"held out      {100 * accuracy:.2f} % right")
    print(f"named now     {obs.loc[none, 'predicted'].value_counts().to_dict()}")
    print(f"confidence    {obs.loc[none, 'predicted_confidence'].mean():.3f} on average")
    return 0


def drawn_cells(n_cells: int, seed: int = 0) -> anndata.AnnData:
    """Return cells with counts in CSR, the principal components of them, and types of most."""
    rng = np.random.default_rng(seed)
    types = rng.integers(len(TYPES), size=n_cells)
    rates = rng.gamma(0.3, size=N_GENES) * rng.lognormal(sigma=0.35, size=(len(TYPES), N_GENES))
    depths = rng.lognormal(sigma=0.3, size=(n_cells, 1))
    counts = rng.poisson(rates[types] * depths).astype(np.float32)
    logs = np.log1p(counts)
    logs -= logs.mean(axis=0)
    left, values, _ = np.linalg.svd(logs, full_matrices=False)
    components = (left * values)[:, :N_COMPONENTS].astype(np.float32)
    codes = np.where(rng.random(n_cells) < UNLABELLED, -1, types)
    obs = pd.DataFrame(
        {"cell_type": pd.Categorical.from_codes(codes, TYPES)},
        index=[f"cell-{cell}" for cell in range(n_cells)],
    )
    genes = pd.DataFrame(index=[f"gene-{gene}" for gene in range(N_GENES)])
    return anndata.AnnData(csr_matrix(counts), obs, genes, obsm={"X_pca": components})


def named_types(store: Path, output: Path) -> tuple[int, float]:
    """Add predicted types to the cells; return the bytes of the dataset, and what was right."""
    place = output / "components.zarr"
    dataset = ingest_file(store, place, x="obsm/X_pca", y="obs/cell_type")
    with connect(EngineOptions(workers=0)) as engine:
        run = tune_dataset(
            dataset, output / "run.zarr", FitParams(), TuneParams(effort="quick"), engine
        )
        with opened_rows(store, run.location, beside=store, labelled=False) as rows:
            column = "obs/predicted"
            predict_obs(run.location, rows.dataset, store, column, engine, overwrite=False)
    n_bytes = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return n_bytes, 1 - run.stages["validation"]["error_rate"]


if __name__ == "__main__":
    raise SystemExit(main())
