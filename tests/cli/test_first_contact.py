"""Three commands from a table as people have it to predictions next to its rows.

No command gets an option other than the label, unless its one error message says what to add.
"""

import numpy as np
import pandas as pd
import pytest

from tests.cli.program import refuse, succeed

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
