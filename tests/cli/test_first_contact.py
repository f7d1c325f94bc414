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


def days():
    return pd.Series(pd.date_range("2019-03-01", periods=N_ROWS, freq="3D"))


def text_of(frame, **options):
    return frame.to_csv(index=False, **options)


def with_days_first():
    return text_of(homes().assign(day=days().dt.strftime("%d.%m.%Y")))


def with_gaps():
    frame = homes()
    frame.loc[::7, "area"] = np.nan
    frame.loc[::11, "region"] = None
    return text_of(frame)


def with_gaps_in_labels():
    frame = homes()
    frame.loc[::9, "sold"] = None
    return text_of(frame)


def with_true_and_false():
    return text_of(homes().assign(sold=lambda rows: rows["sold"] == "yes"))


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


def tiny():
    return text_of(homes().head(12))


# The table, its suffix, the label, and the options that the one error message asks for.
TABLES = [
    (with_days_first, ".csv", "sold", []),
    (with_gaps, ".csv", "sold", ["--missing", "impute"]),
    (with_gaps_in_labels, ".csv", "sold", ["--missing", "drop"]),
    (with_true_and_false, ".csv", "sold", []),
    (with_an_index_and_ids, ".csv", "sold", []),
    (with_comments, ".txt", "sold", []),
    (with_padded_marks, ".tsv", "sold", ["--missing", "impute"]),
    (tiny, ".csv", "sold", []),
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("table", "suffix", "label", "needed"), TABLES)
def test_commands__three_from_a_table_to_joined_predictions(tmp_path, table, suffix, label, needed):
    file, dataset, fitted = tmp_path / f"rows{suffix}", tmp_path / "data", tmp_path / "run"
    file.write_text(table(), newline="")
    ingest = ["ingest", file, dataset, "--label", label]
    if needed:
        message = " ".join(refuse(*ingest))
        assert re.search("[ =]".join(map(re.escape, needed)), message), message
    succeed(*ingest, *needed)
    succeed("fit", dataset, fitted, *INLINE)
    out = tmp_path / "out.csv"
    succeed("predict", fitted, file, out, "--keep", label, "--probabilities", *INLINE)
    found = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert len(found) == (12 if table is tiny else N_ROWS)
    own = found[found[label] != ""]
    assert (own[label] == own["prediction"]).mean() > 0.8
