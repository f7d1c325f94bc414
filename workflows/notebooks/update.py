# %% [markdown]
# # An update night: add rows, forget rows, merge two sites
# Updates read only the changed rows. The result equals a fit to all rows with the same basis.

# %%
import tempfile
from pathlib import Path

from sklearn.datasets import load_digits

from dask_nrbfn import (
    FitParams,
    InlineEngine,
    Run,
    branch_run,
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
run = fit_dataset(first, place / "run.zarr", FitParams(basis_size=200, alpha=1e-8), engine)
show_error()

# %% [markdown]
# Branch before the night: another site adds its rows to the branch.

# %%
branch = branch_run(run.location, place / "branch.zarr")
update_run(branch.location, tuesday, engine)

# %% [markdown]
# Add the rows of Monday, then merge the branch.

# %%
update_run(run.location, monday, engine)
show_error()
merge_runs(run.location, branch.location, engine)
show_error()

# %% [markdown]
# Forget the rows of Monday.

# %%
update_run(run.location, monday, engine, forget=True)
show_error()
Run.open(run.location)
