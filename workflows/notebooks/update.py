# %% [markdown]
# # An update night: add rows, forget rows, merge two sites
# Updates read only the changed rows. The result equals a fit to all rows with the same basis.

# %%
import shutil
import tempfile
from pathlib import Path

from sklearn.datasets import load_digits

from dask_nrbfn import (
    FitParams,
    InlineEngine,
    Run,
    evaluate_dataset,
    fit_dataset,
    ingest_arrays,
    merge_runs,
    update_run,
)

place = Path(tempfile.mkdtemp())
engine = InlineEngine()
X, y = load_digits(return_X_y=True)


def rows(name: str, start: int, stop: int):
    """Return a dataset of some rows."""
    return ingest_arrays(X[start:stop], y[start:stop], place / name)


first, monday, tuesday = rows("a", 0, 600), rows("b", 600, 900), rows("c", 900, 1200)
test = rows("test", 1200, 1797)


def show_error() -> None:
    """Print the run and its error on the test rows."""
    run = Run.open(place / "run.zarr")
    print(run, f"{evaluate_dataset(run.location, test, engine).error_rate:.2%} errors", sep="\n")


# %% [markdown]
# Fit to the first rows.

# %%
params = FitParams(kernel="gaussian", scale="none", basis_size=200, alpha=1e-8)
run = fit_dataset(first, place / "run.zarr", params, engine)
show_error()

# %% [markdown]
# Before the night, copy the run to another site, which adds its rows. When the copy is back, remove
# the first rows from it, because the run has them too.

# %%
site = shutil.copytree(run.location, place / "site.zarr")
update_run(site, tuesday, engine)
update_run(site, first, engine, forget=True)

# %% [markdown]
# Add the rows of Monday, then merge the copy.

# %%
update_run(run.location, monday, engine)
show_error()
merge_runs(run.location, site, engine)
show_error()

# %% [markdown]
# Forget the rows of Monday.

# %%
update_run(run.location, monday, engine, forget=True)
show_error()
Run.open(run.location)
