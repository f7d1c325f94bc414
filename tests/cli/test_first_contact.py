"""Three commands from a table as people have it to predictions next to its rows.

No command gets an option other than the label, unless its one error message says what to add.
"""

import subprocess

import numpy as np
import pandas as pd
import pytest

from tests.cli.program import PROGRAM, refuse, succeed
from tests.tables import spirals, write_table

N_ROWS = 150


def homes():
    """Return rows whose label follows from area and region, with ids and an index."""
    rng = np.random.default_rng(0)
    area = rng.uniform(30, 150, N_ROWS).round(1)
    region = rng.choice(["north", "south", "east"], N_ROWS)
    sold = np.where((area > 90) ^ (region == "south"), "yes", "no")
    ids = [f"H-{row:05d}" for row in range(N_ROWS)]
    return pd.DataFrame({"area": area, "region": region, "sold": sold, "home": ids})


def with_gaps():
    frame = homes().astype({"area": str})
    frame.loc[::8, "area"] = "  ?  "
    frame.loc[::11, "region"] = None
    return frame.to_csv(sep="\t")


def with_comments():
    return "# of the agency\r# May 2024\r" + homes().to_csv(lineterminator="\r")


@pytest.mark.parametrize(
    ("table", "needed"), [(with_gaps, ["--missing", "impute"]), (with_comments, [])]
)
def test_commands__three_from_a_table_to_joined_predictions(tmp_path, table, needed):
    file, dataset, fitted = tmp_path / "rows.txt", tmp_path / "data", tmp_path / "run"
    file.write_text(table(), newline="")
    ingest = ["ingest", file, dataset, "--label", "sold"]
    if needed:
        assert " ".join(needed) in " ".join(refuse(*ingest))
    succeed(*ingest, *needed)
    succeed("fit", dataset, fitted)
    out = tmp_path / "out.csv"
    succeed("predict", fitted, file, out, "--keep", "sold", "--probabilities")
    found = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert len(found) == N_ROWS
    assert (found["sold"] == found["prediction"]).mean() > 0.8


def test_fit__ends_with_the_tune_that_may_do_better_if_all_options_are_defaults(tmp_path):
    write_table(tmp_path / "data", *spirals(60))
    shown = {}
    for name, options in {"usual": (), "wide": ("--width-factor", "2")}.items():
        command = [*PROGRAM, "fit", str(tmp_path / "data"), str(tmp_path / name), *options]
        shown[name] = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert f"dask-nrbfn tune {tmp_path / 'data'} NEW_RUN" in shown["usual"]
    assert "NEW_RUN" not in shown["wide"]
