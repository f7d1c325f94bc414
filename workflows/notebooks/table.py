# %% [markdown]
# # A table: fit, tune, look at errors
# The table has numbers, a category and missing values. It is drawn here; a path works as well.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from dask_nrbfn import (
    FitParams,
    InlineEngine,
    TuneParams,
    evaluate_dataset,
    fit_dataset,
    ingest_file,
)

place = Path(tempfile.mkdtemp())
engine = InlineEngine()


def draw(n_rows: int, seed: int) -> pd.DataFrame:
    """Return flats with a label that depends on area, age and town."""
    rng = np.random.default_rng(seed)
    area, age = rng.uniform(20, 150, n_rows), rng.integers(0, 90, n_rows).astype(float)
    town = rng.choice(["Bonn", "Mainz", "Trier"], n_rows)
    rent = area * np.where(town == "Bonn", 14, 9) - 4 * age + rng.normal(0, 60, n_rows)
    age[rng.random(n_rows) < 0.05] = np.nan
    price = np.select([rent < 500, rent < 1000], ["low", "middle"], "high")
    return pd.DataFrame({"area": area, "age": age, "town": town, "price": price})


# %% [markdown]
# Write the rows to a dataset. The missing ages are filled with the median.

# %%
draw(900, seed=0).to_csv(place / "train.csv", index=False)
draw(500, seed=1).to_csv(place / "test.csv", index=False)
train = ingest_file(place / "train.csv", place / "train.zarr", label="price", missing="impute")
train

# %% [markdown]
# Fit with the defaults, then tune by cross-validation.

# %%
fitted = fit_dataset(train, place / "fit.zarr", FitParams(basis_size=100), engine)
tuning = TuneParams(effort="quick", folds=3)
tuned = fit_dataset(train, place / "tuned.zarr", FitParams(basis_size=100), engine, tuning=tuning)
print(tuned)
tuned

# %% [markdown]
# Compare both on the test rows, and see which classes are confused.

# %%
test = ingest_file(place / "test.csv", place / "test.zarr", schema=train.schema)
for run in (fitted, tuned):
    evaluation = evaluate_dataset(run.location, test, engine)
    print(f"{run.begun_by}: {evaluation.error_rate:.1%} errors")
print(pd.DataFrame(evaluation.confusion, evaluation.classes, evaluation.classes))
