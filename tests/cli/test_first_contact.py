"""Tables as people have them: three commands from a file to predictions next to its rows.

No command gets an option other than the label, unless its one error message says what to add.
"""

import re

import numpy as np
import pandas as pd
import pytest

from tests.cli.program import refuse, succeed

INLINE = ("--workers", 0)
N_ROWS = 150


def homes():
    """Return rows whose label follows from area and region."""
    rng = np.random.default_rng(0)
    area = rng.uniform(30, 150, N_ROWS).round(1)
    region = rng.choice(["north", "south", "east"], N_ROWS)
    return pd.DataFrame(
        {
            "area": area,
            "price": (2000 * area + rng.normal(0, 5e3, N_ROWS)).round(2),
            "region": region,
            "sold": np.where((area > 90) ^ (region == "south"), "yes", "no"),
        }
    )


def text_of(frame, **options):
    return frame.to_csv(index=False, **options)


def with_gaps():
    frame = homes()
    frame.loc[::7, "area"] = np.nan
    frame.loc[::11, "region"] = None
    return text_of(frame)


def with_an_index_and_ids():
    frame = homes().assign(HomeId=[f"H-{row:05d}" for row in range(N_ROWS)])
    return frame.to_csv()


def with_comments():
    return "# of the agency\r# May 2024\r" + text_of(homes(), lineterminator="\r")


def with_padded_marks():
    frame = homes()
    frame["area"] = frame["area"].map(str)
    frame.loc[::8, "area"] = "  ?  "
    return text_of(frame, sep="\t")


# The table, its suffix, and the options that the one error message asks for.
TABLES = [
    (with_gaps, ".csv", ["--missing", "impute"]),
    (with_an_index_and_ids, ".csv", []),
    (with_comments, ".txt", []),
    (with_padded_marks, ".tsv", ["--missing", "impute"]),
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("table", "suffix", "needed"), TABLES)
def test_commands__three_from_a_table_to_joined_predictions(tmp_path, table, suffix, needed):
    file, dataset, fitted = tmp_path / f"rows{suffix}", tmp_path / "data", tmp_path / "run"
    file.write_text(table(), newline="")
    ingest = ["ingest", file, dataset, "--label", "sold"]
    if needed:
        message = " ".join(refuse(*ingest))
        assert re.search("[ =]".join(map(re.escape, needed)), message), message
    succeed(*ingest, *needed)
    succeed("fit", dataset, fitted, *INLINE)
    out = tmp_path / "out.csv"
    succeed("predict", fitted, file, out, "--keep", "sold", "--probabilities", *INLINE)
    found = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert len(found) == N_ROWS
    assert (found["sold"] == found["prediction"]).mean() > 0.8
